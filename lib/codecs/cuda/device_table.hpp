#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include "kernels/cuda/runtime.hpp"
#include "lib/codecs/cuda/per_device.hpp"

namespace gradtool {

/// What a codec looks up while it works, on every GPU that it works on; see PerDevice.
template <class T>
class DeviceTable {
 public:
  explicit DeviceTable(std::vector<T> rows) : rows_{std::move(rows)} {}

  [[nodiscard]] std::size_t size() const { return rows_.size(); }
  [[nodiscard]] const std::vector<T>& rows() const { return rows_; }

  /// Copies the table there, once; for Codec::plan.
  void make() const {
    copies_.make([this] {
      cuda::DeviceBuffer copy{rows_.size() * sizeof(T)};
      const cuda::Stream stream;
      cuda::copy_elements(stream.queue(), copy.as<T>(), HostView<const T>{rows_.data(), rows_.size()});
      cuda::synchronize(stream.queue());
      return copy;
    });
  }

  [[nodiscard]] const T* get() const { return copies_.get().template as<T>().data(); }

 private:
  std::vector<T> rows_;
  PerDevice<cuda::DeviceBuffer> copies_;
};

}  // namespace gradtool
