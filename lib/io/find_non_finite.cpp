#include <algorithm>
#include <bit>

#include "lib/io/gradient_file.hpp"

namespace gradtool {
namespace {

std::uint64_t count_non_finite(std::span<const float> values) {
  constexpr std::uint32_t kExponent = 0x7f800000;
  std::uint64_t count = 0;
  // On bits, so that no floating-point flag can change the answer and the loop vectorises.
  for (const float x : values) count += (std::bit_cast<std::uint32_t>(x) & kExponent) == kExponent ? 1U : 0U;
  return count;
}

/// Counts over a row of `elements` values; `read(first, out)` fills one part of it.
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

std::vector<NonFinite> find_non_finite(const GradientReader& reader, const ReadProgress& progress) {
  const std::uint64_t total = reader.elements() * reader.steps().size() * reader.workers();
  std::vector<NonFinite> entries(reader.tensors().size());
  std::vector<float> buffer;
  std::uint64_t done = 0;
  // In the order in which the file was written: its parts lie one behind the other on the disk.
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

}  // namespace gradtool
