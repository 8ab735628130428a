#pragma once

#include <cstddef>

#include "lib/core/arena.hpp"
#include "lib/core/view.hpp"

namespace gradtool {

/// Cuts a view of working memory into pieces, one behind the other, each 256-byte aligned. Made without a view it hands
/// out null pieces and `bytes()` says how large the view is to be. A method takes its pieces in one function, which
/// both planning and work call, so that the size that was planned and the size that is used cannot drift apart.
template <Space S>
class Scratch {
 public:
  /// For planning: all pieces are null.
  Scratch() = default;
  /// For work. Taking more than `all` holds throws Fault::internal.
  explicit Scratch(View<std::byte, S> all) : all_{all}, planning_{all.data() == nullptr && all.size() == 0} {}
  /// For planned(): `total` receives the bytes of all pieces.
  explicit Scratch(std::size_t* total) : total_{total} {}

  template <class T>
  [[nodiscard]] View<T, S> take(std::size_t count) {
    return {reinterpret_cast<T*>(take_bytes(count * sizeof(T)).data()), count};
  }
  [[nodiscard]] View<std::byte, S> take_bytes(std::size_t bytes) {
    const std::size_t first = bytes_;
    bytes_ += Arena<S>::padded_size(bytes);
    if (total_ != nullptr) *total_ = bytes_;
    if (planning_) return {nullptr, bytes};
    expects(bytes_ <= all_.size(), "working memory is smaller than what was planned");
    return all_.part(first, bytes);
  }
  /// The bytes that all pieces taken so far need.
  [[nodiscard]] std::size_t bytes() const { return bytes_; }

 private:
  View<std::byte, S> all_;
  bool planning_ = true;
  std::size_t bytes_ = 0;
  std::size_t* total_ = nullptr;
};

/// Any processor's Scratch for planning.
struct Planning {
  std::size_t* total;
  template <Space S>
  operator Scratch<S>() const {
    return Scratch<S>{total};
  }
};

/// The bytes that the pieces of a `Workspace{arguments..., scratch}` need.
template <class Workspace, class... Arguments>
[[nodiscard]] std::size_t planned(const Arguments&... arguments) {
  std::size_t bytes = 0;
  static_cast<void>(Workspace{arguments..., Planning{&bytes}});
  return bytes;
}

}  // namespace gradtool
