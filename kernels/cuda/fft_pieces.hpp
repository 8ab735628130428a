#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/law/fft_payload.hpp"
#include "lib/core/view.hpp"

/// What the fft codec does to one piece at a time, on the GPU. Enqueued; the bytes are the host's, given the same
/// spectrum.
namespace gradtool::cuda {

/// select=chunk: every piece of the shape keeps its own strongest bins.
struct PieceShares {
  law::FftShape shape{};
  std::uint32_t of_chunk = 0;
  std::uint32_t of_tail = 0;
};

/// Writes the bitmap of all bins and appends the kept pairs in their order. *largest, cleared before, becomes the
/// largest pattern among them. A block works on a piece, which suits the many pieces of a large gradient.
void select_pieces(Queue<Space::cuda> queue, const PieceShares& by, const float* spectrum, std::uint32_t* keys,
                   std::uint32_t* bitmap, float* kept, std::uint32_t* largest);

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
