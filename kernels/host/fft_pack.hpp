#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/law/fft_payload.hpp"
#include "kernels/law/range_float.hpp"
#include "lib/core/view.hpp"

namespace gradtool::host {

/// Copies a spectrum of `bins` pairs and writes the keys that selection sorts by: the patterns of re^2 + im^2.
void keep_keys(const float* complex, std::size_t bins, float* spectrum, std::uint32_t* keys);

/// out[i] += factor * in[i].
void add_scaled(const float* in, std::size_t count, float factor, float* out);

/// Memory that pack_spectrum works on.
struct PackWork {
  const float* spectrum;      ///< header.bins pairs, unnormalised
  const std::uint32_t* keys;  ///< one for each bin
  float* kept;                ///< room for header.kept pairs
  HostView<std::byte> selector;
};

/// Selects header.kept bins, quantises and writes the whole payload. `unit` = 1/sqrt(L) makes the transform unitary;
/// `scaled` stretches the largest kept component to 1, which is the format's range. Given the same spectrum, CPU and
/// GPU write the same bytes.
void pack_spectrum(Queue<Space::host> queue, const PackWork& work, law::FftHeader header, const law::RangeFloat& format,
                   float unit, bool scaled, std::byte* payload);

/// A payload that has been checked: everything that unpack_add will touch lies inside it.
struct PackedSpectrum {
  law::FftLayout layout{};
  float scale = 0.0F;
  law::RangeFloat format{};
  const std::uint32_t* bitmap = nullptr;  ///< null when every bin is kept
  const std::uint32_t* codes = nullptr;
  std::span<const std::uint32_t> offsets;  ///< kept bins before each chunk
};

/// Checks `payload` against the shape and `expected` (bits, mantissa, pbase, positives, bins), and counts the bitmap
/// into `offsets`. Throws Fault::data saying what does not fit.
[[nodiscard]] PackedSpectrum open_spectrum(HostView<const std::byte> payload, const law::FftHeader& expected,
                                           const law::FftShape& shape, std::span<std::uint32_t> offsets);

/// complex += the spectrum of chunk `chunk`, unitary.
void unpack_add(const PackedSpectrum& spectrum, std::size_t chunk, std::size_t bins_per_chunk, float* complex);

}  // namespace gradtool::host
