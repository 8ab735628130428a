#pragma once

#include <cstddef>
#include <memory>

#include "lib/core/error.hpp"
#include "lib/core/view.hpp"

namespace gradtool {

/// One block of memory, carved up before the clock starts. Every piece is 256-byte aligned.
///
/// `take` past the capacity throws Fault::internal: growing would hide an allocation in a timed region. The arena owns
/// the block; views into it are valid for as long as it lives and until `rewind`.
template <Space S>
class Arena {
 public:
  static constexpr std::size_t kAlignment = 256;

  explicit Arena(std::size_t capacity);

  template <class T>
  [[nodiscard]] View<T, S> take(std::size_t count) {
    return {reinterpret_cast<T*>(take_bytes(count * sizeof(T)).data()), count};
  }

  [[nodiscard]] View<std::byte, S> take_bytes(std::size_t bytes) {
    const std::size_t padded = padded_size(bytes);
    expects(padded <= capacity_ - used_, "an arena is too small for what was planned on it");
    View<std::byte, S> piece{base_.get() + used_, bytes};
    used_ += padded;
    return piece;
  }

  /// The bytes that a piece of `bytes` takes from the arena: add these up to find a capacity.
  [[nodiscard]] static constexpr std::size_t padded_size(std::size_t bytes) {
    return (bytes + kAlignment - 1) / kAlignment * kAlignment;
  }

  void rewind() noexcept { used_ = 0; }
  [[nodiscard]] std::size_t used() const noexcept { return used_; }
  [[nodiscard]] std::size_t capacity() const noexcept { return capacity_; }

 private:
  struct Free {
    void operator()(std::byte* bytes) const noexcept;
  };
  std::unique_ptr<std::byte, Free> base_;
  std::size_t capacity_ = 0;
  std::size_t used_ = 0;
};

template <>
Arena<Space::host>::Arena(std::size_t capacity);
template <>
void Arena<Space::host>::Free::operator()(std::byte* bytes) const noexcept;
// The CUDA arena is defined in kernels/cuda/runtime.cu.

}  // namespace gradtool
