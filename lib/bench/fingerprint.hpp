#pragma once

#include <array>
#include <cstddef>
#include <span>

namespace gradtool {

/// A hash of bytes, as two numbers that a double holds exactly: for comparing ranks of one run with each
/// other. Eight lanes of 64-bit words are hashed independently, so that the processor works on all at once. Every round
/// is a bijection of the lane, so one changed word always changes the hash; the rotation keeps changed signs from
/// cancelling each other.
[[nodiscard]] std::array<double, 2> fingerprint(std::span<const std::byte> bytes);
inline std::array<double, 2> fingerprint(std::span<const float> values) {
  return fingerprint(std::as_bytes(values));
}

}  // namespace gradtool
