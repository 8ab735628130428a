#pragma once

#include <cstddef>
#include <map>
#include <mutex>
#include <shared_mutex>
#include <tuple>
#include <utility>
#include <vector>

#include "kernels/cuda/runtime.hpp"
#include "lib/core/error.hpp"

namespace gradtool {

/// One T for each GPU that a codec works on, because one codec serves ranks on several GPUs; or one for each GPU and
/// key. `make` and `get` mean the calling thread's GPU. Thread-safe.
template <class T, class... Key>
class PerDevice {
 public:
  /// The T of this GPU and key, which make() makes at the first call; for Codec::plan.
  template <class Make>
  const T& make(const Make& make, Key... key) const {
    const std::tuple place{cuda::current_device(), key...};
    const std::unique_lock lock{mutex_};
    auto found = all_.find(place);
    if (found == all_.end()) found = all_.emplace(place, make()).first;
    return found->second;
  }

  /// The object that `make` made. Throws Fault::internal where it was not called before.
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

/// A constant table that kernels read, with a copy on each GPU that a codec works on.
template <class T>
class DeviceTable {
 public:
  explicit DeviceTable(std::vector<T> rows) : rows_{std::move(rows)} {}

  [[nodiscard]] std::size_t size() const { return rows_.size(); }
  [[nodiscard]] const std::vector<T>& rows() const { return rows_; }

  /// Copies the table to this GPU where that was not done before; for Codec::plan.
  void make() const {
    copies_.make([this] {
      cuda::DeviceBuffer copy{rows_.size() * sizeof(T)};
      const cuda::Stream stream;
      cuda::copy_elements(stream.queue(), copy.as<T>(), HostView<const T>{rows_.data(), rows_.size()});
      cuda::synchronize(stream.queue());
      return copy;
    });
  }

  /// The copy on this GPU, in device memory.
  [[nodiscard]] const T* get() const { return copies_.get().template as<T>().data(); }

 private:
  std::vector<T> rows_;
  PerDevice<cuda::DeviceBuffer> copies_;
};

}  // namespace gradtool
