#pragma once

#include <map>
#include <mutex>
#include <shared_mutex>

#include "kernels/cuda/runtime.hpp"
#include "lib/core/error.hpp"

namespace gradtool {

/// One T for every GPU that a codec works on: one codec serves ranks on several. `make` and `get` mean the calling
/// thread's GPU. Thread-safe.
template <class T>
class PerDevice {
 public:
  /// What make() makes, once for a GPU; for Codec::plan.
  template <class Make>
  const T& make(const Make& make) const {
    const int device = cuda::current_device();
    const std::unique_lock lock{mutex_};
    auto found = all_.find(device);
    if (found == all_.end()) found = all_.emplace(device, make()).first;
    return found->second;
  }

  [[nodiscard]] const T& get() const {
    const std::shared_lock lock{mutex_};
    const auto found = all_.find(cuda::current_device());
    expects(found != all_.end(), "a codec encodes or decodes before plan");
    return found->second;
  }

 private:
  mutable std::shared_mutex mutex_;
  mutable std::map<int, T> all_;
};

}  // namespace gradtool
