#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "kernels/cuda/fft_pack.hpp"
#include "kernels/cuda/scratch_pieces.hpp"
#include "kernels/law/fft_payload.hpp"
#include "lib/codecs/fft_options.hpp"

namespace gradtool {

/// Where the fft codec has what in its scratch view on a GPU; encode and decode use it differently. Without a view,
/// only `bytes` means something.
struct CudaFftScratch {
  float* real;                        ///< rows of a group
  float* spectrum;                    ///< encode: all bins (re, im), chunks in a row; decode: those of a group
  float* kept;                        ///< components of the kept bins
  std::uint32_t* row_largest;         ///< precision=fp16: a number for each row of a group
  std::byte* transform;               ///< cuFFT's work area
  View<std::byte, Space::cuda> work;  ///< of packing and unpacking
  std::size_t bytes;

  /// `group`: the most elements, and `rows` the most rows, that are transformed at a time.
  CudaFftScratch(const FftOptions& options, const law::FftShape& shape, std::size_t group, std::size_t rows,
                 std::size_t transform_bytes, View<std::byte, Space::cuda> scratch) {
    const std::size_t bins = shape.bins();
    cuda::ScratchPieces pieces{scratch};
    pieces.take(real, group);
    pieces.take(spectrum, 2 * bins);
    pieces.take(kept, 2 * options.most_kept(shape));
    pieces.take(row_largest, options.half() ? rows : 0);
    pieces.take(transform, transform_bytes);
    work = pieces.take(std::max(cuda::pack_work_bytes(bins), cuda::unpack_work_bytes(bins)));
    bytes = pieces.bytes();
  }
};

}  // namespace gradtool
