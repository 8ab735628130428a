#pragma once

#include <map>
#include <mutex>
#include <shared_mutex>
#include <utility>
#include <vector>

#include "kernels/cuda/runtime.hpp"
#include "lib/core/error.hpp"

namespace gradtool {

/// What a codec looks up while it works, on every GPU that it works on: one codec serves ranks on several. `make` and
/// `get` mean the calling thread's. Thread-safe.
template <class T>
class DeviceTable {
 public:
  explicit DeviceTable(std::vector<T> rows) : rows_{std::move(rows)} {}

  [[nodiscard]] std::size_t size() const { return rows_.size(); }
  [[nodiscard]] const std::vector<T>& rows() const { return rows_; }

  /// Copies the table there, once; for Codec::plan.
  void make() const {
    const std::unique_lock lock{mutex_};
    const auto [found, added] = copies_.try_emplace(cuda::current_device());
    if (!added) return;
    found->second = cuda::DeviceBuffer{rows_.size() * sizeof(T)};
    const cuda::Stream stream;
    cuda::copy_elements(stream.queue(), found->second.template as<T>(), HostView<const T>{rows_.data(), rows_.size()});
    cuda::synchronize(stream.queue());
  }

  [[nodiscard]] const T* get() const {
    const std::shared_lock lock{mutex_};
    const auto found = copies_.find(cuda::current_device());
    expects(found != copies_.end(), "a codec encodes or decodes before plan");
    return found->second.template as<T>().data();
  }

 private:
  std::vector<T> rows_;
  mutable std::shared_mutex mutex_;
  mutable std::map<int, cuda::DeviceBuffer> copies_;
};

}  // namespace gradtool
