#include <algorithm>
#include <cstring>
#include <limits>

#include "lib/io/attributes.hpp"
#include "lib/io/create_file.hpp"
#include "lib/io/gradient_file.hpp"
#include "lib/io/schema.hpp"

namespace gradtool {
namespace {

/// What is put once in every step, and whether this step has it already.
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

  TensorSink(hdf5::WritableTensor made, std::size_t workers) : sets{std::move(made)} {
    gradients.filled.resize(workers);
    if (sets.second_moment) second_moments.filled.resize(workers);
    if (sets.weight) weights.filled.resize(1);
  }
};

}  // namespace

struct GradientWriter::Impl {
  std::string path;
  std::size_t workers = 0;
  int write_error = 0;  ///< the driver's; must outlive the file
  hdf5::File file;
  std::optional<hdf5::WritableSteps> columns;
  std::vector<TensorSink> tensors;
  std::optional<StepInfo> current;
  std::size_t steps = 0;
  std::uint64_t bytes = 0;

  void flush() const;
  void expect_written() const;
  TensorSink& sink(std::size_t tensor, std::size_t values);
  void append_columns();
};

/// Everything written so far reaches the file, or Fault::backend.
void GradientWriter::Impl::flush() const {
  hdf5::checked(H5Fflush(file.get(), H5F_SCOPE_GLOBAL), "write '" + path + "'");
  expect_written();
}

void GradientWriter::Impl::expect_written() const {
  if (write_error == 0) return;
  throw Error{Fault::backend, "cannot write '" + path + "': " + std::strerror(write_error) +
                                  "; the file stays as it was before, with " + std::to_string(steps) + " whole steps"};
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
  if (columns->loss) {
    std::vector<float> values = current->loss;
    values.resize(workers, std::numeric_limits<float>::quiet_NaN());
    columns->loss->grow_to(steps + 1);
    columns->loss->write({steps, 0}, {1, workers}, H5T_NATIVE_FLOAT, values.data());
  }
  if (columns->compute_seconds) {
    std::vector<double> values = current->compute_seconds;
    values.resize(workers, kUnknown);
    columns->compute_seconds->grow_to(steps + 1);
    columns->compute_seconds->write({steps, 0}, {1, workers}, H5T_NATIVE_DOUBLE, values.data());
  }
}

GradientWriter::GradientWriter(std::string path, const WriterOptions& options) : impl_{std::make_unique<Impl>()} {
  hdf5::be_quiet();
  hdf5::check_options(options);
  impl_->path = std::move(path);
  impl_->workers = static_cast<std::size_t>(options.info.workers);
  impl_->file = hdf5::create_file(impl_->path, options.info, impl_->write_error);
  impl_->columns = hdf5::create_steps(impl_->file.get(), options);
  for (auto& tensor : hdf5::create_tensors(impl_->file.get(), options)) {
    impl_->tensors.emplace_back(std::move(tensor), impl_->workers);
  }
  impl_->flush();
  // From here on HDF5 orders its writes so that the file is consistent after each of them. No object and no attribute
  // can be added any more.
  hdf5::checked(H5Fstart_swmr_write(impl_->file.get()), "write '" + impl_->path + "' step by step");
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
  expects(impl_->steps < static_cast<std::size_t>(schema::kMaxSteps), "a gradient file holds at most 4194304 steps");
  impl_->current = step;
}

void GradientWriter::put_gradient(std::size_t tensor, std::size_t worker, std::span<const float> values) {
  TensorSink& sink = impl_->sink(tensor, values.size());
  sink.gradients.fill(worker);
  sink.sets.gradient.write_row(impl_->steps, worker, values);
  impl_->bytes += values.size_bytes();
}

void GradientWriter::put_second_moment(std::size_t tensor, std::size_t worker, std::span<const float> values) {
  TensorSink& sink = impl_->sink(tensor, values.size());
  expects(sink.sets.second_moment.has_value(), "the tensor was declared without second moment");
  sink.second_moments.fill(worker);
  sink.sets.second_moment->write_row(impl_->steps, worker, values);
  impl_->bytes += values.size_bytes();
}

void GradientWriter::put_weight(std::size_t tensor, std::span<const float> values) {
  TensorSink& sink = impl_->sink(tensor, values.size());
  expects(sink.sets.weight.has_value(), "the tensor was declared without weight");
  sink.weights.fill(0);
  sink.sets.weight->write_row(impl_->steps, 0, values);
  impl_->bytes += values.size_bytes();
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
  // The step exists once /steps/iteration has it, and by now everything else of it is in the file.
  file.columns->iteration.grow_to(file.steps + 1);
  file.columns->iteration.write({file.steps}, {1}, H5T_NATIVE_INT64, &file.current->iteration);
  file.flush();
  for (TensorSink& sink : file.tensors) sink.gradients.clear(), sink.second_moments.clear(), sink.weights.clear();
  file.current.reset();
  ++file.steps;
}

std::size_t GradientWriter::steps() const {
  return impl_->steps;
}
std::uint64_t GradientWriter::bytes_written() const {
  return impl_->bytes;
}

void GradientWriter::close() {
  Impl& file = *impl_;
  hdf5::be_quiet();
  expects(bool{file.file}, "the gradient file is closed");
  expects(!file.current, "a gradient file was closed inside a step");
  hdf5::overwrite_integer(file.file.get(), "complete", 1);
  file.flush();
  file.tensors.clear();
  file.columns.reset();
  hdf5::checked(file.file.reset(), "close '" + file.path + "'");
  file.expect_written();
}

}  // namespace gradtool
