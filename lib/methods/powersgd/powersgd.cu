// PowerSGD on a GPU.
#include <memory>

#include "lib/codecs/cuda_low_rank_steps.hpp"
#include "lib/methods/powersgd/reducer.hpp"

namespace gradtool {
namespace {}  // namespace

extern constinit const GpuFactories powersgd_gpu{
    .reducer = make_method_reducer<Space::cuda, PowerSgdReducer<Space::cuda, CudaLowRankSteps>>};

}  // namespace gradtool
