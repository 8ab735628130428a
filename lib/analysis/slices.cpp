#include "lib/analysis/slices.hpp"

#include <algorithm>
#include <cstring>
#include <functional>
#include <string_view>

#include "lib/core/error.hpp"

namespace gradtool {
namespace {

constexpr std::uint64_t kContiguousElements = 4096;
constexpr std::uint64_t kContiguousSlices = 16;

bool is_convolution(const TensorInfo& tensor) {
  const std::string_view layout{tensor.layout};
  return tensor.kind == "conv" && tensor.shape.size() >= 3 && (layout.empty() || layout.starts_with("OI"));
}

}  // namespace

Slicing::Slicing(const TensorInfo& tensor, std::size_t taps)
    : transposed_{is_convolution(tensor)}, elements_{tensor.elements} {
  if (transposed_) {
    for (std::size_t axis = 2; axis < tensor.shape.size(); ++axis) {
      all_taps_ *= static_cast<std::uint64_t>(tensor.shape[axis]);
    }
    const std::uint64_t row = static_cast<std::uint64_t>(tensor.shape.back());
    taps_ = std::min(all_taps_, taps == 0 ? row : std::uint64_t{taps});
    slice_elements_ = elements_ / all_taps_ * taps_;
  } else {
    const std::uint64_t even = (elements_ + kContiguousSlices - 1) / kContiguousSlices;
    slice_elements_ = std::min(elements_, std::max(kContiguousElements, even));
  }
  slices_ = static_cast<std::size_t>((elements_ + slice_elements_ - 1) / slice_elements_);
}

format::SliceColumns Slicing::columns(std::size_t slice, std::uint64_t first, std::uint64_t count) const {
  format::SliceColumns columns;
  columns.period = transposed_ ? all_taps_ : elements_;
  const std::uint64_t width = transposed_ ? taps_ : slice_elements_;
  columns.start = slice * width;
  columns.width = std::min(width, columns.period - columns.start);
  columns.first = first;
  columns.before = columns.elements_below(first);
  columns.count = columns.elements_below(first + count) - columns.before;
  return columns;
}

std::uint64_t Slicing::elements_of(std::size_t slice) const {
  return std::min(slice_elements_, elements_ - slice * slice_elements_);
}

namespace {

/// Two doubles in one SSE2 or NEON register (a vector extension of GCC and Clang).
using Pair = double __attribute__((vector_size(16)));

Pair load(const double* values) {
  Pair pair;
  std::memcpy(&pair, values, sizeof pair);
  return pair;
}

/// tile[a][b] := <row i + a, row j + b> over columns [first, last). The A x B inner products share their loads.
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

SliceGrams::SliceGrams(const Slicing& slicing, std::size_t samples, std::uint64_t first, std::size_t count)
    : samples_{samples}, count_{count}, column_(count), values_(samples * count) {
  std::map<std::size_t, std::size_t> sizes;
  for (std::size_t i = 0; i < count; ++i) ++sizes[slicing.slice_of(first + i)];
  std::map<std::size_t, std::size_t> next;
  std::size_t start = 0;
  for (const auto& [slice, size] : sizes) {
    runs_.push_back({slice, start, size});
    next[slice] = start;
    start += size;
  }
  for (std::size_t i = 0; i < count; ++i) column_[i] = static_cast<std::uint32_t>(next[slicing.slice_of(first + i)]++);
}

void SliceGrams::add_sample(std::span<const double> values) {
  if (next_ == samples_) return;
  expects(values.size() == count_, "a sample has another size than its part");
  double* row = values_.data() + next_ * count_;
  for (std::size_t i = 0; i < count_; ++i) row[column_[i]] = values[i];
  ++next_;
}

void SliceGrams::close() {
  expects(next_ == samples_, "a part was closed before its last sample");
  for (const auto& run : runs_) {
    Slice& slice = slices_[run.slice];
    slice.gram.resize(samples_ * samples_);
    slice.square_norms.resize(samples_);
    for (std::size_t s = 0; s < samples_; ++s) {
      const double* row = &values_[s * count_ + run.first];
      slice.square_norms[s] = dot(row, row, run.count);
    }
  }
  std::vector<double> mean(count_);
  for (std::size_t s = 0; s < samples_; ++s) {
    for (std::size_t i = 0; i < count_; ++i) mean[i] += values_[s * count_ + i];
  }
  for (double& x : mean) x /= static_cast<double>(samples_);
  for (std::size_t s = 0; s < samples_; ++s) {
    for (std::size_t i = 0; i < count_; ++i) values_[s * count_ + i] -= mean[i];
  }
  for (const auto& run : runs_) {
    add_gram({values_.data() + run.first, samples_, run.count, count_}, slices_[run.slice].gram);
  }
  column_ = {};
  values_ = {};
}

void SliceGrams::merge(const SliceGrams& other) {
  const auto add = [](std::vector<double>& mine, const std::vector<double>& theirs) {
    mine.resize(theirs.size());
    std::transform(mine.begin(), mine.end(), theirs.begin(), mine.begin(), std::plus<>{});
  };
  for (const auto& [number, theirs] : other.slices_) {
    add(slices_[number].gram, theirs.gram);
    add(slices_[number].square_norms, theirs.square_norms);
  }
}

}  // namespace gradtool
