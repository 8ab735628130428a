// PowerSGD on a GPU.
#include <memory>

#include "lib/methods/powersgd/cuda_steps.hpp"
#include "lib/methods/powersgd/reducer.hpp"

namespace gradtool {
namespace {

std::unique_ptr<Reducer<Space::cuda>> make_gpu_reducer(const ReducerSetup<Space::cuda>& setup) {
  return std::make_unique<PowerSgdReducer<Space::cuda, CudaLowRankSteps>>(setup);
}

}  // namespace

extern constinit const GpuFactories powersgd_gpu{.reducer = make_gpu_reducer};

}  // namespace gradtool
