#include "lib/codecs/vgc_groups.hpp"

#include <algorithm>

namespace gradtool {

VgcGroups::VgcGroups(const Layout& layout, bool hybrid) {
  if (hybrid) {
    add(0, layout.elements, std::size_t{1} << 31);
  } else {
    for (const auto& tensor : layout.tensors) add(tensor.first, tensor.elements, std::size_t{1} << 28);
  }
}

void VgcGroups::add(std::size_t first, std::size_t elements, std::size_t longest) {
  for (std::size_t at = 0; at < elements; at += longest) {
    const std::size_t here = std::min(longest, elements - at);
    for (std::size_t from = 0; from < here; from += host::kPiece) {
      const std::size_t count = std::min(host::kPiece, here - from);
      pieces.push_back({first + at + from, count, bitmap_words, groups.size()});
      bitmap_words += (count + 31) / 32;
    }
    groups.push_back({first + at, here});
  }
}

}  // namespace gradtool
