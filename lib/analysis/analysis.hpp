#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lib/core/view.hpp"
#include "lib/io/gradient_file.hpp"
#include "lib/report/table.hpp"

namespace gradtool {

/// What is studied: the file's identity for the tables, the tensors, and the captured steps. Plain data, so that an
/// analysis can be fed without a file.
struct Scope {
  std::string file, model;
  std::vector<TensorInfo> tensors;  ///< those that are studied, in forward order
  std::size_t first_step = 0;       ///< positions of captured steps, both ends included
  std::size_t last_step = 0;
  std::size_t workers = 1;         ///< W
  std::int64_t micro_batches = 1;  ///< K

  [[nodiscard]] std::size_t steps() const { return last_step - first_step + 1; }
};

class AnalysisGpu;  // lib/analysis/gpu.hpp

/// What a slice is on a GPU. Work on it goes to `queue`, in whose order the memory is used again.
struct GpuSlice {
  const float* rows = nullptr;  ///< the gradients of this step's workers so far: worker w's at rows + w * stride
  std::size_t stride = 0;       ///< a multiple of 4; 0 where only this worker's is kept
  std::size_t elements = 0;
  const float* second_moment = nullptr;  ///< this worker's; null when the file has none
  Queue<Space::cuda> queue;
};

/// Elements [first, first + gradient.size()) of one worker's gradient of one tensor at one captured step.
struct Slice {
  std::size_t step = 0;    ///< counted from Scope::first_step, so it starts at 0
  std::size_t worker = 0;  ///< 0 .. W-1
  std::uint64_t first = 0;
  std::span<const float> gradient;
  std::span<const float> second_moment;  ///< as long as `gradient`, or empty when the file has none
  GpuSlice gpu{};                        ///< in a study on a GPU, where both spans are empty
};

/// The elements and steps of one tensor that one accumulator sees. Steps are counted from Scope::first_step.
struct Part {
  std::size_t tensor = 0;  ///< index into Scope::tensors
  std::uint64_t first = 0, count = 0;
  std::size_t first_step = 0, steps = 0;
};

/// What one analysis has gathered about one part of one tensor. Owned by one thread at a time.
class Accumulator {
 public:
  virtual ~Accumulator() = default;
  /// Called for every step of the part in ascending order and, within a step, for every worker in ascending order.
  virtual void observe(const Slice& slice) = 0;
  /// After the last slice: folds working memory into the result and releases it.
  virtual void close() {}
  /// Adds what `other`, of the same analysis and tensor and closed as this one is, has gathered about another part.
  virtual void merge(const Accumulator& other) = 0;
  /// NaN and infinite gradient values seen. Above 0 every other result is meaningless, and the tensor is skipped.
  [[nodiscard]] std::uint64_t non_finite() const { return non_finite_; }

 protected:
  std::uint64_t non_finite_ = 0;
};

/// One study of a gradient file: `start` as many accumulators as there are parts, `observe` on any threads, `merge`
/// those of one tensor in the order of their parts, `finish` tensor after tensor, then `tables`. Everything but
/// `observe` and `close` is called from one thread.
class Analysis {
 public:
  /// elements: a part is any range of elements, at all steps. slices: a part is all elements, at one step.
  enum class Unit : std::uint8_t { elements, slices };

  explicit Analysis(Scope scope) : scope_{std::move(scope)} {}
  virtual ~Analysis() = default;

  [[nodiscard]] virtual std::string_view name() const = 0;
  [[nodiscard]] virtual Unit unit() const = 0;
  /// Working memory of one open accumulator for each element of its part.
  [[nodiscard]] virtual std::size_t bytes_per_element() const = 0;
  [[nodiscard]] virtual bool needs_second_moment(std::size_t /*tensor*/) const { return false; }

  [[nodiscard]] virtual std::unique_ptr<Accumulator> start(const Part& part) = 0;
  /// `whole` has seen all parts of `tensor`. Adds its rows.
  virtual void finish(std::size_t tensor, const Accumulator& whole) = 0;
  /// The finished tables, the row `all` included. The first has one row for each tensor. Call once.
  [[nodiscard]] virtual std::vector<Table> tables() = 0;

  [[nodiscard]] const Scope& scope() const { return scope_; }

 protected:
  /// The columns that every per-tensor table starts with, and their cells; `tensor` null is the row `all`.
  [[nodiscard]] static std::vector<Column> leading_columns();
  [[nodiscard]] std::vector<Cell> leading_cells(const TensorInfo* tensor, std::string_view status,
                                                std::string_view message);
  /// The same for a tensor with `non_finite` values: status `skipped`, every other cell empty.
  void add_skipped(Table& table, std::size_t tensor, std::uint64_t non_finite);

 private:
  Scope scope_;
  std::uint64_t finished_elements_ = 0;
  std::size_t skipped_ = 0;
};

// The three analyses. `gpu` null: on the CPU.
[[nodiscard]] std::unique_ptr<Analysis> make_spectrum(Scope scope, std::shared_ptr<AnalysisGpu> gpu = nullptr);
/// `samples`: at most this many steps enter the eigenvalue analysis; `taps`: taps of a convolution in one slice, 0 for
/// one row of its kernel (docs/analysis.md).
[[nodiscard]] std::unique_ptr<Analysis> make_correlation(Scope scope, std::size_t samples, std::size_t taps,
                                                         std::shared_ptr<AnalysisGpu> gpu = nullptr);
[[nodiscard]] std::unique_ptr<Analysis> make_variance(Scope scope, std::shared_ptr<AnalysisGpu> gpu = nullptr);

/// False in a build without FFTW: make_spectrum on the CPU then yields rows with status `unavailable` and no
/// frequencies.
[[nodiscard]] bool spectrum_available();

/// `numerator / denominator`, or an empty cell when the denominator is 0 or not finite.
[[nodiscard]] Cell ratio_cell(double numerator, double denominator);

}  // namespace gradtool
