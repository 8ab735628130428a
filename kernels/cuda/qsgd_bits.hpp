#pragma once

#include <cstdint>

#include "lib/core/error.hpp"

namespace gradtool::cuda {

/// Calls f.operator()<Bits>() for bits from 2 to 8: what a qsgd code may have.
template <std::uint32_t Bits = 2, class F>
void with_bits(std::uint32_t bits, const F& f) {
  if constexpr (Bits > 8) {
    expects(false, "qsgd: bits is 2 to 8");
  } else if (bits == Bits) {
    f.template operator()<Bits>();
  } else {
    with_bits<Bits + 1>(bits, f);
  }
}

}  // namespace gradtool::cuda
