#include "kernels/host/four_steps.hpp"

#include "kernels/law/hd.hpp"

namespace gradtool::host {
namespace {

constexpr std::size_t kTile = 8;

struct Pair {
  float re, im;
};

/// E = a + conj(b), T = (a - conj(b)) i w with the signs the direction asks for; both ends of the spectrum come from
/// E + T and conj(E - T).
struct Ends {
  Pair low, high;
};
inline Ends forward_ends(Pair a, Pair b, Pair w) {
  const Pair even{0.5F * (a.re + b.re), 0.5F * (a.im - b.im)};
  const Pair odd{0.5F * (a.re - b.re), 0.5F * (a.im + b.im)};
  const Pair turned{odd.re * w.im + odd.im * w.re, odd.im * w.im - odd.re * w.re};  // -i w odd
  return {{even.re + turned.re, even.im + turned.im}, {even.re - turned.re, turned.im - even.im}};
}
inline Ends inverse_ends(Pair a, Pair b, Pair w) {
  const Pair even{a.re + b.re, a.im - b.im};
  const Pair odd{a.re - b.re, a.im + b.im};
  const Pair turned{odd.re * w.im - odd.im * w.re, odd.re * w.re + odd.im * w.im};  // i conj(w) odd
  return {{even.re + turned.re, even.im + turned.im}, {even.re - turned.re, turned.im - even.im}};
}

/// Both ends towards the middle, a tile at a time through small arrays, which is what lets the loop in between become
/// vector code.
template <class Turn>
inline void meet(Pair* z, const Pair* w, std::size_t m, const Turn& turn) {
  std::size_t k = 1;
  for (; k + kTile <= m / 2; k += kTile) {
    float ar[kTile], ai[kTile], br[kTile], bi[kTile], wr[kTile], wi[kTile];
    for (std::size_t j = 0; j < kTile; ++j) {
      ar[j] = z[k + j].re;
      ai[j] = z[k + j].im;
      br[j] = z[m - k - j].re;
      bi[j] = z[m - k - j].im;
      wr[j] = w[k + j].re;
      wi[j] = w[k + j].im;
    }
    for (std::size_t j = 0; j < kTile; ++j) {
      const Ends ends = turn(Pair{ar[j], ai[j]}, Pair{br[j], bi[j]}, Pair{wr[j], wi[j]});
      ar[j] = ends.low.re;
      ai[j] = ends.low.im;
      br[j] = ends.high.re;
      bi[j] = ends.high.im;
    }
    for (std::size_t j = 0; j < kTile; ++j) {
      z[k + j] = {ar[j], ai[j]};
      z[m - k - j] = {br[j], bi[j]};
    }
  }
  for (; k < m / 2; ++k) {
    const Ends ends = turn(z[k], z[m - k], w[k]);
    z[k] = ends.low;
    z[m - k] = ends.high;
  }
}

}  // namespace

GT_SIMD_CLONES void multiply(float* z, const float* w, std::size_t count, bool conjugate) {
  const float sign = conjugate ? -1.0F : 1.0F;
  for (std::size_t i = 0; i < count; ++i) {
    const float re = z[2 * i];
    const float im = z[2 * i + 1];
    const float wr = w[2 * i];
    const float wi = sign * w[2 * i + 1];
    z[2 * i] = re * wr - im * wi;
    z[2 * i + 1] = re * wi + im * wr;
  }
}

GT_SIMD_CLONES void transpose(const float* from, std::size_t rows, std::size_t columns, float* to) {
  const auto* in = reinterpret_cast<const Pair*>(from);
  auto* out = reinterpret_cast<Pair*>(to);
  for (std::size_t row = 0; row < rows; row += kTile) {
    for (std::size_t column = 0; column < columns; column += kTile) {
      for (std::size_t c = 0; c < kTile; ++c) {
        for (std::size_t r = 0; r < kTile; ++r)
          out[(column + c) * rows + row + r] = in[(row + r) * columns + column + c];
      }
    }
  }
}

GT_SIMD_CLONES void bins_from_pairs(float* z, const float* w, std::size_t m) {
  auto* pairs = reinterpret_cast<Pair*>(z);
  meet(pairs, reinterpret_cast<const Pair*>(w), m, [](Pair a, Pair b, Pair turn) { return forward_ends(a, b, turn); });
  pairs[m] = {pairs[0].re - pairs[0].im, 0.0F};
  pairs[0] = {pairs[0].re + pairs[0].im, 0.0F};
  pairs[m / 2].im = -pairs[m / 2].im;
}

GT_SIMD_CLONES void pairs_from_bins(float* z, const float* w, std::size_t m) {
  auto* pairs = reinterpret_cast<Pair*>(z);
  meet(pairs, reinterpret_cast<const Pair*>(w), m, [](Pair a, Pair b, Pair turn) { return inverse_ends(a, b, turn); });
  pairs[0] = {pairs[0].re + pairs[m].re, pairs[0].re - pairs[m].re};
  pairs[m / 2] = {2.0F * pairs[m / 2].re, -2.0F * pairs[m / 2].im};
}

}  // namespace gradtool::host
