#include "kernels/transform.hpp"

#include <fftw3.h>
#include <bit>
#include <cmath>
#include <cstddef>
#include <mutex>
#include <numbers>
#include <vector>

#include "kernels/float_bits.hpp"
#include "lib/core/error.hpp"

namespace gradtool::host {

// Steps that join the short transforms of a long one. Complex numbers are pairs of floats; arrays do not overlap unless
// a comment says "in place".
namespace {

constexpr std::size_t kTile = 8;

struct Pair {
  float re, im;
};

/// Bins k and m - k, which come from the pairs a and b at k and m - k: with E = a + conj(b) and T = i w (a - conj(b)),
/// up to signs and factors that depend on the direction, they are E + T and conj(E - T).
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

/// Applies `turn` to z[k] and z[m - k] for all k, from both ends towards the middle. Small arrays for a tile at a time
/// let compilers turn the inner loop into vector code.
template <class Turn>
inline void turn_ends(Pair* z, const Pair* w, std::size_t m, const Turn& turn) {
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

/// z[i] *= w[i], or conj(w[i]), in place.
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

/// to[c * rows + r] = from[r * columns + c]; rows and columns are multiples of 8.
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

/// In place: from the transform of m pairs (x[2j], x[2j+1]) taken as complex numbers to the m + 1 bins of x.
/// w[k] = exp(-2 pi i k / 2m) for k <= m/2; m is even.
GT_SIMD_CLONES void bins_from_pairs(float* z, const float* w, std::size_t m) {
  auto* pairs = reinterpret_cast<Pair*>(z);
  turn_ends(pairs, reinterpret_cast<const Pair*>(w), m,
            [](Pair a, Pair b, Pair turn) { return forward_ends(a, b, turn); });
  pairs[m] = {pairs[0].re - pairs[0].im, 0.0F};
  pairs[0] = {pairs[0].re + pairs[0].im, 0.0F};
  pairs[m / 2].im = -pairs[m / 2].im;
}

/// In place: the inverse of bins_from_pairs, times 2, so that the unnormalised inverse transform returns 2m x.
GT_SIMD_CLONES void pairs_from_bins(float* z, const float* w, std::size_t m) {
  auto* pairs = reinterpret_cast<Pair*>(z);
  turn_ends(pairs, reinterpret_cast<const Pair*>(w), m,
            [](Pair a, Pair b, Pair turn) { return inverse_ends(a, b, turn); });
  pairs[0] = {pairs[0].re + pairs[m].re, pairs[0].re - pairs[m].re};
  pairs[m / 2] = {2.0F * pairs[m / 2].re, -2.0F * pairs[m / 2].im};
}

constexpr std::size_t kRows = 128;  // of the matrix that a split transform is taken as
constexpr std::size_t kShortestSplit = std::size_t{1} << 15;
constexpr std::size_t kLongestSplit = std::size_t{1} << 20;

std::mutex& planner() {
  static std::mutex mutex;
  return mutex;
}

struct Free {
  void operator()(float* p) const { fftwf_free(p); }
};
using Buffer = std::unique_ptr<float, Free>;

/// Appends exp(-2 pi i k / n) as a pair.
void put_root(std::vector<float>& to, std::size_t k, std::size_t n) {
  const double angle = -2.0 * std::numbers::pi * static_cast<double>(k) / static_cast<double>(n);
  to.push_back(static_cast<float>(std::cos(angle)));
  to.push_back(static_cast<float>(std::sin(angle)));
}

fftwf_complex* complex(float* floats) {
  return reinterpret_cast<fftwf_complex*>(floats);
}

}  // namespace

struct RealTransform::Plans {
  fftwf_plan forward = nullptr, inverse = nullptr;  ///< of the whole length, or of the columns of a split one
  fftwf_plan forward_rows = nullptr, inverse_rows = nullptr;
  std::vector<float> twiddles;  ///< factors between the transforms of columns and rows
  std::vector<float> ends;      ///< factors between pairs and bins

  [[nodiscard]] bool split() const { return forward_rows != nullptr; }

  ~Plans() {
    const std::lock_guard lock{planner()};
    for (const auto plan : {forward, inverse, forward_rows, inverse_rows}) {
      if (plan != nullptr) fftwf_destroy_plan(plan);
    }
  }

  void make_whole(int length, float* real, float* spectrum) {
    forward = fftwf_plan_dft_r2c_1d(length, real, complex(spectrum), FFTW_ESTIMATE);
    inverse = fftwf_plan_dft_c2r_1d(length, complex(spectrum), real, FFTW_ESTIMATE);
  }

  void make_split(std::size_t length, float* real, float* spectrum) {
    const std::size_t pairs = length / 2;
    const std::size_t columns = pairs / kRows;
    const int a = static_cast<int>(kRows);
    const int b = static_cast<int>(columns);
    const auto plan = [](int n, int many, int stride, int distance, float* from, float* to, int sign) {
      return fftwf_plan_many_dft(1, &n, many, complex(from), nullptr, stride, distance, complex(to), nullptr, stride,
                                 distance, sign, FFTW_ESTIMATE);
    };
    forward = plan(a, b, b, 1, real, spectrum, FFTW_FORWARD);
    forward_rows = plan(b, a, 1, b, spectrum, real, FFTW_FORWARD);
    inverse_rows = plan(b, a, 1, b, real, spectrum, FFTW_BACKWARD);
    inverse = plan(a, b, b, 1, spectrum, real, FFTW_BACKWARD);
    for (std::size_t row = 0; row < kRows; ++row) {
      for (std::size_t column = 0; column < columns; ++column) put_root(twiddles, row * column, pairs);
    }
    for (std::size_t k = 0; k <= pairs / 2; ++k) put_root(ends, k, length);
  }
};

RealTransform::RealTransform(std::size_t length) : length_{length}, plans_{std::make_unique<Plans>()} {
  expect_valid(length >= 1 && length <= 0x7fffffff, "a transform's length is 1 to 2^31-1");
  // Planned on FFTW's own buffers, so that every later call may assume the alignment it wants.
  const Buffer real{fftwf_alloc_real(length)};
  const Buffer spectrum{fftwf_alloc_real(2 * bins())};
  const std::lock_guard lock{planner()};
  const bool split = std::has_single_bit(length) && length >= kShortestSplit && length <= kLongestSplit;
  if (split)
    plans_->make_split(length, real.get(), spectrum.get());
  else
    plans_->make_whole(static_cast<int>(length), real.get(), spectrum.get());
  if (plans_->forward == nullptr || plans_->inverse == nullptr || plans_->split() != split)
    throw Error{Fault::backend, "FFTW made no plan"};
}

RealTransform::~RealTransform() = default;

void RealTransform::forward(float* real, float* spectrum) const {
  if (!plans_->split()) {
    fftwf_execute_dft_r2c(plans_->forward, real, complex(spectrum));
    return;
  }
  const std::size_t pairs = length_ / 2;
  fftwf_execute_dft(plans_->forward, complex(real), complex(spectrum));
  multiply(spectrum, plans_->twiddles.data(), pairs, false);
  fftwf_execute_dft(plans_->forward_rows, complex(spectrum), complex(real));
  transpose(real, kRows, pairs / kRows, spectrum);
  bins_from_pairs(spectrum, plans_->ends.data(), pairs);
}

void RealTransform::inverse(float* spectrum, float* real) const {
  if (!plans_->split()) {
    fftwf_execute_dft_c2r(plans_->inverse, complex(spectrum), real);
    return;
  }
  const std::size_t pairs = length_ / 2;
  pairs_from_bins(spectrum, plans_->ends.data(), pairs);
  transpose(spectrum, pairs / kRows, kRows, real);
  fftwf_execute_dft(plans_->inverse_rows, complex(real), complex(spectrum));
  multiply(spectrum, plans_->twiddles.data(), pairs, true);
  fftwf_execute_dft(plans_->inverse, complex(spectrum), complex(real));
}

}  // namespace gradtool::host
