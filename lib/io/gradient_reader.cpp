#include "lib/io/gradient_file.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <iterator>
#include <set>
#include <string>

#include "kernels/float_bits.hpp"
#include "lib/core/interrupt.hpp"
#include "lib/io/hdf5.hpp"
#include "lib/io/open_file.hpp"

namespace gradtool {
namespace {

/// Converts the 16-bit values in the upper half of `out` to floats that fill all of it, without a second buffer. Of n
/// values, value i is read at byte 2n + 2i and written at byte 4i, so that no value is overwritten before it is read.
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
    widen_in_place(out, [](std::uint16_t x) { return format::f32_from_f16(x); });
  } else {
    set.read(start, count, H5T_NATIVE_UINT16, upper);
    widen_in_place(out, [](std::uint16_t x) { return format::f32_from_bf16(x); });
  }
}

std::uint64_t count_non_finite(std::span<const float> values) {
  constexpr std::uint32_t kExponent = 0x7f800000;
  std::uint64_t count = 0;
  // The test looks at bits, so that it does not depend on compiler flags for floating point and the loop vectorises.
  for (const float x : values) count += (std::bit_cast<std::uint32_t>(x) & kExponent) == kExponent ? 1U : 0U;
  return count;
}

/// Counts the non-finite values of a row of `elements` values; `read(first, out)` reads the part that begins at
/// `first`.
template <class Read>
std::uint64_t count_in_parts(std::uint64_t elements, std::vector<float>& buffer, Read read) {
  constexpr std::uint64_t kPart = std::uint64_t{1} << 20;
  std::uint64_t count = 0;
  for (std::uint64_t first = 0; first < elements; first += kPart) {
    stop_if_interrupted();
    buffer.resize(std::min(kPart, elements - first));
    read(first, std::span<float>{buffer});
    count += count_non_finite(buffer);
  }
  return count;
}

}  // namespace

std::optional<ComputeTime> captured_compute_time(const std::vector<StepInfo>& steps) {
  std::vector<double> seconds;
  for (const auto& step : steps) {
    double slowest = 0.0;
    for (const double value : step.compute_seconds) {
      if (std::isfinite(value)) slowest = std::max(slowest, value);
    }
    if (slowest > 0.0) seconds.push_back(slowest);
  }
  if (seconds.empty()) return std::nullopt;
  std::sort(seconds.begin(), seconds.end());
  return ComputeTime{.seconds = 0.5 * (seconds[(seconds.size() - 1) / 2] + seconds[seconds.size() / 2]),
                     .low = seconds.front(),
                     .high = seconds.back()};
}

std::uint64_t GradientSource::elements() const {
  std::uint64_t elements = 0;
  for (const auto& tensor : tensors()) elements += tensor.elements;
  return elements;
}

void GradientSource::read_gradient(std::size_t tensor, std::size_t step, std::size_t worker,
                                   std::span<float> out) const {
  expects(tensor < tensors().size() && out.size() == tensors()[tensor].elements,
          "the span for a gradient has another size than the tensor");
  read_gradient_part(tensor, step, worker, 0, out);
}

void GradientSource::read_second_moment(std::size_t tensor, std::size_t step, std::size_t worker,
                                        std::span<float> out) const {
  expects(tensor < tensors().size() && out.size() == tensors()[tensor].elements,
          "the span for a second moment has another size than the tensor");
  read_second_moment_part(tensor, step, worker, 0, out);
}

void GradientSource::read_weight(std::size_t tensor, std::size_t step, std::span<float> out) const {
  expects(tensor < tensors().size() && out.size() == tensors()[tensor].elements,
          "the span for a weight has another size than the tensor");
  read_weight_part(tensor, step, 0, out);
}

struct GradientReader::Impl {
  hdf5::OpenedFile opened;
  std::vector<TensorInfo> tensors;

  const hdf5::StoredTensor& find(std::size_t tensor, std::size_t step, std::size_t worker) const {
    expects(tensor < tensors.size(), "there is no such tensor in the gradient file");
    expects(step < opened.steps.size(), "there is no such step in the gradient file");
    expects(worker < static_cast<std::size_t>(opened.info.workers), "there is no such worker in the gradient file");
    return opened.tensors[tensor];
  }
};

GradientReader::GradientReader(std::string path) : impl_{std::make_unique<Impl>()} {
  impl_->opened = hdf5::open_gradient_file(std::move(path));
  impl_->tensors.reserve(impl_->opened.tensors.size());
  for (const auto& tensor : impl_->opened.tensors) impl_->tensors.push_back(tensor.info);
}

GradientReader::~GradientReader() = default;
GradientReader::GradientReader(GradientReader&&) noexcept = default;
GradientReader& GradientReader::operator=(GradientReader&&) noexcept = default;

const std::string& GradientReader::path() const {
  return impl_->opened.path;
}
std::vector<std::string> GradientReader::sources() const {
  std::vector<std::string> paths;
  paths.reserve(impl_->opened.sources.size());
  for (const auto& source : impl_->opened.sources) paths.push_back(source->path);
  return paths;
}
const FileInfo& GradientReader::info() const {
  return impl_->opened.info;
}
const std::vector<TensorInfo>& GradientReader::tensors() const {
  return impl_->tensors;
}
const std::vector<StepInfo>& GradientReader::steps() const {
  return impl_->opened.steps;
}
const std::optional<Readiness>& GradientReader::readiness() const {
  return impl_->opened.readiness;
}
void GradientReader::read(const ArrayPart& part, std::span<float> out) const {
  const auto& stored = impl_->find(part.tensor, part.step, part.worker);
  expects(part.first <= stored.info.elements && out.size() <= stored.info.elements - part.first,
          "a part of a tensor reaches past its end");
  switch (part.of) {
    case ArrayPart::Of::gradient:
      return read_values(stored.gradient, stored.gradient_dtype, {part.step, part.worker, part.first},
                         {1, 1, out.size()}, out);
    case ArrayPart::Of::second_moment:
      expects(stored.second_moment.has_value(), "the tensor has no second moment in this file");
      return read_values(*stored.second_moment, stored.second_moment_dtype, {part.step, part.worker, part.first},
                         {1, 1, out.size()}, out);
    case ArrayPart::Of::weight:
      expects(stored.weight.has_value(), "the tensor has no weight in this file");
      return read_values(*stored.weight, stored.weight_dtype, {part.step, part.first}, {1, out.size()}, out);
  }
}
bool GradientReader::only_copies(const ArrayPart& part) const {
  const auto& stored = impl_->find(part.tensor, part.step, part.worker);
  const auto copied = [](const auto& set, Dtype dtype) { return dtype == Dtype::f32 && set.only_copies(); };
  switch (part.of) {
    case ArrayPart::Of::gradient:
      return copied(stored.gradient, stored.gradient_dtype);
    case ArrayPart::Of::second_moment:
      return stored.second_moment && copied(*stored.second_moment, stored.second_moment_dtype);
    case ArrayPart::Of::weight:
      return stored.weight && copied(*stored.weight, stored.weight_dtype);
  }
  return false;
}

std::vector<std::string> sources_of_view(const std::string& path) {
  try {
    return GradientReader{path}.sources();
  } catch (const Error&) {
    return {};
  }
}

double worker_likeness(const GradientSource& reader, int workers) {
  if (workers < 2) return 0.0;
  const std::size_t last = reader.steps().size() - 1;
  constexpr std::size_t kPart = std::size_t{1} << 20;
  std::vector<float> a(kPart), b(kPart);
  double least = 1.0;
  for (const std::size_t step : std::set<std::size_t>{0, last / 2, last}) {
    for (std::size_t worker = 1; worker < static_cast<std::size_t>(workers); ++worker) {
      double xx = 0.0, yy = 0.0, xy = 0.0;
      for (std::size_t t = 0; t < reader.tensors().size(); ++t) {
        const std::uint64_t elements = reader.tensors()[t].elements;
        for (std::uint64_t first = 0; first < elements; first += kPart) {
          const auto n = static_cast<std::size_t>(std::min<std::uint64_t>(kPart, elements - first));
          stop_if_interrupted();
          reader.read_gradient_part(t, step, 0, first, std::span{a}.first(n));
          reader.read_gradient_part(t, step, worker, first, std::span{b}.first(n));
          for (std::size_t i = 0; i < n; ++i) {
            const double x = static_cast<double>(a[i]);
            const double y = static_cast<double>(b[i]);
            xx += x * x;
            yy += y * y;
            xy += x * y;
          }
        }
      }
      const double cosine = xy / std::sqrt(xx * yy);
      if (!(cosine > 0.0)) return 0.0;
      least = std::min(least, cosine);
    }
  }
  return least;
}

std::string averaged_warning(double likeness, bool stated) {
  if (stated) {
    return "the file says that its values were averaged over the workers before they were captured (averaged = 1). "
           "What differs between ranks is lost, so errors, sizes and correlations between them mean nothing; capture "
           "each rank's own gradients, before the all-reduce";
  }
  if (!(likeness > kAveragedLikeness)) return {};
  return fmt::format(
      "the workers' gradients are {}the same (cosine {:.6f}): they seem to have been averaged before they were "
      "captured, as those read after DDP's backward pass are. What differs between ranks is lost, so errors, sizes and "
      "correlations between them mean nothing; capture each rank's own gradients, before the all-reduce",
      likeness < 1.0 - 1e-6 ? "nearly " : "", likeness);
}

std::vector<NonFinite> find_non_finite(const GradientSource& reader, const ReadProgress& progress) {
  const std::uint64_t total = reader.elements() * reader.steps().size() * reader.workers();
  std::vector<NonFinite> entries(reader.tensors().size());
  std::vector<float> buffer;
  std::uint64_t done = 0;
  // This is the order in which the file was written, so that the disk is read from front to back.
  for (std::size_t step = 0; step < reader.steps().size(); ++step) {
    for (std::size_t tensor = 0; tensor < entries.size(); ++tensor) {
      const std::uint64_t elements = reader.tensors()[tensor].elements;
      NonFinite& entry = entries[tensor];
      entry.tensor = tensor;
      for (std::size_t worker = 0; worker < reader.workers(); ++worker) {
        const std::uint64_t count = count_in_parts(elements, buffer, [&](std::uint64_t first, std::span<float> out) {
          reader.read_gradient_part(tensor, step, worker, first, out);
        });
        if (count > 0 && entry.count == 0) entry.first_step = step, entry.first_worker = worker;
        entry.count += count;
      }
      if (progress) progress(done += elements * reader.workers(), total);
    }
  }
  std::erase_if(entries, [](const NonFinite& entry) { return entry.count == 0; });
  return entries;
}

std::uint64_t count_non_finite_state(const GradientReader& reader) {
  std::vector<float> buffer;
  std::uint64_t count = 0;
  for (std::size_t step = 0; step < reader.steps().size(); ++step) {
    for (std::size_t tensor = 0; tensor < reader.tensors().size(); ++tensor) {
      const TensorInfo& info = reader.tensors()[tensor];
      for (std::size_t worker = 0; info.has_second_moment && worker < reader.workers(); ++worker) {
        count += count_in_parts(info.elements, buffer, [&](std::uint64_t first, std::span<float> out) {
          reader.read_second_moment_part(tensor, step, worker, first, out);
        });
      }
      if (!info.has_weight) continue;
      count += count_in_parts(info.elements, buffer, [&](std::uint64_t first, std::span<float> out) {
        reader.read_weight_part(tensor, step, first, out);
      });
    }
  }
  return count;
}

std::string why_incomplete(const GradientReader& reader) {
  const auto& steps = reader.steps();
  return fmt::format("{} after iteration {}; its {} can be used",
                     reader.info().interrupted ? "the writer was interrupted (Ctrl-C) and closed the file"
                                               : "the writer died, or has not finished yet,",
                     steps.back().iteration,
                     steps.size() == 1 ? "one whole step" : fmt::format("{} whole steps", steps.size()));
}

}  // namespace gradtool
