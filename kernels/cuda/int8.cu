#include "kernels/cuda/block_kernels.hpp"

namespace gradtool::cuda {

std::size_t blocks_scratch_bytes(const law::BlockLayout& layout) {
  return layout.block > schedule::kPiece ? 4 * layout.blocks() : 0;
}

GT_BLOCK_FORMAT(law::FloatScaled<law::SymmetricInt<8>>);

}  // namespace gradtool::cuda
