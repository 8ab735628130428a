#pragma once

#include <cstddef>
#include <cstdint>

#include "lib/core/view.hpp"

/// Rounding to binary16 for the fft codec on the GPU; enqueued, the host's values.
namespace gradtool::cuda {

/// precision=fp16: rows of `length` floats, one behind the other, are rounded to binary16, every row after scaling by a
/// power of two (law::HalfScale). Of all of them the first `given` exist in `in`, the rest are zero. `out` may be `in`.
struct HalfRows {
  const float* in;
  float* out;
  std::size_t rows, length, given;
  int top;
  std::uint32_t* largest;  ///< room for a number a row
};
void round_rows_to_half(Queue<Space::cuda> queue, const HalfRows& rows);

}  // namespace gradtool::cuda
