#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <iterator>

#include "kernels/law/half.hpp"
#include "lib/io/gradient_file.hpp"
#include "lib/io/load.hpp"
#include "lib/io/open_file.hpp"

namespace gradtool {
namespace {

/// 16-bit values in the upper half of `out` become floats in all of it, without a second buffer: value i lies at
/// byte 2n + 2i and goes to byte 4i, which is never past a value that has not been read yet.
template <class Convert>
void widen_in_place(std::span<float> out, Convert convert) {
  constexpr std::size_t kBlock = 256;
  std::array<std::uint16_t, kBlock> narrow{};
  std::array<float, kBlock> wide{};
  auto* const bytes = reinterpret_cast<std::byte*>(out.data());
  for (std::size_t i = 0; i < out.size(); i += kBlock) {
    const std::size_t count = std::min(kBlock, out.size() - i);
    std::memcpy(narrow.data(), bytes + 2 * out.size() + 2 * i, 2 * count);
    for (std::size_t k = 0; k < kBlock; ++k) wide[k] = convert(narrow[k]);
    std::memcpy(bytes + 4 * i, wide.data(), 4 * count);
  }
}

void read_values(const hdf5::DataSet& set, Dtype dtype, const std::vector<hsize_t>& start,
                 const std::vector<hsize_t>& count, std::span<float> out) {
  if (out.empty()) return;
  if (dtype == Dtype::f32) return set.read(start, count, H5T_NATIVE_FLOAT, out.data());
  auto* const upper = reinterpret_cast<std::byte*>(out.data()) + 2 * out.size();
  if (dtype == Dtype::f16) {
    set.read(start, count, hdf5::half_type().get(), upper);
    widen_in_place(out, [](std::uint16_t x) { return law::f32_from_f16(x); });
  } else {
    set.read(start, count, H5T_NATIVE_UINT16, upper);
    widen_in_place(out, [](std::uint16_t x) { return law::f32_from_bf16(x); });
  }
}

}  // namespace

std::optional<double> median_compute_seconds(const std::vector<StepInfo>& steps) {
  std::vector<double> seconds;
  for (const auto& step : steps) {
    std::copy_if(step.compute_seconds.begin(), step.compute_seconds.end(), std::back_inserter(seconds),
                 [](double value) { return std::isfinite(value) && value > 0.0; });
  }
  if (seconds.empty()) return std::nullopt;
  std::sort(seconds.begin(), seconds.end());
  return 0.5 * (seconds[(seconds.size() - 1) / 2] + seconds[seconds.size() / 2]);
}

struct GradientReader::Impl {
  std::string path;
  hdf5::File file;
  FileInfo info;
  std::vector<hdf5::StoredTensor> stored;
  std::vector<TensorInfo> tensors;
  std::vector<StepInfo> steps;
  std::uint64_t elements = 0;

  const hdf5::StoredTensor& at(std::size_t tensor, std::size_t step, std::size_t worker) const {
    expects(tensor < tensors.size(), "there is no such tensor in the gradient file");
    expects(step < steps.size(), "there is no such step in the gradient file");
    expects(worker < static_cast<std::size_t>(info.workers), "there is no such worker in the gradient file");
    return stored[tensor];
  }
};

GradientReader::GradientReader(std::string path) : impl_{std::make_unique<Impl>()} {
  const hdf5::Place root{path, "/"};
  impl_->path = std::move(path);
  impl_->file = hdf5::open_for_reading(impl_->path);
  const hid_t file = impl_->file.get();
  impl_->info = hdf5::load_root(file, root);
  const hdf5::StoredSteps steps = hdf5::open_steps(file, root, impl_->info.workers);
  impl_->stored = hdf5::open_tensors(file, root, impl_->info.workers);
  const std::size_t count = hdf5::settle_steps(steps, impl_->stored, impl_->info.complete);
  std::error_code error;
  const std::uintmax_t bytes = std::filesystem::file_size(impl_->path, error);
  hdf5::expect_stored(steps, impl_->stored, error ? 0 : bytes, impl_->info.complete);
  impl_->steps = hdf5::load_steps(steps, count, static_cast<std::size_t>(impl_->info.workers));
  for (const auto& tensor : impl_->stored) {
    impl_->tensors.push_back(tensor.info);
    impl_->elements += tensor.info.elements;
  }
}

GradientReader::~GradientReader() = default;
GradientReader::GradientReader(GradientReader&&) noexcept = default;
GradientReader& GradientReader::operator=(GradientReader&&) noexcept = default;

const std::string& GradientReader::path() const {
  return impl_->path;
}
const FileInfo& GradientReader::info() const {
  return impl_->info;
}
const std::vector<TensorInfo>& GradientReader::tensors() const {
  return impl_->tensors;
}
const std::vector<StepInfo>& GradientReader::steps() const {
  return impl_->steps;
}
std::size_t GradientReader::workers() const {
  return static_cast<std::size_t>(impl_->info.workers);
}
std::uint64_t GradientReader::elements() const {
  return impl_->elements;
}

void GradientReader::read_gradient(std::size_t tensor, std::size_t step, std::size_t worker,
                                   std::span<float> out) const {
  const auto& stored = impl_->at(tensor, step, worker);
  expects(out.size() == stored.info.elements, "the span for a gradient has another size than the tensor");
  read_values(stored.gradient, stored.gradient_dtype, {step, worker, 0}, {1, 1, out.size()}, out);
}

void GradientReader::read_gradient_part(std::size_t tensor, std::size_t step, std::size_t worker, std::uint64_t first,
                                        std::span<float> out) const {
  const auto& stored = impl_->at(tensor, step, worker);
  expects(first <= stored.info.elements && out.size() <= stored.info.elements - first,
          "a part of a gradient reaches past the tensor's end");
  read_values(stored.gradient, stored.gradient_dtype, {step, worker, first}, {1, 1, out.size()}, out);
}

void GradientReader::read_second_moment(std::size_t tensor, std::size_t step, std::size_t worker,
                                        std::span<float> out) const {
  expects(out.size() == impl_->at(tensor, step, worker).info.elements,
          "the span for a second moment has another size than the tensor");
  read_second_moment_part(tensor, step, worker, 0, out);
}

void GradientReader::read_second_moment_part(std::size_t tensor, std::size_t step, std::size_t worker,
                                             std::uint64_t first, std::span<float> out) const {
  const auto& stored = impl_->at(tensor, step, worker);
  expects(stored.second_moment.has_value(), "the tensor has no second moment in this file");
  expects(first <= stored.info.elements && out.size() <= stored.info.elements - first,
          "a part of a second moment reaches past the tensor's end");
  read_values(*stored.second_moment, stored.second_moment_dtype, {step, worker, first}, {1, 1, out.size()}, out);
}

void GradientReader::read_weight(std::size_t tensor, std::size_t step, std::span<float> out) const {
  expects(out.size() == impl_->at(tensor, step, 0).info.elements,
          "the span for a weight has another size than the tensor");
  read_weight_part(tensor, step, 0, out);
}

void GradientReader::read_weight_part(std::size_t tensor, std::size_t step, std::uint64_t first,
                                      std::span<float> out) const {
  const auto& stored = impl_->at(tensor, step, 0);
  expects(stored.weight.has_value(), "the tensor has no weight in this file");
  expects(first <= stored.info.elements && out.size() <= stored.info.elements - first,
          "a part of a weight reaches past the tensor's end");
  read_values(*stored.weight, stored.weight_dtype, {step, first}, {1, out.size()}, out);
}

}  // namespace gradtool
