#include "lib/capture/selection.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "lib/core/error.hpp"
#include "lib/core/text.hpp"

namespace gradtool {

std::span<float> Selection::gather(std::span<const float> flat, std::span<float> out) const {
  for (const auto& range : ranges) {
    std::copy_n(flat.begin() + static_cast<std::ptrdiff_t>(range.first), range.count, out.begin());
    out = out.subspan(range.count);
  }
  return out;
}

Selection select_tensors(const std::vector<TensorInfo>& all, const std::string& layers) {
  Selection selection;
  std::size_t first = 0;
  for (const auto& tensor : all) {
    const auto count = static_cast<std::size_t>(tensor.elements);
    if (layers.empty() || matches(layers, tensor.name)) {
      selection.tensors.push_back(tensor);
      selection.ranges.push_back({first, count});
      selection.elements += count;
    }
    first += count;
  }
  if (selection.tensors.empty()) {
    throw Error{Fault::usage, fmt::format("--layers '{}' matches none of the {} tensors, which are called '{}' to '{}'",
                                          layers, all.size(), all.front().name, all.back().name)};
  }
  return selection;
}

}  // namespace gradtool
