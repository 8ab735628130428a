#pragma once

#include "kernels/block_format.hpp"
#include "kernels/symmetric_integer.hpp"

namespace gradtool::format {

using Int8Format = FloatScaled<SymmetricInt<8>>;

}  // namespace gradtool::format
