#include "lib/io/gradient_file.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <string>
#include <system_error>

#include "kernels/float_bits.hpp"
#include "lib/io/hdf5.hpp"
#include "lib/io/load.hpp"

namespace gradtool::hdf5 {
namespace {

constexpr std::array<char, 8> kSignature{'\x89', 'H', 'D', 'F', '\r', '\n', '\x1a', '\n'};

/// True when the file has HDF5's signature, which is at byte 0 or, behind a user block, at byte 512, 1024, 2048 and so
/// on (HDF5 file format specification 3.0, section II.A).
bool has_signature(std::ifstream& in, std::uintmax_t size) {
  for (std::uintmax_t offset = 0; offset + kSignature.size() <= size; offset = offset == 0 ? 512 : offset * 2) {
    std::array<char, kSignature.size()> bytes{};
    in.clear();
    in.seekg(static_cast<std::streamoff>(offset));
    if (in.read(bytes.data(), bytes.size()) && bytes == kSignature) return true;
  }
  return false;
}

[[noreturn]] void fail(const std::string& path, const std::string& problem) {
  throw Error{Fault::data, path + ": " + problem};
}

void check_regular(const std::string& path) {
  std::error_code error;
  const auto status = std::filesystem::status(path, error);
  if (status.type() == std::filesystem::file_type::not_found) fail(path, "there is no such file");
  if (error) fail(path, "cannot be read (" + error.message() + ")");
  if (std::filesystem::is_directory(status)) fail(path, "is a folder, not a gradient file");
  // A pipe would block, and HDF5 needs to seek.
  if (!std::filesystem::is_regular_file(status)) fail(path, "is not a regular file");
  const auto size = std::filesystem::file_size(path, error);
  std::ifstream in{path, std::ios::binary};
  if (error || !in) fail(path, "cannot be read (is it readable for you?)");
  if (size == 0) fail(path, "is empty");
  if (!has_signature(in, size)) fail(path, "is not an HDF5 file");
}

/// Opens the file; when that fails, returns an empty File and stores HDF5's reason in `reason`.
File try_open(const std::string& path, unsigned flags, std::string& reason) {
  const Properties access{checked_id(H5Pcreate(H5P_FILE_ACCESS), "prepare HDF5")};
  // Objects of this file that are still open are closed together with it.
  checked(H5Pset_fclose_degree(access.get(), H5F_CLOSE_STRONG), "prepare HDF5");
  // In SWMR mode HDF5 reads a block with a bad checksum again, by default a hundred times with pauses that double each
  // time, which takes practically for ever.
  checked(H5Pset_metadata_read_attempts(access.get(), 10), "prepare HDF5");
  File file{H5Fopen(path.c_str(), flags, access.get())};
  // The reason is fetched at once, because the next call of HDF5, such as closing `access`, clears the error stack.
  if (!file) reason = last_reason();
  return file;
}

/// Opens `path` read-only, also while a single-writer (SWMR) program has it open or after one was killed. Throws
/// Fault::data when it is not a regular file, not HDF5, truncated, damaged, or open elsewhere for plain writing.
File open_for_reading(const std::string& path) {
  be_quiet();
  check_regular(path);
  std::string reason;
  if (File file = try_open(path, H5F_ACC_RDONLY, reason)) return file;
  if (reason.find("already open for") != std::string::npos) {
    // A program that writes in SWMR mode marks the file while it runs; the mark remains when the program is killed.
    if (File file = try_open(path, H5F_ACC_RDONLY | H5F_ACC_SWMR_READ, reason)) return file;
    fail(path, "is marked as being written; if no program writes it any more, 'h5clear -s' removes the mark");
  }
  if (reason.find("unable to lock file") != std::string::npos) fail(path, "is being written by another program");
  if (reason.find("truncated file") != std::string::npos) {
    fail(path, "is truncated: it is shorter than its own header says");
  }
  fail(path, "is a damaged HDF5 file" + (reason.empty() ? "" : " (" + reason + ")"));
}

}  // namespace
}  // namespace gradtool::hdf5

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
    buffer.resize(std::min(kPart, elements - first));
    read(first, std::span<float>{buffer});
    count += count_non_finite(buffer);
  }
  return count;
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
  std::string path;
  hdf5::File file;
  FileInfo info;
  std::vector<hdf5::StoredTensor> stored;
  std::vector<TensorInfo> tensors;
  std::vector<StepInfo> steps;

  const hdf5::StoredTensor& find(std::size_t tensor, std::size_t step, std::size_t worker) const {
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
void GradientReader::read_gradient_part(std::size_t tensor, std::size_t step, std::size_t worker, std::uint64_t first,
                                        std::span<float> out) const {
  const auto& stored = impl_->find(tensor, step, worker);
  expects(first <= stored.info.elements && out.size() <= stored.info.elements - first,
          "a part of a gradient reaches past the tensor's end");
  read_values(stored.gradient, stored.gradient_dtype, {step, worker, first}, {1, 1, out.size()}, out);
}

void GradientReader::read_second_moment_part(std::size_t tensor, std::size_t step, std::size_t worker,
                                             std::uint64_t first, std::span<float> out) const {
  const auto& stored = impl_->find(tensor, step, worker);
  expects(stored.second_moment.has_value(), "the tensor has no second moment in this file");
  expects(first <= stored.info.elements && out.size() <= stored.info.elements - first,
          "a part of a second moment reaches past the tensor's end");
  read_values(*stored.second_moment, stored.second_moment_dtype, {step, worker, first}, {1, 1, out.size()}, out);
}

void GradientReader::read_weight_part(std::size_t tensor, std::size_t step, std::uint64_t first,
                                      std::span<float> out) const {
  const auto& stored = impl_->find(tensor, step, 0);
  expects(stored.weight.has_value(), "the tensor has no weight in this file");
  expects(first <= stored.info.elements && out.size() <= stored.info.elements - first,
          "a part of a weight reaches past the tensor's end");
  read_values(*stored.weight, stored.weight_dtype, {step, first}, {1, out.size()}, out);
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

std::string averaged_warning(double likeness) {
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
