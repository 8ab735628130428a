#pragma once

#include <algorithm>
#include <array>
#include <string_view>

namespace gradtool {

/// What a method must move at least beside the gradient, the payload and, decoding, the output: bytes an element.
struct LeastTraffic {
  std::string_view codec;
  double memory = 0.0;  ///< of earlier steps, read and written; side inputs read; the gradient read once more
  bool sparse = false;  ///< decoding touches the output only where there are values: no share of the copy is stated
};

/// Methods that the table does not name have no memory and fill their output.
inline LeastTraffic least_traffic_of(std::string_view codec) {
  static constexpr std::array kTable{
      LeastTraffic{.codec = "adacomp", .memory = 8.0, .sparse = true},  // residual
      LeastTraffic{.codec = "dct", .memory = 8.0},                      // momentum
      LeastTraffic{.codec = "dgc", .memory = 16.0, .sparse = true},     // u and v
      LeastTraffic{.codec = "iwp", .memory = 12.0},                     // what is held; weights
      LeastTraffic{.codec = "randomk", .sparse = true},
      LeastTraffic{.codec = "sidco", .sparse = true},
      LeastTraffic{.codec = "strom", .sparse = true},
      LeastTraffic{.codec = "terngrad", .memory = 4.0},  // codes come after the scale
      LeastTraffic{.codec = "topk", .sparse = true},
      LeastTraffic{.codec = "vgc", .memory = 20.0, .sparse = true},  // r and v; second moments
  };
  const auto* found =
      std::find_if(kTable.begin(), kTable.end(), [&](const LeastTraffic& t) { return t.codec == codec; });
  return found == kTable.end() ? LeastTraffic{.codec = codec} : *found;
}

}  // namespace gradtool
