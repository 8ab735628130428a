#pragma once

#include <cstdint>

#include "kernels/block_format.hpp"
#include "kernels/symmetric_integer.hpp"

namespace gradtool::format {

template <std::uint32_t Bits>
using QgzFormat = FloatScaled<TwosComplement<Bits>>;

}  // namespace gradtool::format
