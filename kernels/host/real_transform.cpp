#include "kernels/host/real_transform.hpp"

#include <fftw3.h>

#include <bit>
#include <cmath>
#include <mutex>
#include <numbers>
#include <vector>

#include "kernels/host/four_steps.hpp"
#include "lib/core/error.hpp"

namespace gradtool::host {
namespace {

constexpr std::size_t kRows = 128;
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

/// exp(-2 pi i k / n) as a pair.
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
  fftwf_plan forward = nullptr, inverse = nullptr;  ///< the whole, or for a split length those of the columns
  fftwf_plan forward_rows = nullptr, inverse_rows = nullptr;
  std::vector<float> twiddles;  ///< between columns and rows
  std::vector<float> ends;      ///< between pairs and bins

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
  expects(length >= 1 && length <= 0x7fffffff, "a transform's length is 1 to 2^31-1");
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
