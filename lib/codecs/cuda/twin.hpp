#pragma once

#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/cuda/runtime.hpp"
#include "lib/codecs/registry.hpp"

namespace gradtool {

/// The CUDA side of a codec. What is promised does not depend on where it runs, so the host side answers for both.
class CudaTwin : public Codec<Space::cuda> {
 public:
  [[nodiscard]] ErrorBound bound(std::size_t n) const final { return host_->bound(n); }
  [[nodiscard]] std::size_t values_sent(std::size_t n) const final { return host_->values_sent(n); }
  /// Reads back payloads that state their own size; waits for the GPU.
  [[nodiscard]] std::size_t values_in(View<const std::byte, Space::cuda> payload, std::size_t n) const final {
    if (this->plan(n).exact) return values_sent(n);
    std::vector<std::byte> bytes(payload.size());
    cuda::synchronize_device();
    cuda::copy({}, HostView<std::byte>{bytes}, payload);
    cuda::synchronize({});
    return host_->values_in(HostView<const std::byte>{bytes.data(), bytes.size()}, n);
  }

 protected:
  CudaTwin(std::string_view name, const Params& params, const Layout& layout = {})
      : host_{find_codec(name).make_host(params, layout)} {}
  explicit CudaTwin(std::unique_ptr<Codec<Space::host>> host) : host_{std::move(host)} {}

 private:
  std::unique_ptr<Codec<Space::host>> host_;
};

/// A part of a payload or scratch view as an array of T; `offset` keeps T's alignment.
template <class T>
[[nodiscard]] View<T, Space::cuda> elements(View<std::byte, Space::cuda> bytes, std::size_t offset, std::size_t count) {
  return {reinterpret_cast<T*>(bytes.data() + offset), count};
}
template <class T>
[[nodiscard]] View<const T, Space::cuda> elements(View<const std::byte, Space::cuda> bytes, std::size_t offset,
                                                  std::size_t count) {
  return {reinterpret_cast<const T*>(bytes.data() + offset), count};
}

}  // namespace gradtool
