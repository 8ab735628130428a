#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/select.hpp"
#include "lib/core/view.hpp"

/// Dynamic communication thresholding on the GPU, around a Select: the choice of lib/codecs/dct.cpp, bit for bit.
/// Enqueued; the threshold stays on the device.
namespace gradtool::cuda {

/// The memory of one rank beside its residual; forgotten by filling it with zeros.
struct DctThreshold {
  std::uint32_t pattern = 0;  ///< in use; 0: none yet
  std::uint32_t renewed = 0;  ///< this step found it
};

/// e += gradient, on the numbers of `select`, and chooses what reaches the threshold. With `refresh`, and where there
/// is no threshold or one that is not finite, that is first the k-th largest magnitude, which costs a histogram on the
/// way.
void dct_choose(Queue<Space::cuda> queue, View<const float, Space::cuda> gradient, float* e, std::size_t k,
                bool refresh, const Select& select, DctThreshold* threshold);

}  // namespace gradtool::cuda
