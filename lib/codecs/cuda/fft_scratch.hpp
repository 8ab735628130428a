#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "kernels/cuda/fft_pack.hpp"
#include "kernels/law/fft_payload.hpp"
#include "lib/codecs/fft_options.hpp"
#include "lib/core/arena.hpp"

namespace gradtool {

/// Where the fft codec has what in its scratch view on a GPU, each piece 256-byte aligned; encode and decode use it
/// differently. Without a view, only `bytes` means something.
struct CudaFftScratch {
  float* real = nullptr;                 ///< rows of a group
  float* spectrum = nullptr;             ///< encode: all bins (re, im), chunks in a row; decode: those of a group
  float* kept = nullptr;                 ///< components of the kept bins
  std::uint32_t* row_largest = nullptr;  ///< precision=fp16: a number for each row of a group
  std::byte* transform = nullptr;        ///< cuFFT's work area
  View<std::byte, Space::cuda> work{};   ///< of packing and unpacking
  std::size_t bytes = 0;

  /// `group`: the most elements, and `rows` the most rows, that are transformed at a time.
  CudaFftScratch(const FftOptions& options, const law::FftShape& shape, std::size_t group, std::size_t rows,
                 std::size_t transform_bytes, View<std::byte, Space::cuda> view = {}) {
    const std::size_t bins = shape.bins();
    const auto take = [&](auto*& piece, std::size_t count) {
      if (view.data() != nullptr)
        piece = reinterpret_cast<std::remove_reference_t<decltype(piece)>>(view.data() + bytes);
      bytes += Arena<Space::cuda>::padded_size(sizeof(*piece) * count);
    };
    take(real, group);
    take(spectrum, 2 * bins);
    take(kept, 2 * options.most_kept(shape));
    take(row_largest, options.half() ? rows : 0);
    take(transform, transform_bytes);
    std::byte* last = nullptr;
    const std::size_t size = std::max(cuda::pack_work_bytes(bins), cuda::unpack_work_bytes(bins));
    take(last, size);
    work = {last, size};
    expects(view.data() == nullptr || bytes <= view.size(), "fft: scratch is smaller than planned");
  }
};

}  // namespace gradtool
