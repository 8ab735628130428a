#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace gradtool::fuzz {

/// Decisions drawn from fuzz input, one byte each. Zero bytes, and every decision after the input's end, take the
/// ordinary way, and most byte values do: so inputs make things that are almost right, and each byte has one effect.
class Choices {
 public:
  explicit Choices(std::span<const std::uint8_t> input) : input_{input} {}

  /// 0, the ordinary way, or one of 1 .. `others`, the odd ones.
  unsigned odd(unsigned others) {
    const std::uint8_t byte = next();
    return byte < kOrdinary ? 0 : 1 + (byte - kOrdinary) % others;
  }
  /// 0 .. count - 1, all alike.
  unsigned any(unsigned count) { return next() % count; }
  std::uint8_t next() { return at_ < input_.size() ? input_[at_++] : 0; }

 private:
  static constexpr std::uint8_t kOrdinary = 200;
  std::span<const std::uint8_t> input_;
  std::size_t at_ = 0;
};

}  // namespace gradtool::fuzz
