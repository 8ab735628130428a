#include "kernels/cuda/block_kernels.hpp"

namespace gradtool::cuda {

GT_BLOCK_FORMAT(law::Fp8Format<law::kE4M3>);
GT_BLOCK_FORMAT(law::Fp8Format<law::kE5M2>);

}  // namespace gradtool::cuda
