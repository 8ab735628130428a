#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <shared_mutex>

#include "kernels/host/real_transform.hpp"
#include "lib/core/error.hpp"

namespace gradtool {

/// Transform plans by length. `make` may allocate and lock; `get`, in the timed region, only looks up.
class FftPlans {
 public:
  void make(std::size_t length) const {
    const std::unique_lock lock{mutex_};
    auto& plan = plans_[length];
    if (plan == nullptr) plan = std::make_unique<host::RealTransform>(length);
  }

  [[nodiscard]] const host::RealTransform& get(std::size_t length) const {
    const std::shared_lock lock{mutex_};
    const auto found = plans_.find(length);
    expects(found != plans_.end(), "fft: encode or decode before plan");
    return *found->second;
  }

 private:
  mutable std::shared_mutex mutex_;
  mutable std::map<std::size_t, std::unique_ptr<host::RealTransform>> plans_;
};

}  // namespace gradtool
