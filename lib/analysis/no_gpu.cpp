// For builds without CUDA. open_analysis_gpu throws, so that the other functions are never called.
#include "lib/analysis/gpu.hpp"
#include "lib/core/error.hpp"

namespace gradtool {
namespace {
[[noreturn]] void lacks_cuda() {
  throw Error{Fault::unavailable, "analyze --device cuda needs CUDA, and this gradtool was built without it"};
}
}  // namespace

class AnalysisGpu {};

std::shared_ptr<AnalysisGpu> open_analysis_gpu(int /*index*/) {
  lacks_cuda();
}
std::unique_ptr<SliceFeed> make_gpu_feed(std::shared_ptr<AnalysisGpu> /*gpu*/, std::size_t /*elements*/,
                                         std::size_t /*rows*/, bool /*second_moment*/) {
  lacks_cuda();
}
std::unique_ptr<Accumulator> start_gpu_spectrum(std::shared_ptr<AnalysisGpu> /*gpu*/, const Scope& /*scope*/,
                                                const Part& /*part*/) {
  lacks_cuda();
}
std::unique_ptr<Accumulator> start_gpu_correlation(std::shared_ptr<AnalysisGpu> /*gpu*/,
                                                   const ComparedWorkers& /*compared*/, const Part& /*part*/,
                                                   const Slicing& /*slicing*/, std::size_t /*samples*/) {
  lacks_cuda();
}
std::unique_ptr<Accumulator> start_gpu_variance(std::shared_ptr<AnalysisGpu> /*gpu*/, const Scope& /*scope*/,
                                                const Part& /*part*/) {
  lacks_cuda();
}
Eigensolver gpu_eigensolver(std::shared_ptr<AnalysisGpu> /*gpu*/) {
  lacks_cuda();
}

}  // namespace gradtool
