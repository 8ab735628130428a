#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lib/core/dtype.hpp"
#include "lib/core/files.hpp"

namespace gradtool {

/// The description of one parameter tensor. `shape` is the framework's own (OIHW for a convolution).
struct TensorInfo {
  std::string name{};                 ///< unique in the file, e.g. "layer1.0.conv1.weight"
  std::vector<std::int64_t> shape{};  ///< its product is `elements`; empty for a scalar
  std::string kind = "other";         ///< conv, linear, expert, router, embedding, recurrent, norm, bias, other
  std::string layout{};               ///< OIHW, OI, ... or empty when unknown
  std::uint64_t elements = 0;         ///< n
  Dtype dtype = Dtype::f32;           ///< how `gradient` is stored
  bool has_second_moment = false;
  bool has_weight = false;
};

/// The origin of the file: the attributes at its root. Those that are absent stay empty.
struct FileInfo {
  int schema_version = 1;
  bool complete = false;     ///< every step that the writer was to write is there
  bool interrupted = false;  ///< not complete, because the writer was stopped; it closed the file in order
  std::string producer, created, model, dataset, optimizer, command;
  std::string library = {};  ///< that carried the job's collectives, as its framework names it: nccl, gloo, mpi
  std::optional<Dtype> reduce_dtype = {};  ///< in which the job reduces all gradients; empty: each tensor in its own
  std::optional<std::int64_t> seed = {};
  std::int64_t workers = 0;                      ///< W
  std::optional<std::int64_t> batch_size = {};   ///< per worker
  std::int64_t micro_batches = 1;                ///< K
  std::string quantity = "gradient";             ///< what the values are: one of schema::kQuantities
  std::optional<std::int64_t> inner_steps = {};  ///< local steps between two exchanges, of pseudo-gradients
  bool averaged = false;                         ///< the values had been averaged over the workers when captured
  std::optional<std::int64_t> rank = {};         ///< of the job's `ranks`, the one whose values these are
  std::optional<std::int64_t> ranks = {};
};

/// One captured step. Optional columns are NaN or empty when the file has none.
struct StepInfo {
  std::int64_t iteration = 0;
  std::optional<double> epoch{};
  std::optional<double> learning_rate{};
  std::vector<float> loss{};  ///< one value for each worker, or empty
  std::vector<double>
      compute_seconds{};  ///< for each worker the seconds of its forward and backward pass and update, or empty
  /// For each worker 1 where this step's gradients overflowed in mixed precision, else 0; or empty. They hold infinite
  /// values or NaN, and the optimizer skipped the step.
  std::vector<std::uint8_t> overflow{};

  /// For each worker what its gradient counts in the exact result, such as the number of its tokens; or empty, where
  /// all count alike. Finite and at least 0.
  std::vector<double> batch_weight{};

  /// So many iterations directly before this step were captured and left out because they overflowed (UsableSteps).
  std::int64_t overflowed_before = 0;
  /// A window of the source begins here, of which steps were chosen (PartOfSteps): whatever the distance from the step
  /// before, nothing is carried over it.
  bool begins_window = false;

  [[nodiscard]] bool overflowed() const { return std::find(overflow.begin(), overflow.end(), 1) != overflow.end(); }
};

/// How long an iteration computes, in seconds.
struct ComputeTime {
  double seconds = 0.0;          ///< 0: not known
  double low = 0.0, high = 0.0;  ///< of single steps; 0: not known
};
/// The median over steps of the slowest worker's compute_seconds, since the others wait for it. Only values above 0
/// count; nothing when there are none.
[[nodiscard]] std::optional<ComputeTime> captured_compute_time(const std::vector<StepInfo>& steps);

/// When gradients are ready within an iteration, medians over the iterations of a training that were timed. NaN where
/// it is not known. The pass is the last backward pass of an iteration: of its K micro-batches only the last one
/// counts.
struct Readiness {
  std::vector<double> ready = {};  ///< [W, T]: share of the pass that is over when a tensor's gradient is complete
  std::vector<double> backward_share = {};  ///< [W]: the pass as a share of what the worker computes in an iteration
};

/// Consecutive elements of one captured array, of a tensor at a captured step; how many there are says the span that
/// they are read into. A weight is the same on every worker, and has worker 0.
struct ArrayPart {
  enum class Of : std::uint8_t { gradient, second_moment, weight };
  Of of = Of::gradient;
  std::size_t tensor = 0, step = 0, worker = 0;
  std::uint64_t first = 0;
};

/// Gradients of W workers in S steps, to be replayed: a gradient file, or made up. Tensors, steps and workers are named
/// by their positions, from 0.
class GradientSource {
 public:
  virtual ~GradientSource() = default;

  [[nodiscard]] virtual const std::string& path() const = 0;  ///< or what stands for it in messages
  [[nodiscard]] virtual const FileInfo& info() const = 0;
  [[nodiscard]] virtual const std::vector<TensorInfo>& tensors() const = 0;  ///< in forward order
  [[nodiscard]] virtual const std::vector<StepInfo>& steps() const = 0;      ///< S >= 1, only whole steps
  [[nodiscard]] std::size_t workers() const { return static_cast<std::size_t>(info().workers); }  ///< W >= 1
  [[nodiscard]] std::uint64_t elements() const;                                                   ///< sum over tensors

  /// The elements of `part`, converted to float32. f16 and bf16 convert exactly. Throws Fault::internal when the tensor
  /// has no second moment or weight (see TensorInfo).
  virtual void read(const ArrayPart& part, std::span<float> out) const = 0;
  /// Whether read() does nothing but copy values from a file, so that nobody gains by keeping them: the system does.
  [[nodiscard]] virtual bool only_copies(const ArrayPart& /*part*/) const { return false; }

  void read_gradient_part(std::size_t tensor, std::size_t step, std::size_t worker, std::uint64_t first,
                          std::span<float> out) const {
    read({ArrayPart::Of::gradient, tensor, step, worker, first}, out);
  }
  void read_second_moment_part(std::size_t tensor, std::size_t step, std::size_t worker, std::uint64_t first,
                               std::span<float> out) const {
    read({ArrayPart::Of::second_moment, tensor, step, worker, first}, out);
  }
  void read_weight_part(std::size_t tensor, std::size_t step, std::uint64_t first, std::span<float> out) const {
    read({ArrayPart::Of::weight, tensor, step, 0, first}, out);
  }
  /// The whole tensor: out.size() == its elements.
  void read_gradient(std::size_t tensor, std::size_t step, std::size_t worker, std::span<float> out) const;
  void read_second_moment(std::size_t tensor, std::size_t step, std::size_t worker, std::span<float> out) const;
  void read_weight(std::size_t tensor, std::size_t step, std::span<float> out) const;

 protected:
  GradientSource() = default;
  GradientSource(GradientSource&&) noexcept = default;
  GradientSource& operator=(GradientSource&&) noexcept = default;
};

/// Reads a gradient file (docs/gradient-file.md). The file is checked completely when it is opened: one that does not
/// conform throws Fault::data with one sentence that names the file, the object and the problem. Memory does not depend
/// on the size of the data sets: chunks with filters take 16 MiB and four times the largest chunk at most. Not
/// thread-safe, because HDF5 is not; open one reader for each process, and read from one thread.
class GradientReader final : public GradientSource {
 public:
  explicit GradientReader(std::string path);
  ~GradientReader() override;
  GradientReader(GradientReader&&) noexcept;
  GradientReader& operator=(GradientReader&&) noexcept;

  [[nodiscard]] const std::string& path() const override;
  /// The files that have the values of a merged view, in the order of workers; empty for any other file.
  [[nodiscard]] std::vector<std::string> sources() const;
  [[nodiscard]] const FileInfo& info() const override;
  [[nodiscard]] const std::vector<TensorInfo>& tensors() const override;
  [[nodiscard]] const std::vector<StepInfo>& steps() const override;
  /// The contents of /readiness; nothing where the file lacks it.
  [[nodiscard]] const std::optional<Readiness>& readiness() const;

  void read(const ArrayPart& part, std::span<float> out) const override;
  [[nodiscard]] bool only_copies(const ArrayPart& part) const override;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// GradientReader::sources() of the file; empty also when it cannot be read, which is for others to say.
[[nodiscard]] std::vector<std::string> sources_of_view(const std::string& path);

/// Why a file that is not complete is not, and what of it can be used: one sentence without a full stop.
[[nodiscard]] std::string why_incomplete(const GradientReader& reader);

/// The facts that a writer needs to know before the first step.
struct WriterOptions {
  FileInfo info;  ///< `workers` must be >= 1; `producer` and `created` are filled in when empty
  std::vector<TensorInfo>
      tensors;  ///< forward order; name, shape, kind, layout, dtype and the two `has_` flags are used
  bool with_epoch = true;
  bool with_learning_rate = true;
  bool with_loss = true;
  bool with_compute_seconds = false;
  bool with_overflow = false;
  bool with_batch_weight = false;
  bool with_readiness = false;
  bool one_step = false;  ///< the file will have one step: many small tensors are then written several times as fast
  bool all_or_nothing = false;  ///< the caller removes the file when a write fails: messages promise no steps of it
};

/// Throws Fault::usage when `path` is there and must not be replaced: it is no plain file, or a GradientWriter of
/// another process or of this one is writing it. Throws Fault::backend when it cannot be opened.
void expect_replaceable(const std::string& path);

/// The place to write a gradient file that may replace another one: beside it, under a random name, until it is whole,
/// or until a file that grows has its first step. A symbolic link stays, and what it points to is replaced.
class ReplacingFile {
 public:
  /// Makes the parent folders. The file is written at `path` at once where `replace` is false or nothing is there.
  /// Throws as expect_replaceable() and ParentFolders do.
  ReplacingFile(const std::string& path, bool replace);
  /// Unless commit() was called, removes what was written beside `path`, which stays as it was, and folders that were
  /// made and are empty.
  ~ReplacingFile();
  ReplacingFile(const ReplacingFile&) = delete;
  ReplacingFile& operator=(const ReplacingFile&) = delete;

  /// The name under which the file is to be created.
  [[nodiscard]] const std::string& written_to() const { return written_to_; }
  [[nodiscard]] bool replaces() const { return written_to_ != path_; }
  /// Calls `write` with written_to(). What it throws of a file with that name is thrown of the one that the user knows,
  /// which stays as it was.
  void write(const std::function<void(const std::string&)>& write) const;
  /// Gives the file, which must be closed or flushed, its name, once the disk has it; what is written later goes to the
  /// same file. Throws Fault::backend when that fails.
  void commit();

 private:
  std::string path_, target_, written_to_;
  std::string temporary_;  ///< the random name, also after it was given up; empty where none was needed
  ParentFolders folders_;
};

/// Writes a gradient file step by step. Between `begin_step` and `end_step` every tensor of every worker is put once.
/// After `end_step` returns, that step is readable even if the process is killed (the file is flushed; `complete` is 0
/// until `close`). Memory does not grow with the number of steps. Not thread-safe.
class GradientWriter {
 public:
  /// Creates `path`. Throws Fault::usage when it exists already or when another process replaces it meanwhile, and
  /// Fault::backend when it cannot be made; then nothing is left behind.
  GradientWriter(std::string path, const WriterOptions& options);
  /// Closes without setting `complete` when close() was not called. Without a whole step the file is removed, because
  /// it could not be read and would stand in the way.
  ~GradientWriter();
  GradientWriter(GradientWriter&&) noexcept;
  GradientWriter& operator=(GradientWriter&&) noexcept;

  void begin_step(const StepInfo& step);
  /// values.size() == elements of the tensor; rounded to nearest even when the tensor's dtype is f16 or bf16.
  void put_gradient(std::size_t tensor, std::size_t worker, std::span<const float> values);
  /// A part of a gradient that begins at element `first`, for tensors larger than memory: bits of the tensor's dtype in
  /// the machine's byte order, which are stored as they are. The parts of a gradient are put in order, without gaps.
  void put_gradient_bits(std::size_t tensor, std::size_t worker, std::uint64_t first, std::span<const std::byte> bits);
  void put_second_moment(std::size_t tensor, std::size_t worker, std::span<const float> values);
  void put_weight(std::size_t tensor, std::span<const float> values);
  void end_step();
  /// Puts what is known now about all iterations so far in the place of what was put before, which was nothing at
  /// first. Only with WriterOptions::with_readiness.
  void put_readiness(const Readiness& readiness);

  [[nodiscard]] std::size_t steps() const;            ///< whole steps written
  [[nodiscard]] std::uint64_t bytes_written() const;  ///< raw bytes of data put so far
  /// Marks the file complete and closes it. No call may follow.
  void close();
  /// Closes the file of a writer that was stopped before its last step: marks it interrupted, so that a reader can tell
  /// it from that of a writer that died. A step that was begun is dropped. Without a whole step there is nothing to
  /// mark, and the file is removed as above. No call may follow.
  void close_early();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Non-finite values in a file: where, and how many.
struct NonFinite {
  std::size_t tensor;
  std::uint64_t count;       ///< values that are NaN or infinite, over all steps and workers
  std::size_t first_step;    ///< position of the first step that has one
  std::size_t first_worker;  ///< and the first worker in it
};
/// One entry for each tensor that has non-finite gradients, in tensor order. Reads every gradient once, in parts of at
/// most 4 MiB; `progress`, when given, is called with (values read, values in all) after each tensor of a step.
using ReadProgress = std::function<void(std::uint64_t, std::uint64_t)>;
[[nodiscard]] std::vector<NonFinite> find_non_finite(const GradientSource& reader, const ReadProgress& progress = {});
/// Above this the workers' gradients are taken to be averaged already (worker_likeness).
constexpr double kAveragedLikeness = 0.999;
/// How alike the gradients of the first `workers` workers are: the smallest cosine between worker 0's and another
/// one's, over all tensors, of the first, the middle and the last step; 1 where they are the same. Different
/// mini-batches give far less, even with large batches. 0 for one worker, and where a gradient is zero or not finite.
[[nodiscard]] double worker_likeness(const GradientSource& reader, int workers);
/// The warning to a user of gradients so alike: a clause without a full stop; empty where they are not averaged.
/// `stated` says that the file's attribute `averaged` is 1, which needs no likeness.
[[nodiscard]] std::string averaged_warning(double likeness, bool stated);
/// How many values of the second moments and weights are NaN or infinite; reads all of them.
[[nodiscard]] std::uint64_t count_non_finite_state(const GradientReader& reader);

}  // namespace gradtool
