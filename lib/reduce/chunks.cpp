#include "lib/reduce/chunks.hpp"

#include <algorithm>
#include <bit>

namespace gradtool {
namespace {

constexpr std::size_t kLeast = 1024;          ///< elements of a chunk
constexpr std::size_t kLargestGrain = 65536;  ///< no codec's blocks are larger

std::size_t distance(std::size_t a, std::size_t b) {
  return a < b ? b - a : a - b;
}

/// The start of the tensor that lies nearest to `wanted`.
std::size_t nearest_tensor(const Layout& layout, std::size_t wanted) {
  std::size_t best = 0;
  for (const auto& tensor : layout.tensors) {
    if (distance(tensor.first, wanted) < distance(best, wanted)) best = tensor.first;
  }
  return best;
}

Layout part_of(const Layout& layout, std::size_t first, std::size_t last) {
  Layout part{.tensors = {}, .elements = last - first};
  for (TensorShape tensor : layout.tensors) {
    if (tensor.first < first || tensor.first >= last) continue;
    tensor.first -= first;
    part.tensors.push_back(std::move(tensor));
  }
  return part;
}

}  // namespace

std::vector<ChunkOfUnit> cut_into_chunks(const Layout& layout, std::size_t most, bool whole_tensors) {
  const std::size_t n = layout.elements;
  const std::size_t count = std::clamp<std::size_t>(n / kLeast, 1, std::max<std::size_t>(most, 1));
  if (count == 1) return {{0, layout}};
  const std::size_t grain = std::min(kLargestGrain, std::bit_floor(n / count / 4));
  std::vector<ChunkOfUnit> chunks;
  std::size_t first = 0;
  for (std::size_t i = 1; i <= count; ++i) {
    const std::size_t equal = n * i / count;
    const std::size_t last = i == count ? n : whole_tensors ? nearest_tensor(layout, equal) : equal / grain * grain;
    if (last <= first) continue;
    chunks.push_back({first, whole_tensors ? part_of(layout, first, last) : Layout::flat(last - first)});
    first = last;
  }
  return chunks;
}

}  // namespace gradtool
