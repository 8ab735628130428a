#pragma once

#include <array>
#include <optional>

#include "kernels/cuda/runtime.hpp"
#include "kernels/eigen.hpp"
#include "kernels/transform.hpp"
#include "lib/analysis/gpu.hpp"
#include "lib/core/arena.hpp"
#include "lib/core/scratch.hpp"

namespace gradtool {

class AnalysisGpu {
 public:
  [[nodiscard]] Queue<Space::cuda> queue() const { return stream_.queue(); }

  /// Device memory for the open part of one user, 256-byte aligned. It is kept for the next part, because allocating it
  /// anew would take most of the time of small parts. It is replaced by a larger one when it is too small, which waits
  /// for the GPU. A user has one part open at a time.
  enum class User : std::uint8_t { feed, spectrum, correlation, variance };
  [[nodiscard]] View<std::byte, Space::cuda> memory(User user, std::size_t bytes);

  /// Page-locked host memory that slices are read into; two slots are used in turn.
  struct Staging {
    cuda::PinnedBuffer memory;
    cuda::Event copied;
  };
  [[nodiscard]] Staging& staging(std::size_t slot, std::size_t bytes);

  /// The Fourier transform of n values. The last one is kept, because planning takes milliseconds and every step of a
  /// tensor needs the same one.
  [[nodiscard]] std::shared_ptr<const cuda::WideTransform> transform(std::size_t n);
  [[nodiscard]] cuda::SymmetricEigen& eigen() { return eigen_ ? *eigen_ : eigen_.emplace(); }

  /// Copies results from the GPU to the host, after waiting for the work that computes them.
  template <class T>
  void fetch(View<T, Space::cuda> from, std::span<T> to) const {
    cuda::copy_elements(queue(), HostView<T>{to.data(), to.size()}, View<const T, Space::cuda>{from});
    cuda::synchronize(queue());
  }
  template <class T>
  [[nodiscard]] std::vector<T> fetch(View<T, Space::cuda> from) const {
    std::vector<T> values(from.size());
    fetch(from, std::span{values});
    return values;
  }

 private:
  cuda::Stream stream_;
  std::array<std::optional<Arena<Space::cuda>>, 4> arenas_;
  std::array<Staging, 2> staging_;
  std::shared_ptr<const cuda::WideTransform> transform_;
  std::size_t transform_length_ = 0;
  std::optional<cuda::SymmetricEigen> eigen_;
};

}  // namespace gradtool
