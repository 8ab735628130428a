#pragma once

#include <cstddef>
#include <span>
#include <string_view>
#include <type_traits>
#include <vector>

#include "lib/core/error.hpp"
#include "lib/core/view.hpp"

namespace gradtool {

/// Is shown, block by block, all that an object keeps between training steps: saves it, or puts back what was saved. An
/// object shows the same blocks in the same order every time, and a new object of the same kind and size shows blocks
/// of the same names and sizes.
class StateVisitor {
 public:
  virtual ~StateVisitor() = default;
  StateVisitor(const StateVisitor&) = delete;
  StateVisitor& operator=(const StateVisitor&) = delete;

  /// `name` is for messages; it need not be unique.
  virtual void block(std::string_view name, HostView<std::byte> bytes) = 0;
  /// True when blocks are written to: afterwards the object renews what follows from them.
  [[nodiscard]] virtual bool restores() const = 0;

  /// A block of values. Throws Fault::unavailable for those in the memory of a GPU.
  template <class T, Space S>
  void values(std::string_view name, View<T, S> view) {
    static_assert(std::is_trivially_copyable_v<T>);
    if constexpr (S == Space::host) {
      block(name, as_writable_bytes(view));
    } else {
      throw Error{Fault::unavailable, "what is kept between steps cannot be saved from the memory of a GPU"};
    }
  }
  template <class T>
  void values(std::string_view name, std::vector<T>& vector) {
    values(name, HostView<T>{vector.data(), vector.size()});
  }
  template <class T>
  void value(std::string_view name, T& number) {
    values(name, HostView<T>{&number, 1});
  }

 protected:
  StateVisitor() = default;
};

/// Appends blocks to `out`: for each the length of its name (8 bytes, of this machine's order), its name, its size (8
/// bytes), its bytes.
class StateSaver final : public StateVisitor {
 public:
  explicit StateSaver(std::vector<std::byte>& out) : out_{out} {}
  void block(std::string_view name, HostView<std::byte> bytes) override;
  [[nodiscard]] bool restores() const override { return false; }

 private:
  std::vector<std::byte>& out_;
};

/// Puts back what a StateSaver has written. Throws Fault::data, naming the block, where names or sizes differ from what
/// was saved.
class StateLoader final : public StateVisitor {
 public:
  /// `saved` must outlive the loader.
  explicit StateLoader(std::span<const std::byte> saved) : left_{saved} {}
  void block(std::string_view name, HostView<std::byte> bytes) override;
  [[nodiscard]] bool restores() const override { return true; }
  /// To be called last. Throws Fault::data when blocks are left over.
  void finish() const;

 private:
  [[nodiscard]] std::span<const std::byte> take(std::size_t count);
  std::span<const std::byte> left_;
};

/// All that `object` shows with visit_state().
template <class Object>
[[nodiscard]] std::vector<std::byte> save_state(Object& object) {
  std::vector<std::byte> out;
  StateSaver saver{out};
  object.visit_state(saver);
  return out;
}
/// The way back, into the same object or a new one like it. Throws as StateLoader; the object is then half restored.
template <class Object>
void restore_state(Object& object, std::span<const std::byte> saved) {
  StateLoader loader{saved};
  object.visit_state(loader);
  loader.finish();
}

}  // namespace gradtool
