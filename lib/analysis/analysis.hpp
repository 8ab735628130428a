#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lib/core/view.hpp"
#include "lib/io/gradient_file.hpp"
#include "lib/report/table.hpp"

namespace gradtool {

/// The subject of an analysis: the names of the file and the model for the tables, the tensors, and the captured steps.
/// It is plain data, so that an analysis can also be fed without a file.
struct Scope {
  std::string file, model;
  std::vector<TensorInfo> tensors;  ///< those that are studied, in forward order
  std::size_t first_step = 0;       ///< positions of captured steps, both ends included
  std::size_t last_step = 0;
  std::size_t workers = 1;                    ///< W
  std::int64_t micro_batches = 1;             ///< K
  std::int64_t batch_size = 0;                ///< of a worker, in samples; 0: not known
  std::vector<std::int64_t> iterations = {};  ///< of all captured steps, counted from the first; empty: not known
  /// The number of the window (lib/bench/windows.hpp) in which each of all captured steps lies; empty: one window.
  std::vector<std::size_t> window_of = {};

  [[nodiscard]] std::size_t steps() const { return last_step - first_step + 1; }
  /// For each studied step the number of its window; all 0 where `window_of` is empty. Steps of two windows are far
  /// apart in the training, and are not compared as neighbours.
  [[nodiscard]] std::vector<std::size_t> windows() const;
};

class AnalysisGpu;  // lib/analysis/gpu.hpp

/// A slice in the memory of a GPU. Work on it must be enqueued on `queue`, because the memory is reused in the order of
/// that queue.
struct GpuSlice {
  const float* rows = nullptr;  ///< the gradients of this step's workers so far; that of worker w at rows + w * stride
  std::size_t stride = 0;       ///< a multiple of 4; 0 when only the gradient of this worker is kept
  std::size_t elements = 0;
  const float* second_moment = nullptr;  ///< second moment of this worker; null when not needed
  Queue<Space::cuda> queue;
};

/// Elements [first, first + gradient.size()) of one worker's gradient of one tensor at one captured step.
struct Slice {
  std::size_t step = 0;    ///< counted from Scope::first_step, so it starts at 0
  std::size_t worker = 0;  ///< 0 .. W-1
  std::uint64_t first = 0;
  std::span<const float> gradient;
  std::span<const float> second_moment;  ///< as long as `gradient`, or empty when not needed
  std::span<const float> weight{};       ///< of that step, before its update; as long, or empty when not needed
  GpuSlice gpu{};                        ///< used instead of the spans, which are empty, in a study on a GPU
};

/// The elements and steps of one tensor that one accumulator sees. Steps are counted from Scope::first_step.
struct Part {
  std::size_t tensor = 0;  ///< index into Scope::tensors
  std::uint64_t first = 0, count = 0;
  std::size_t first_step = 0, steps = 0;
};

/// The sums that one analysis gathers about one part of one tensor. Owned by one thread at a time.
class Accumulator {
 public:
  virtual ~Accumulator() = default;
  /// Called for every step of the part in ascending order and, within a step, for every worker in ascending order.
  virtual void observe(const Slice& slice) = 0;
  /// Called after the last slice: adds what is in working memory to the result and releases the memory.
  virtual void close() {}
  /// Adds what `other` has gathered about another part. It belongs to the same analysis and tensor, and both are
  /// closed.
  virtual void merge(const Accumulator& other) = 0;
  /// The number of gradient values that are NaN or infinite. Above 0 all other results are meaningless, and the tensor
  /// is skipped.
  [[nodiscard]] std::uint64_t non_finite() const { return non_finite_; }

 protected:
  /// Adds the number of NaN and infinite values to non_finite_. Returns true while there has been none.
  [[nodiscard]] bool check_finite(std::span<const float> values);

  std::uint64_t non_finite_ = 0;
};

/// An accumulator whose result is one struct of sums, which another part's are added to with +=.
template <class Sums>
class Summing : public Accumulator {
 public:
  void merge(const Accumulator& other) override {
    const auto& theirs = dynamic_cast<const Summing<Sums>&>(other);
    non_finite_ += theirs.non_finite_;
    sums_ += theirs.sums_;
  }
  [[nodiscard]] const Sums& sums() const { return sums_; }

 protected:
  Sums sums_;
};

/// One study of a gradient file: `start` as many accumulators as there are parts, `observe` on any threads, `merge`
/// those of one tensor in the order of their parts, `finish` tensor after tensor, then `tables`. Everything but
/// `observe` and `close` is called from one thread.
class Analysis {
 public:
  /// The kind of a part. elements: any range of elements, at all steps. slices: all elements, at one step.
  enum class Unit : std::uint8_t { elements, slices };

  Analysis(Scope scope, Unit unit) : scope_{std::move(scope)}, unit_{unit} {}
  virtual ~Analysis() = default;

  [[nodiscard]] Unit unit() const { return unit_; }
  /// Working memory of one open accumulator for each element of its part.
  [[nodiscard]] virtual std::size_t bytes_per_element() const = 0;
  [[nodiscard]] virtual bool needs_second_moment(std::size_t /*tensor*/) const { return false; }
  [[nodiscard]] virtual bool needs_weight(std::size_t /*tensor*/) const { return false; }

  [[nodiscard]] virtual std::unique_ptr<Accumulator> start(const Part& part) = 0;
  /// Adds the rows of `tensor`. `whole` has gathered all its parts.
  void finish(std::size_t tensor, const Accumulator& whole);
  /// The finished tables, the row `all` included. The first has one row for each tensor. Call once.
  [[nodiscard]] std::vector<Table> tables();

  [[nodiscard]] const Scope& scope() const { return scope_; }

 protected:
  /// An empty table of the result, which stays here. The first one that is made has one row for each tensor.
  [[nodiscard]] Table& make_table(std::string name, std::vector<Column> columns);
  /// One that starts with the columns that all but the first start with, whose cells are long_cells().
  [[nodiscard]] Table& make_long_table(std::string name, std::vector<Column> more);
  /// Adds the rows of a tensor whose values are all finite.
  virtual void add(std::size_t tensor, const Accumulator& whole) = 0;
  /// Adds the rows `all`.
  virtual void add_all() = 0;
  /// Adds the row of a tensor with `non_finite` values that are not finite: the leading cells with the status
  /// `skipped`; all other cells are empty.
  virtual void skip(std::size_t tensor, std::uint64_t non_finite);

  /// The columns with which every per-tensor table starts, and their cells. A null `tensor` means the row `all`.
  [[nodiscard]] static std::vector<Column> leading_columns();
  /// The leading cells of the other tables: those of a tensor, of all tensors of a kind (`tensor` null, its name
  /// `all`), or of all (`tensor` null and `kind` empty).
  [[nodiscard]] std::vector<Cell> long_cells(const TensorInfo* tensor, std::string_view kind = {}) const;
  [[nodiscard]] std::vector<Cell> leading_cells(const TensorInfo* tensor, std::string_view status,
                                                std::string_view message);
  /// The training iteration of the captured step at a position, or an empty cell.
  [[nodiscard]] Cell iteration_at(std::size_t position) const;

 private:
  Scope scope_;
  Unit unit_;
  std::deque<Table> tables_;
  std::uint64_t finished_elements_ = 0;
  std::size_t skipped_ = 0;
};

/// An analysis whose rows follow from one struct of sums, that of a tensor and in the end that of all.
template <class Sums>
class SummingAnalysis : public Analysis {
 public:
  using Analysis::Analysis;

 protected:
  /// A null `tensor` means the rows `all`.
  virtual void add_rows(const TensorInfo* tensor, const Sums& sums) = 0;
  void add(std::size_t tensor, const Accumulator& whole) override {
    const auto& sums = dynamic_cast<const Summing<Sums>&>(whole).sums();
    add_rows(&scope().tensors.at(tensor), sums);
    all_ += sums;
  }
  void add_all() override { add_rows(nullptr, all_); }

  Sums all_;
};

/// At most `most` of the positions 0 .. count - 1, evenly spaced and ascending; with two or more the ends are among
/// them.
[[nodiscard]] std::vector<std::size_t> evenly_spaced(std::size_t most, std::size_t count);

/// A range of elements of a long tensor that an analysis takes for a gradient of its own.
struct Piece {
  std::size_t first = 0, count = 0;
};
/// A tensor of n elements, whole up to 2^18, else cut into equal pieces of at most so many, of which 16 evenly spaced
/// ones are taken where there are more. That bounds the memory and the time of what costs more than a look.
[[nodiscard]] std::vector<Piece> studied_pieces(std::size_t n);

// The analyses. Those that take one run on a GPU unless `gpu` is null.
[[nodiscard]] std::unique_ptr<Analysis> make_spectrum(Scope scope, std::shared_ptr<AnalysisGpu> gpu = nullptr);
/// At most `samples` steps enter the eigenvalue analysis. `taps` is the number of spatial taps of a convolution in one
/// slice; 0 means one row of its kernel (docs/analysis.md).
[[nodiscard]] std::unique_ptr<Analysis> make_correlation(Scope scope, std::size_t samples, std::size_t taps,
                                                         std::shared_ptr<AnalysisGpu> gpu = nullptr);
[[nodiscard]] std::unique_ptr<Analysis> make_variance(Scope scope, std::shared_ptr<AnalysisGpu> gpu = nullptr);

// Each in the file of its name, with its tables in docs/analysis.md.
[[nodiscard]] std::unique_ptr<Analysis> make_transforms(Scope scope);
[[nodiscard]] std::unique_ptr<Analysis> make_distribution(Scope scope);
[[nodiscard]] std::unique_ptr<Analysis> make_steps(Scope scope);
/// `samples` and `taps` as for make_correlation.
[[nodiscard]] std::unique_ptr<Analysis> make_gradiveq(Scope scope, std::size_t samples, std::size_t taps);
[[nodiscard]] std::unique_ptr<Analysis> make_low_rank(Scope scope);
[[nodiscard]] std::unique_ptr<Analysis> make_certainty(Scope scope);
[[nodiscard]] std::unique_ptr<Analysis> make_losses(Scope scope);

/// False in a build without FFTW: make_spectrum on the CPU then yields rows with status `unavailable` and no
/// frequencies.
[[nodiscard]] bool spectrum_available();

/// `numerator / denominator`, or an empty cell when the denominator is 0 or not finite.
[[nodiscard]] Cell ratio_cell(double numerator, double denominator);
/// The value, or an empty cell.
[[nodiscard]] Cell optional_cell(std::optional<double> value);

}  // namespace gradtool
