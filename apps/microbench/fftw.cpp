#include <fftw3.h>

#include <algorithm>
#include <cstring>
#include <memory>

#include "apps/microbench/microbench.hpp"

namespace gradtool {
namespace {

constexpr std::size_t kLength = 65536;

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
  struct Free {
    void operator()(float* p) const { fftwf_free(p); }
  };
  [[nodiscard]] fftwf_complex* complex(std::size_t part) const {
    return reinterpret_cast<fftwf_complex*>(spectrum_[part].get());
  }

  std::vector<std::unique_ptr<float, Free>> real_, spectrum_;
  fftwf_plan forward_ = nullptr, inverse_ = nullptr;
};

}  // namespace

void register_fftw(const std::vector<float>& x, TaskPool& pool, const std::function<void(benchmark::State&)>& count) {
  benchmark::RegisterBenchmark("fftw/forward+inverse",
                               [&x, &pool, count](benchmark::State& state) {
                                 const std::size_t chunks = x.size() / kLength;
                                 const auto parts = static_cast<std::size_t>(pool.threads());
                                 const Transforms transforms{parts};
                                 for ([[maybe_unused]] auto _ : state) {
                                   parallel_parts({&pool}, chunks, parts, 1,
                                                  [&](std::size_t part, std::size_t first, std::size_t last) {
                                                    for (std::size_t chunk = first; chunk < last; ++chunk)
                                                      transforms.run(part, x.data() + chunk * kLength);
                                                  });
                                 }
                                 count(state);
                               })
      ->UseRealTime()
      ->Unit(benchmark::kMillisecond);
}

}  // namespace gradtool
