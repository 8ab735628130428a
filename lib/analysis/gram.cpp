#include "lib/analysis/gram.hpp"

#include <algorithm>
#include <cstring>

namespace gradtool {
namespace {

// Two doubles that GCC and Clang add and multiply as one SSE2 or NEON register.
using Pair = double __attribute__((vector_size(16)));

Pair load(const double* at) {
  Pair pair;
  std::memcpy(&pair, at, sizeof pair);
  return pair;
}

/// tile[a][b] = <row i + a, row j + b> over columns [first, last): A x B dot products that share their loads.
template <std::size_t A, std::size_t B>
void dot_tile(const Rows& m, std::size_t i, std::size_t j, std::size_t first, std::size_t last, double (&tile)[A][B]) {
  Pair sum[A][B] = {};
  std::size_t k = first;
  for (; k + 2 <= last; k += 2) {
    Pair x[A], y[B];
    for (std::size_t a = 0; a < A; ++a) x[a] = load(m.row(i + a) + k);
    for (std::size_t b = 0; b < B; ++b) y[b] = load(m.row(j + b) + k);
    for (std::size_t a = 0; a < A; ++a) {
      for (std::size_t b = 0; b < B; ++b) sum[a][b] += x[a] * y[b];
    }
  }
  for (std::size_t a = 0; a < A; ++a) {
    for (std::size_t b = 0; b < B; ++b) {
      tile[a][b] = sum[a][b][0] + sum[a][b][1];
      if (k < last) tile[a][b] += m.row(i + a)[k] * m.row(j + b)[k];
    }
  }
}

}  // namespace

void add_gram(Rows m, std::span<double> gram) {
  constexpr std::size_t kTile = 2, kColumns = 512;  // 512 columns of 128 rows stay in a second-level cache
  const std::size_t n = m.rows;
  for (std::size_t first = 0; first < m.columns; first += kColumns) {
    const std::size_t last = std::min(m.columns, first + kColumns);
    for (std::size_t i = 0; i < n; i += kTile) {
      for (std::size_t j = 0; j <= i; j += kTile) {
        if (i + kTile <= n && j + kTile <= n) {
          double tile[kTile][kTile];
          dot_tile(m, i, j, first, last, tile);
          for (std::size_t a = 0; a < kTile; ++a) {
            for (std::size_t b = 0; b < kTile; ++b) {
              if (j + b <= i + a) gram[(i + a) * n + j + b] += tile[a][b];
            }
          }
        } else {
          for (std::size_t a = i; a < std::min(i + kTile, n); ++a) {
            for (std::size_t b = j; b < std::min(j + kTile, a + 1); ++b) {
              gram[a * n + b] += dot(m.row(a) + first, m.row(b) + first, last - first);
            }
          }
        }
      }
    }
  }
  for (std::size_t i = 0; i < n; ++i) {
    for (std::size_t j = 0; j < i; ++j) gram[j * n + i] = gram[i * n + j];
  }
}

double dot(const double* a, const double* b, std::size_t n) {
  Pair sum[4] = {};
  std::size_t k = 0;
  for (; k + 8 <= n; k += 8) {
    for (std::size_t u = 0; u < 4; ++u) sum[u] += load(a + k + 2 * u) * load(b + k + 2 * u);
  }
  const Pair total = (sum[0] + sum[1]) + (sum[2] + sum[3]);
  double result = total[0] + total[1];
  for (; k < n; ++k) result += a[k] * b[k];
  return result;
}

}  // namespace gradtool
