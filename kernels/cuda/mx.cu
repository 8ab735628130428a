#include "kernels/cuda/block_kernels.hpp"

namespace gradtool::cuda {

GT_BLOCK_FORMAT(law::MxFormat<law::kE4M3>);
GT_BLOCK_FORMAT(law::MxFormat<law::kE5M2>);
GT_BLOCK_FORMAT(law::MxFormat<law::kE3M2>);
GT_BLOCK_FORMAT(law::MxFormat<law::kE2M3>);
GT_BLOCK_FORMAT(law::MxFormat<law::kE2M1>);
GT_BLOCK_FORMAT(law::MxFormat<law::SmallFixed{}>);

}  // namespace gradtool::cuda
