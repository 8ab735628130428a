#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "lib/analysis/accumulators.hpp"
#include "lib/analysis/principal.hpp"
#include "lib/analysis/slice_feed.hpp"
#include "lib/analysis/slicing.hpp"

/// The analyses on a GPU. What reads all elements runs there; what is left is what the CPU does as well. Defined in
/// lib/analysis/cuda; in builds without CUDA open_analysis_gpu is all that can be called, and says so.
namespace gradtool {

/// A GPU, a stream of it, and the memory that analyses work in: one study at a time, from one thread.
class AnalysisGpu;

/// Makes GPU `index` the calling thread's. Throws Fault::unavailable, in one sentence, where there is none.
[[nodiscard]] std::shared_ptr<AnalysisGpu> open_analysis_gpu(int index);

[[nodiscard]] std::unique_ptr<SliceFeed> make_gpu_feed(std::shared_ptr<AnalysisGpu> gpu, std::size_t elements,
                                                       std::size_t rows, bool second_moment);
[[nodiscard]] std::unique_ptr<Accumulator> start_gpu_spectrum(std::shared_ptr<AnalysisGpu> gpu, const Scope& scope,
                                                              const Part& part);
[[nodiscard]] std::unique_ptr<Accumulator> start_gpu_correlation(std::shared_ptr<AnalysisGpu> gpu, const Scope& scope,
                                                                 const Part& part, const Slicing& slicing,
                                                                 std::size_t samples);
[[nodiscard]] std::unique_ptr<Accumulator> start_gpu_variance(std::shared_ptr<AnalysisGpu> gpu, const Scope& scope,
                                                              const Part& part);
/// cuSOLVER in place of LAPACK.
[[nodiscard]] Eigensolver gpu_eigensolver(std::shared_ptr<AnalysisGpu> gpu);

}  // namespace gradtool
