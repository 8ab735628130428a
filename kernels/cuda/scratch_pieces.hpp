#pragma once

#include <cstddef>

#include "lib/core/arena.hpp"
#include "lib/core/view.hpp"

namespace gradtool::cuda {

/// Hands out pieces of a scratch view one behind the other, each 256-byte aligned. Of an empty view they are null, and
/// bytes() says how large it is to be: planning and work take the same pieces in the same order.
class ScratchPieces {
 public:
  explicit ScratchPieces(View<std::byte, Space::cuda> scratch) : scratch_{scratch} {}

  [[nodiscard]] View<std::byte, Space::cuda> take(std::size_t bytes) {
    const std::size_t first = bytes_;
    bytes_ += Arena<Space::cuda>::padded_size(bytes);
    if (scratch_.data() == nullptr) return {nullptr, bytes};
    expects(first + bytes <= scratch_.size(), "a kernel's scratch is smaller than planned");
    return scratch_.part(first, bytes);
  }
  template <class T>
  void take(T*& piece, std::size_t count) {
    piece = reinterpret_cast<T*>(take(sizeof(T) * count).data());
  }
  [[nodiscard]] std::size_t bytes() const { return bytes_; }

 private:
  View<std::byte, Space::cuda> scratch_;
  std::size_t bytes_ = 0;
};

}  // namespace gradtool::cuda
