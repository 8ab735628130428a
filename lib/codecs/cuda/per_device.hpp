#pragma once

#include <map>
#include <mutex>
#include <shared_mutex>
#include <tuple>

#include "kernels/cuda/runtime.hpp"
#include "lib/core/error.hpp"

namespace gradtool {

/// One T for every GPU that a codec works on, and every key where there are some: one codec serves ranks on several.
/// `make` and `get` mean the calling thread's GPU. Thread-safe.
template <class T, class... Key>
class PerDevice {
 public:
  /// What make() makes, once for a GPU and key; for Codec::plan.
  template <class Make>
  const T& make(const Make& make, Key... key) const {
    const std::tuple place{cuda::current_device(), key...};
    const std::unique_lock lock{mutex_};
    auto found = all_.find(place);
    if (found == all_.end()) found = all_.emplace(place, make()).first;
    return found->second;
  }

  [[nodiscard]] const T& get(Key... key) const {
    const std::shared_lock lock{mutex_};
    const auto found = all_.find({cuda::current_device(), key...});
    expects(found != all_.end(), "a codec encodes or decodes before plan");
    return found->second;
  }

 private:
  mutable std::shared_mutex mutex_;
  mutable std::map<std::tuple<int, Key...>, T> all_;
};

}  // namespace gradtool
