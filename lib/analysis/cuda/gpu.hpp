#pragma once

#include <array>
#include <optional>

#include "kernels/cuda/eigen.hpp"
#include "kernels/cuda/fft_transform.hpp"
#include "kernels/cuda/runtime.hpp"
#include "lib/analysis/gpu.hpp"
#include "lib/core/arena.hpp"

namespace gradtool {

class AnalysisGpu {
 public:
  [[nodiscard]] Queue<Space::cuda> queue() const { return stream_.queue(); }

  /// Each user has an arena for its open part; small parts would otherwise spend their time on allocations. Rewound,
  /// and made anew where it is too small, which waits for the GPU.
  enum class User : std::uint8_t { feed, spectrum, correlation, variance };
  [[nodiscard]] Arena<Space::cuda>& arena(User user, std::size_t capacity);

  /// Pinned memory that slices are read into, one of two slots in turn.
  struct Staging {
    cuda::PinnedBuffer memory;
    cuda::Event copied;
  };
  [[nodiscard]] Staging& staging(std::size_t slot, std::size_t bytes);

  /// The transform of n values: planning takes milliseconds, and every step of a tensor has the same one.
  [[nodiscard]] std::shared_ptr<const cuda::WideTransform> transform(std::size_t n);
  [[nodiscard]] cuda::SymmetricEigen& eigen() { return eigen_ ? *eigen_ : eigen_.emplace(); }

  /// Fetches numbers that the GPU has computed; waits for it.
  template <class T>
  void fetch(View<T, Space::cuda> from, std::span<T> to) const {
    cuda::copy_elements(queue(), HostView<T>{to.data(), to.size()}, View<const T, Space::cuda>{from});
    cuda::synchronize(queue());
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
