#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/law/fft_payload.hpp"
#include "lib/core/view.hpp"

/// Which bins of a spectrum the fft codec keeps, on the GPU. Enqueued; the same as on the host, given the same
/// spectrum.
namespace gradtool::cuda {

/// What is selected from, and what of the bins that are kept is written.
struct BinSelection {
  const float* spectrum;  ///< `bins` pairs, 16-byte aligned
  std::size_t bins;
  std::uint32_t* bitmap;   ///< of all bins
  float* kept;             ///< pairs, one behind the other
  std::uint32_t* largest;  ///< pattern without sign among their components; 0 before
};

/// Bytes of work memory for keep_strongest. Asks the current GPU, so call it before the clock starts.
[[nodiscard]] std::size_t keep_work_bytes(std::size_t bins);
/// Keeps the `count` strongest bins, at least one. `work`: keep_work_bytes, 256-byte aligned.
void keep_strongest(Queue<Space::cuda> queue, const BinSelection& of, std::size_t count,
                    View<std::byte, Space::cuda> work);

/// select=chunk: every piece of the shape keeps its own strongest bins.
struct PieceShares {
  law::FftShape shape{};
  std::uint32_t of_chunk = 0;
  std::uint32_t of_tail = 0;
};
/// A block works on a piece, which suits the many pieces of a large gradient: in fft_pieces.cu.
void keep_strongest_of_pieces(Queue<Space::cuda> queue, const BinSelection& of, const PieceShares& shares);

}  // namespace gradtool::cuda
