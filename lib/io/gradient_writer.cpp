#include "lib/io/gradient_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <limits>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "lib/core/dtype.hpp"
#include "lib/core/utf8.hpp"
#include "lib/io/attributes.hpp"
#include "lib/io/hdf5.hpp"
#include "lib/io/kill_safe_driver.hpp"
#include "lib/io/layout.hpp"
#include "lib/io/readiness.hpp"
#include "lib/io/schema.hpp"
#include "lib/io/value_set.hpp"
#include "lib/io/writer_mark.hpp"

namespace gradtool::hdf5 {
namespace {

/// The columns of /steps; those that WriterOptions switches off are absent.
struct WritableSteps {
  GrowingSet iteration;
  std::optional<GrowingSet> epoch, learning_rate, loss, compute_seconds, overflow, batch_weight;
};

/// The data sets of one tensor.
struct WritableTensor {
  std::uint64_t elements;
  Dtype dtype;
  ValueSet gradient;
  std::optional<ValueSet> second_moment, weight;
};

void check_tensor(const TensorInfo& tensor, std::set<std::string>& names) {
  expects(!tensor.name.empty() && tensor.name.size() <= schema::kMaxName && is_utf8(tensor.name) &&
              !has_control(tensor.name),
          "a tensor's name must be 1 to 1024 bytes of UTF-8 without control characters");
  expects(names.insert(tensor.name).second, "two tensors of a gradient file have the same name");
  expects(std::find(schema::kKinds.begin(), schema::kKinds.end(), tensor.kind) != schema::kKinds.end(),
          "a tensor's kind must be conv, linear, expert, router, embedding, recurrent, norm, bias or other");
  expects(tensor.shape.size() <= schema::kMaxRank, "a tensor has more than 32 dimensions");
  static_cast<void>(element_count(tensor.shape));
}

GrowingSet make_column(hid_t group, const char* name, hid_t type) {
  constexpr std::uint64_t kRows = 128;  // rows of a chunk, 1 KiB of doubles
  return {group, name, type, {}, {kRows}};
}

/// Throws Fault::internal when a file with these options would not conform to docs/gradient-file.md. It is called
/// before anything is created, so that a mistake leaves no file behind.
void check_options(const WriterOptions& options) {
  expects(options.info.workers >= 1 && options.info.workers <= schema::kMaxWorkers,
          "a gradient file needs 1 to 1048576 workers");
  expects(!options.tensors.empty() && options.tensors.size() <= schema::kMaxTensors,
          "a gradient file needs 1 to 1048576 tensors");
  expects(std::find(schema::kQuantities.begin(), schema::kQuantities.end(), options.info.quantity) !=
              schema::kQuantities.end(),
          "a gradient file has no such quantity");
  std::set<std::string> names;
  for (const TensorInfo& tensor : options.tensors) check_tensor(tensor, names);
}

/// Creates `path`. Throws Fault::usage when it exists already and Fault::backend when it cannot be created. `error`
/// receives the errno of the first write that fails later; see kill_safe_access.
File create_file(const std::string& path, int& error) {
  if (std::error_code status; std::filesystem::exists(std::filesystem::symlink_status(path, status))) {
    throw Error{Fault::usage, "'" + path + "' exists already; remove it or choose another name"};
  }
  const auto access = kill_safe_access(error);
  // The file is in the format of HDF5 1.10, whichever version is linked. Single-writer mode needs that format too.
  checked(H5Pset_libver_bounds(access.get(), H5F_LIBVER_V110, H5F_LIBVER_V110), "prepare HDF5");
  // The cache of metadata stays small. HDF5 would let it grow to 32 MB, and closing a file looks through all of it
  // again after each piece that others wait for: 14 s for 25,000 tensors.
  H5AC_cache_config_t cache{};
  cache.version = H5AC__CURR_CACHE_CONFIG_VERSION;
  checked(H5Pget_mdc_config(access.get(), &cache), "prepare HDF5");
  cache.set_initial_size = true;
  cache.initial_size = cache.max_size = std::size_t{4} << 20;
  cache.incr_mode = H5C_incr__off;
  cache.flash_incr_mode = H5C_flash_incr__off;
  checked(H5Pset_mdc_config(access.get(), &cache), "prepare HDF5");
  const auto creation = group_properties(H5P_FILE_CREATE);
  // File space is managed in pages of 4 KiB. A piece of metadata then never crosses a page of the system's cache; a
  // kill can cut a write off only between two such pages.
  checked(H5Pset_file_space_strategy(creation.get(), H5F_FSPACE_STRATEGY_PAGE, false, 1), "prepare HDF5");
  File file{H5Fcreate(path.c_str(), H5F_ACC_EXCL, creation.get(), access.get())};
  if (file) return file;
  // HDF5 does not say why: the system does.
  const std::string why = last_reason();
  const int descriptor = open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  const int refused = errno;
  if (descriptor >= 0) ::close(descriptor), unlink(path.c_str());
  throw Error{Fault::backend, "cannot create '" + path + "': " + (descriptor >= 0 ? why : std::strerror(refused))};
}

WritableSteps create_steps(hid_t file, const WriterOptions& options) {
  const auto group = make_group(file, "steps");
  WritableSteps steps{make_column(group.get(), "iteration", H5T_STD_I64LE), {}, {}, {}, {}, {}, {}};
  if (options.with_epoch) steps.epoch = make_column(group.get(), "epoch", H5T_IEEE_F64LE);
  if (options.with_learning_rate) steps.learning_rate = make_column(group.get(), "learning_rate", H5T_IEEE_F64LE);
  const auto make_by_worker = [&](const char* name, hid_t type, std::size_t size) {
    const auto workers = static_cast<std::uint64_t>(options.info.workers);
    const auto chunk = chunk_shape(1, workers, size);
    return GrowingSet{group.get(), name, type, {workers}, {chunk.front(), chunk.back()}};
  };
  if (options.with_loss) steps.loss = make_by_worker("loss", H5T_IEEE_F32LE, sizeof(float));
  if (options.with_compute_seconds)
    steps.compute_seconds = make_by_worker("compute_seconds", H5T_IEEE_F64LE, sizeof(double));
  if (options.with_overflow) steps.overflow = make_by_worker("overflow", H5T_STD_U8LE, 1);
  if (options.with_batch_weight) steps.batch_weight = make_by_worker("batch_weight", H5T_IEEE_F64LE, sizeof(double));
  return steps;
}

std::vector<WritableTensor> create_tensors(hid_t file, const WriterOptions& options, int& error) {
  int* const placed = options.one_step ? &error : nullptr;
  const auto workers = static_cast<std::uint64_t>(options.info.workers);
  std::vector<WritableTensor> tensors;
  const auto parent = make_group(file, "tensors");
  for (const TensorInfo& tensor : options.tensors) {
    const auto group = make_tensor(parent.get(), tensors.size(), options.tensors.size(), tensor);
    const std::uint64_t n = element_count(tensor.shape);
    WritableTensor made{n, tensor.dtype, {file, group.get(), "gradient", tensor.dtype, workers, n, placed}, {}, {}};
    // Second moments stay float32 because squares of small gradients underflow in 16 bits, and weights because they are
    // the exact state of the training.
    if (tensor.has_second_moment)
      made.second_moment.emplace(file, group.get(), "second_moment", Dtype::f32, workers, n, placed);
    if (tensor.has_weight) made.weight.emplace(file, group.get(), "weight", Dtype::f32, 0, n, placed);
    tensors.push_back(std::move(made));
  }
  return tensors;
}

}  // namespace
}  // namespace gradtool::hdf5

namespace gradtool {
namespace {

/// Records, for values that are put once in every step (one slot for each worker), which of them this step has already.
struct Slots {
  std::vector<bool> filled;

  void fill(std::size_t slot) {
    expects(slot < filled.size(), "the gradient file has no such worker");
    expects(!filled[slot], "a tensor was put twice in one step");
    filled[slot] = true;
  }
  [[nodiscard]] bool full() const { return std::find(filled.begin(), filled.end(), false) == filled.end(); }
  void clear() { filled.assign(filled.size(), false); }
};

struct TensorSink {
  hdf5::WritableTensor sets;
  Slots gradients, second_moments, weights;
  std::vector<std::uint64_t> parts;  ///< elements put so far of each worker's gradient, where it is put in parts

  TensorSink(hdf5::WritableTensor made, std::size_t workers) : sets{std::move(made)} {
    gradients.filled.resize(workers);
    parts.resize(workers);
    if (sets.second_moment) second_moments.filled.resize(workers);
    if (sets.weight) weights.filled.resize(1);
  }
};

}  // namespace

struct GradientWriter::Impl {
  std::string path;
  std::size_t workers = 0;
  bool all_or_nothing = false, one_step = false;
  int write_error = 0;  ///< set by the file driver, see kill_safe_access; must outlive the file
  hdf5::File file;
  int descriptor = -1;  ///< of `file`, to whom it belongs; -1 before it is created and once it is closed
  std::optional<hdf5::WritableSteps> columns;
  std::optional<hdf5::ReadinessSets> readiness;
  std::vector<TensorSink> tensors;
  std::optional<StepInfo> current;
  std::size_t steps = 0;
  std::uint64_t bytes = 0;
  std::size_t unflushed = 0;  ///< rows that were put since the last flush

  Impl() = default;
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;
  ~Impl();
  void flush() const;
  void count_row(std::size_t row_bytes);
  void expect_written() const;
  TensorSink& sink(std::size_t tensor, std::size_t values);
  void append_columns();
  void close_with(const char* mark);
};

GradientWriter::Impl::~Impl() {
  if (steps == 0 && descriptor >= 0 && is_file_at(descriptor, path)) unlink(path.c_str());
}

/// Counts a row that was put, and flushes after every few thousand: a flush of n rows takes a time that grows with n^2,
/// 20 s for 25,000 and hours for 200,000, because HDF5 looks through all dirty metadata again after each piece that
/// others wait for. Half a step in the file is no step: readers count those that /steps/iteration has.
void GradientWriter::Impl::count_row(std::size_t row_bytes) {
  constexpr std::size_t kMostDirtyRows = 2048;
  bytes += row_bytes;
  if (++unflushed < kMostDirtyRows) return;
  flush();
  unflushed = 0;
}

/// Makes everything that was written so far reach the file; throws Fault::backend when that fails.
void GradientWriter::Impl::flush() const {
  hdf5::checked(H5Fflush(file.get(), H5F_SCOPE_GLOBAL), "write '" + path + "'");
  expect_written();
}

void GradientWriter::Impl::expect_written() const {
  if (write_error == 0) return;
  const bool keeps = steps > 0 && !all_or_nothing;  // without a whole step the file is removed
  throw Error{Fault::backend,
              "cannot write '" + path + "': " + std::strerror(write_error) +
                  (keeps ? "; the " + std::to_string(steps) + " whole steps before stay in the file" : "")};
}

TensorSink& GradientWriter::Impl::sink(std::size_t tensor, std::size_t values) {
  hdf5::be_quiet();
  expects(current.has_value(), "values are put between begin_step and end_step");
  expects(tensor < tensors.size(), "the gradient file has no such tensor");
  expects(values == tensors[tensor].sets.elements, "the values put have another size than the tensor");
  return tensors[tensor];
}

void GradientWriter::Impl::append_columns() {
  constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();
  const auto append = [&](std::optional<hdf5::GrowingSet>& column, double value) {
    if (!column) return;
    column->grow_to(steps + 1);
    column->write({steps}, {1}, H5T_NATIVE_DOUBLE, &value);
  };
  append(columns->epoch, current->epoch.value_or(kUnknown));
  append(columns->learning_rate, current->learning_rate.value_or(kUnknown));
  const auto append_row = [&](std::optional<hdf5::GrowingSet>& column, hid_t type, auto values, auto unknown) {
    if (!column) return;
    values.resize(workers, unknown);
    column->grow_to(steps + 1);
    column->write({steps, 0}, {1, workers}, type, values.data());
  };
  append_row(columns->loss, H5T_NATIVE_FLOAT, current->loss, std::numeric_limits<float>::quiet_NaN());
  append_row(columns->compute_seconds, H5T_NATIVE_DOUBLE, current->compute_seconds, kUnknown);
  append_row(columns->overflow, H5T_NATIVE_UINT8, current->overflow, std::uint8_t{0});
  append_row(columns->batch_weight, H5T_NATIVE_DOUBLE, current->batch_weight, kUnknown);
}

/// Sets the attribute `mark` to 1 and closes the file.
void GradientWriter::Impl::close_with(const char* mark) {
  hdf5::be_quiet();
  expects(bool{file}, "the gradient file is closed");
  expects(!current, "a gradient file was closed inside a step");
  hdf5::overwrite_integer(file.get(), mark, 1);
  flush();
  tensors.clear();
  columns.reset();
  readiness.reset();
  descriptor = -1;
  hdf5::checked(file.reset(), "close '" + path + "'");
  expect_written();
}

GradientWriter::GradientWriter(std::string path, const WriterOptions& options) : impl_{std::make_unique<Impl>()} {
  hdf5::be_quiet();
  hdf5::check_options(options);
  impl_->path = std::move(path);
  impl_->workers = static_cast<std::size_t>(options.info.workers);
  impl_->all_or_nothing = options.all_or_nothing;
  impl_->one_step = options.one_step;
  impl_->file = hdf5::create_file(impl_->path, impl_->write_error);
  impl_->descriptor = hdf5::descriptor_of(impl_->file.get());
  hdf5::write_root(impl_->file.get(), options.info);
  impl_->columns = hdf5::create_steps(impl_->file.get(), options);
  if (options.with_readiness)
    impl_->readiness.emplace(impl_->file.get(), static_cast<std::uint64_t>(impl_->workers), options.tensors.size());
  for (auto& tensor : hdf5::create_tensors(impl_->file.get(), options, impl_->write_error)) {
    impl_->tensors.emplace_back(std::move(tensor), impl_->workers);
  }
  impl_->flush();
  // From here on HDF5 orders its writes so that the file is consistent after each of them. Objects and attributes can
  // no longer be added, which is why all of them were created above.
  hdf5::checked(H5Fstart_swmr_write(impl_->file.get()), "write '" + impl_->path + "' step by step");
  // Not earlier, because until here HDF5 holds a lock of its own, which excludes this one on network file systems.
  mark_as_being_written(impl_->descriptor, impl_->path);
}

GradientWriter::~GradientWriter() = default;
GradientWriter::GradientWriter(GradientWriter&&) noexcept = default;
GradientWriter& GradientWriter::operator=(GradientWriter&&) noexcept = default;

void GradientWriter::begin_step(const StepInfo& step) {
  expects(impl_ != nullptr && impl_->file, "the gradient file is closed");
  expects(!impl_->current, "a step was begun before the last one was ended");
  expects(step.loss.empty() || step.loss.size() == impl_->workers, "a step needs one loss per worker, or none");
  expects(step.compute_seconds.empty() || step.compute_seconds.size() == impl_->workers,
          "a step needs one time of computation per worker, or none");
  expects(step.batch_weight.empty() || (impl_->columns->batch_weight && step.batch_weight.size() == impl_->workers),
          "a step has one weight per worker, or none, and only where the file has that column");
  expects(step.overflow.size() == (impl_->columns->overflow ? impl_->workers : 0),
          "a step needs one mark of overflow per worker exactly where the file has that column");
  expects(!impl_->one_step || impl_->steps == 0, "a file of one step got a second one");
  expect_valid(impl_->steps < static_cast<std::size_t>(schema::kMaxSteps),
               "a gradient file holds at most 4194304 steps");
  impl_->current = step;
}

void GradientWriter::put_gradient(std::size_t tensor, std::size_t worker, std::span<const float> values) {
  TensorSink& sink = impl_->sink(tensor, values.size());
  sink.gradients.fill(worker);
  sink.sets.gradient.write_row(impl_->steps, worker, values);
  impl_->count_row(values.size_bytes());
}

void GradientWriter::put_gradient_bits(std::size_t tensor, std::size_t worker, std::uint64_t first,
                                       std::span<const std::byte> bits) {
  expects(tensor < impl_->tensors.size(), "the gradient file has no such tensor");
  const std::uint64_t elements = impl_->tensors[tensor].sets.elements;
  TensorSink& sink = impl_->sink(tensor, elements);
  const std::size_t value_bytes = size_of(sink.sets.dtype);
  expects(worker < sink.parts.size(), "the gradient file has no such worker");
  const std::uint64_t count = bits.size() / value_bytes;
  expects(count > 0 && bits.size() % value_bytes == 0 && first == sink.parts[worker] && count <= elements - first,
          "the parts of a gradient are put in order and without gaps");
  sink.sets.gradient.write_bits(impl_->steps, worker, first, bits);
  sink.parts[worker] += count;
  if (sink.parts[worker] < elements) return;
  sink.parts[worker] = 0;
  sink.gradients.fill(worker);
  impl_->count_row(elements * value_bytes);
}

void GradientWriter::put_second_moment(std::size_t tensor, std::size_t worker, std::span<const float> values) {
  TensorSink& sink = impl_->sink(tensor, values.size());
  expects(sink.sets.second_moment.has_value(), "the tensor was declared without second moment");
  sink.second_moments.fill(worker);
  sink.sets.second_moment->write_row(impl_->steps, worker, values);
  impl_->count_row(values.size_bytes());
}

void GradientWriter::put_weight(std::size_t tensor, std::span<const float> values) {
  TensorSink& sink = impl_->sink(tensor, values.size());
  expects(sink.sets.weight.has_value(), "the tensor was declared without weight");
  sink.weights.fill(0);
  sink.sets.weight->write_row(impl_->steps, 0, values);
  impl_->count_row(values.size_bytes());
}

void GradientWriter::end_step() {
  Impl& file = *impl_;
  hdf5::be_quiet();
  expects(file.current.has_value(), "a step was ended that was not begun");
  for (TensorSink& sink : file.tensors) {
    expects(sink.gradients.full() && sink.second_moments.full() && sink.weights.full(),
            "a step was ended before every tensor of every worker was put");
  }
  file.append_columns();
  file.flush();
  // A step counts as written once /steps/iteration has it, so this comes after everything else is in the file.
  file.columns->iteration.grow_to(file.steps + 1);
  file.columns->iteration.write({file.steps}, {1}, H5T_NATIVE_INT64, &file.current->iteration);
  file.flush();
  for (TensorSink& sink : file.tensors) sink.gradients.clear(), sink.second_moments.clear(), sink.weights.clear();
  file.current.reset();
  ++file.steps;
}

void GradientWriter::put_readiness(const Readiness& readiness) {
  hdf5::be_quiet();
  expects(impl_ != nullptr && impl_->file, "the gradient file is closed");
  expects(impl_->readiness.has_value(), "the gradient file was declared without readiness");
  impl_->readiness->write(readiness);
}

std::size_t GradientWriter::steps() const {
  return impl_->steps;
}
std::uint64_t GradientWriter::bytes_written() const {
  return impl_->bytes;
}

void GradientWriter::close() {
  impl_->close_with("complete");
}

void GradientWriter::close_early() {
  impl_->current.reset();
  if (impl_->steps > 0) impl_->close_with("interrupted");
}

}  // namespace gradtool
