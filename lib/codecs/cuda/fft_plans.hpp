#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <tuple>

#include "kernels/cuda/fft_transform.hpp"
#include "kernels/cuda/runtime.hpp"
#include "lib/core/error.hpp"

namespace gradtool {

/// cuFFT's plans by GPU, length and rows, as FftPlans on the host. One codec serves ranks on several GPUs; `make` and
/// `get` mean the calling thread's.
class CudaFftPlans {
 public:
  const cuda::RealTransforms& make(std::size_t length, std::size_t batch) const {
    const Key key{cuda::current_device(), length, batch};
    const std::unique_lock lock{mutex_};
    auto& plan = plans_[key];
    if (plan == nullptr) plan = std::make_unique<cuda::RealTransforms>(length, batch);
    return *plan;
  }

  [[nodiscard]] const cuda::RealTransforms& get(std::size_t length, std::size_t batch) const {
    const Key key{cuda::current_device(), length, batch};
    const std::shared_lock lock{mutex_};
    const auto found = plans_.find(key);
    expects(found != plans_.end() && found->second != nullptr, "fft: encode or decode before plan");
    return *found->second;
  }

 private:
  using Key = std::tuple<int, std::size_t, std::size_t>;
  mutable std::shared_mutex mutex_;
  mutable std::map<Key, std::unique_ptr<cuda::RealTransforms>> plans_;
};

}  // namespace gradtool
