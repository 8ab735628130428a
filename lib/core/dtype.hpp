#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace gradtool {

/// Element types of the gradient file and of sums on the wire.
enum class Dtype : std::uint8_t { f32, f16, bf16 };

[[nodiscard]] constexpr std::size_t size_of(Dtype dtype) {
  return dtype == Dtype::f32 ? 4 : 2;
}
[[nodiscard]] constexpr std::string_view name_of(Dtype dtype) {
  return dtype == Dtype::f32 ? "f32" : dtype == Dtype::f16 ? "f16" : "bf16";
}

}  // namespace gradtool
