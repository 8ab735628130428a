#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/law/hd.hpp"

namespace gradtool::law {

/// Which elements of a range of a tensor belong to one slice: in the tensor's order, the `width` elements at `start` of
/// every `period`. Column c of the slice is the c-th of them.
struct SliceColumns {
  std::uint64_t start = 0, width = 1, period = 1;
  std::uint64_t first = 0;   ///< element of the tensor at which the range begins
  std::uint64_t before = 0;  ///< elements of the slice in front of the range
  std::uint64_t count = 0;   ///< columns in the range

  /// Elements of the slice among the first `end` of the tensor.
  [[nodiscard]] GT_HD std::uint64_t among(std::uint64_t end) const {
    const std::uint64_t rest = end % period;
    const std::uint64_t part = rest <= start ? 0 : rest - start < width ? rest - start : width;
    return end / period * width + part;
  }
  /// Where column c lies in the range.
  [[nodiscard]] GT_HD std::uint64_t offset(std::uint64_t c) const {
    const std::uint64_t j = before + c;
    return j / width * period + start + j % width - first;
  }
};

}  // namespace gradtool::law
