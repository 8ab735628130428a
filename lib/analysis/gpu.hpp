#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "lib/analysis/analysis.hpp"
#include "lib/analysis/principal.hpp"
#include "lib/analysis/slices.hpp"

/// The analyses on a GPU. Work that reads all elements runs on the GPU; the rest is the same code as on the CPU. The
/// functions are defined in lib/analysis/cuda. In a build without CUDA open_analysis_gpu throws Fault::unavailable, so
/// that nothing else here can be called.
namespace gradtool {

struct ComparedWorkers;  // lib/analysis/correlation.hpp

/// Buffers that the slices of a part are read to, and the form in which accumulators see them: in host memory, or on a
/// GPU, to which they are copied while the next slice is read.
class SliceFeed {
 public:
  virtual ~SliceFeed() = default;
  /// Host memory into which the caller reads the part's elements of the next slice. second_moment() is empty when
  /// second moments are not needed.
  [[nodiscard]] virtual std::span<float> gradient() = 0;
  [[nodiscard]] virtual std::span<float> second_moment() = 0;
  /// Buffer for the weights, read once for all workers of a step.
  [[nodiscard]] virtual std::span<float> weight() { return {}; }
  /// The slice that was read last. It is valid until the next slice is handed out; on a GPU until the next step is.
  [[nodiscard]] virtual Slice slice(std::size_t step, std::size_t worker, std::uint64_t first) = 0;
};

/// A GPU, a stream on it, and the memory that analyses work in. It serves one study at a time, from one thread.
class AnalysisGpu;

/// Makes GPU `index` the calling thread's current one. Throws Fault::unavailable, in one sentence, when there is none.
[[nodiscard]] std::shared_ptr<AnalysisGpu> open_analysis_gpu(int index);

[[nodiscard]] std::unique_ptr<SliceFeed> make_gpu_feed(std::shared_ptr<AnalysisGpu> gpu, std::size_t elements,
                                                       std::size_t rows, bool second_moment);
[[nodiscard]] std::unique_ptr<Accumulator> start_gpu_spectrum(std::shared_ptr<AnalysisGpu> gpu, const Scope& scope,
                                                              const Part& part);
[[nodiscard]] std::unique_ptr<Accumulator> start_gpu_correlation(std::shared_ptr<AnalysisGpu> gpu,
                                                                 const ComparedWorkers& compared, const Part& part,
                                                                 const Slicing& slicing, std::size_t samples);
[[nodiscard]] std::unique_ptr<Accumulator> start_gpu_variance(std::shared_ptr<AnalysisGpu> gpu, const Scope& scope,
                                                              const Part& part);
/// An eigensolver that uses cuSOLVER instead of LAPACK.
[[nodiscard]] Eigensolver gpu_eigensolver(std::shared_ptr<AnalysisGpu> gpu);

}  // namespace gradtool
