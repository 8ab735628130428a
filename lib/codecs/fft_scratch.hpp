#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "kernels/host/largest.hpp"
#include "kernels/law/fft_payload.hpp"
#include "lib/codecs/fft_options.hpp"
#include "lib/core/view.hpp"

namespace gradtool {

/// Where the fft codec has what in its scratch view; encode and decode use it differently.
struct FftScratch {
  static constexpr std::size_t kParts = 16;      ///< transforms that are in work at once
  static constexpr std::size_t kMaxSummed = 16;  ///< payloads that share one inverse transform

  float* spectrum;           ///< bins (re, im), pieces in a row
  float* power;              ///< |X|^2
  std::uint32_t* positions;  ///< of the kept bins
  float* kept;               ///< and their components
  float* real;               ///< a piece for each part
  float* complex;            ///< and its spectrum, aligned as FFTW wants
  std::uint32_t* offsets;    ///< first kept bin of each piece, for each summed payload
  std::byte* selector;

  /// Floats, so that what follows is aligned.
  static constexpr std::size_t padded(std::size_t floats) { return (floats + 63) / 64 * 64; }
  static std::size_t parts(const law::FftShape& shape) { return std::min(kParts, shape.pieces()); }
  static std::size_t selector_bytes(const FftOptions& options, const law::FftShape& shape) {
    return options.by_piece() ? parts(shape) * 4 * padded(host::Largest::scratch_bytes(shape.bins_per_chunk()) / 4)
                              : host::Largest::scratch_bytes(shape.bins());
  }
  static std::size_t bytes(const FftOptions& options, const law::FftShape& shape) {
    const std::size_t most = options.most_kept(shape);
    const std::size_t floats = padded(2 * shape.bins()) + padded(shape.bins()) + padded(most) + padded(2 * most) +
                               parts(shape) * (padded(shape.length) + padded(2 * shape.bins_per_chunk())) +
                               padded(kMaxSummed * shape.pieces());
    return 4 * floats + selector_bytes(options, shape);
  }
  FftScratch(const FftOptions& options, const law::FftShape& shape, HostView<std::byte> view) {
    const std::size_t most = options.most_kept(shape);
    auto* next = reinterpret_cast<float*>(view.data());
    const auto take = [&next](std::size_t floats) { return std::exchange(next, next + padded(floats)); };
    spectrum = take(2 * shape.bins());
    power = take(shape.bins());
    positions = reinterpret_cast<std::uint32_t*>(take(most));
    kept = take(2 * most);
    real = take(parts(shape) * padded(shape.length));
    complex = take(parts(shape) * padded(2 * shape.bins_per_chunk()));
    offsets = reinterpret_cast<std::uint32_t*>(take(kMaxSummed * shape.pieces()));
    selector = reinterpret_cast<std::byte*>(next);
  }
};

}  // namespace gradtool
