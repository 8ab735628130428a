#include "kernels/cuda/block_kernels.hpp"

namespace gradtool::cuda {

GT_BLOCK_FORMAT(law::FloatScaled<law::TwosComplement<4>>);
GT_BLOCK_FORMAT(law::FloatScaled<law::TwosComplement<8>>);

}  // namespace gradtool::cuda
