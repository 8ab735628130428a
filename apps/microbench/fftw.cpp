#include <fftw3.h>

#include <algorithm>
#include <cstring>
#include <memory>

#include "apps/microbench/microbench.hpp"

namespace gradtool {
namespace {

constexpr std::size_t kLength = 65536;

struct Free {
  void operator()(float* p) const { fftwf_free(p); }
};
using Buffer = std::unique_ptr<float, Free>;

/// A plan there and back, and buffers for every thread.
class Transforms {
 public:
  explicit Transforms(std::size_t parts) {
    for (std::size_t part = 0; part < parts; ++part) {
      real_.emplace_back(fftwf_alloc_real(kLength));
      spectrum_.emplace_back(fftwf_alloc_real(kLength + 2));
    }
    forward_ = fftwf_plan_dft_r2c_1d(kLength, real_[0].get(), complex(0), FFTW_MEASURE);
    inverse_ = fftwf_plan_dft_c2r_1d(kLength, complex(0), real_[0].get(), FFTW_MEASURE);
  }
  ~Transforms() {
    fftwf_destroy_plan(forward_);
    fftwf_destroy_plan(inverse_);
  }
  Transforms(const Transforms&) = delete;
  Transforms& operator=(const Transforms&) = delete;

  void run(std::size_t part, const float* x) const {
    std::memcpy(real_[part].get(), x, kLength * sizeof(float));
    fftwf_execute_dft_r2c(forward_, real_[part].get(), complex(part));
    fftwf_execute_dft_c2r(inverse_, complex(part), real_[part].get());
  }

 private:
  [[nodiscard]] fftwf_complex* complex(std::size_t part) const {
    return reinterpret_cast<fftwf_complex*>(spectrum_[part].get());
  }

  std::vector<Buffer> real_, spectrum_;
  fftwf_plan forward_ = nullptr, inverse_ = nullptr;
};

/// The DCT-II of blocks of 64 x 64, or its inverse, as `demo` transforms a large matrix.
class CosineBlocks {
 public:
  static constexpr int kSide = 64;
  static constexpr std::size_t kBlock = std::size_t{kSide} * kSide;

  CosineBlocks(std::size_t parts, fftwf_r2r_kind kind) {
    for (std::size_t part = 0; part < 2 * parts; ++part) buffers_.emplace_back(fftwf_alloc_real(kBlock));
    plan_ = fftwf_plan_r2r_2d(kSide, kSide, buffers_[0].get(), buffers_[1].get(), kind, kind, FFTW_MEASURE);
  }
  ~CosineBlocks() { fftwf_destroy_plan(plan_); }
  CosineBlocks(const CosineBlocks&) = delete;
  CosineBlocks& operator=(const CosineBlocks&) = delete;

  void run(std::size_t part, const float* x) const {
    std::memcpy(buffers_[2 * part].get(), x, kBlock * sizeof(float));
    fftwf_execute_r2r(plan_, buffers_[2 * part].get(), buffers_[2 * part + 1].get());
  }

 private:
  std::vector<Buffer> buffers_;
  fftwf_plan plan_ = nullptr;
};

/// `make(parts)`: what transforms chunks of `length` elements with so many threads.
template <class Make>
void add(const char* name, std::size_t length, const std::vector<float>& x, TaskPool& pool,
         const std::function<void(benchmark::State&)>& count, const Make& make) {
  const auto run = [&x, &pool, count, length, make](benchmark::State& state) {
    const auto parts = static_cast<std::size_t>(pool.threads());
    const auto transforms = make(parts);
    for ([[maybe_unused]] auto _ : state) {
      parallel_parts({&pool}, x.size() / length, parts, 1, [&](std::size_t part, std::size_t first, std::size_t last) {
        for (std::size_t chunk = first; chunk < last; ++chunk) transforms.run(part, x.data() + chunk * length);
      });
    }
    count(state);
  };
  benchmark::RegisterBenchmark(name, run)->UseRealTime()->Unit(benchmark::kMillisecond);
}

}  // namespace

void register_fftw(const std::vector<float>& x, TaskPool& pool, const std::function<void(benchmark::State&)>& count) {
  add("fftw/forward+inverse", kLength, x, pool, count, [](std::size_t parts) { return Transforms{parts}; });
  add("fftw/cosine_forward", CosineBlocks::kBlock, x, pool, count, [](std::size_t parts) {
    return CosineBlocks{parts, FFTW_REDFT10};
  });
  add("fftw/cosine_inverse", CosineBlocks::kBlock, x, pool, count, [](std::size_t parts) {
    return CosineBlocks{parts, FFTW_REDFT01};
  });
}

}  // namespace gradtool
