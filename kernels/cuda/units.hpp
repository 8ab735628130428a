#pragma once

#include <cstddef>

/// Many small tensors in one launch (docs/adr/0013-batches-of-tensors.md).
namespace gradtool::cuda {

/// One of several tensors that a launch works on.
struct Unit {
  const void* from;  ///< a gradient to encode, or a payload to decode
  void* to;          ///< the payload, or the sums that decoded elements are added to
  std::size_t n;     ///< elements
};

/// Units that one launch takes at most: their table and the kernel's other parameters fit into the 4 KB that a launch
/// passes, so nothing is uploaded.
inline constexpr std::size_t kMostUnits = 128;

}  // namespace gradtool::cuda
