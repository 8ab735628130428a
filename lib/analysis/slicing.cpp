#include "lib/analysis/slicing.hpp"

#include <algorithm>
#include <string_view>

namespace gradtool {
namespace {

constexpr std::uint64_t kContiguousElements = 4096;
constexpr std::uint64_t kContiguousSlices = 16;

bool is_convolution(const TensorInfo& tensor) {
  const std::string_view layout{tensor.layout};
  return tensor.kind == "conv" && tensor.shape.size() >= 3 && (layout.empty() || layout.starts_with("OI"));
}

}  // namespace

Slicing::Slicing(const TensorInfo& tensor, std::size_t taps)
    : transposed_{is_convolution(tensor)}, elements_{tensor.elements} {
  if (transposed_) {
    for (std::size_t axis = 2; axis < tensor.shape.size(); ++axis) {
      all_taps_ *= static_cast<std::uint64_t>(tensor.shape[axis]);
    }
    const std::uint64_t row = static_cast<std::uint64_t>(tensor.shape.back());
    taps_ = std::min(all_taps_, taps == 0 ? row : std::uint64_t{taps});
    slice_elements_ = elements_ / all_taps_ * taps_;
  } else {
    const std::uint64_t even = (elements_ + kContiguousSlices - 1) / kContiguousSlices;
    slice_elements_ = std::min(elements_, std::max(kContiguousElements, even));
  }
  slices_ = static_cast<std::size_t>((elements_ + slice_elements_ - 1) / slice_elements_);
}

law::SliceColumns Slicing::columns(std::size_t slice, std::uint64_t first, std::uint64_t count) const {
  law::SliceColumns columns;
  columns.period = transposed_ ? all_taps_ : elements_;
  const std::uint64_t width = transposed_ ? taps_ : slice_elements_;
  columns.start = slice * width;
  columns.width = std::min(width, columns.period - columns.start);
  columns.first = first;
  columns.before = columns.among(first);
  columns.count = columns.among(first + count) - columns.before;
  return columns;
}

std::uint64_t Slicing::elements_of(std::size_t slice) const {
  return std::min(slice_elements_, elements_ - slice * slice_elements_);
}

}  // namespace gradtool
