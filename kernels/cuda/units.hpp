#pragma once

#include <cstddef>

/// Many small tensors in one launch (docs/adr/0013-batches-of-tensors.md).
namespace gradtool::cuda {

/// One of several tensors that a launch works on.
struct Unit {
  const void* from;  ///< the gradient, or the payload
  void* to;          ///< the payload, or the sums
  std::size_t n;     ///< elements
};

/// That one launch takes at most: their table and what the kernel needs beside it fit into a kernel's 4 KB of
/// parameters, so nothing is uploaded.
inline constexpr std::size_t kMostUnits = 128;

}  // namespace gradtool::cuda
