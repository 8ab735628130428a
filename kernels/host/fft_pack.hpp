#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/law/fft_payload.hpp"
#include "kernels/law/range_float.hpp"
#include "lib/core/view.hpp"

namespace gradtool::host {

/// spectrum := factor * complex, `bins` pairs, and the powers re^2 + im^2 that selection sorts by.
void keep_power(const float* complex, std::size_t bins, float factor, float* spectrum, float* power);

/// out[i] += factor * in[i].
void add_scaled(const float* in, std::size_t count, float factor, float* out);

/// Bins that were selected, in ascending order, their components, and the largest pattern of |component|.
struct KeptBins {
  HostView<const std::uint32_t> positions;
  HostView<const float> values;  ///< two for each position
  std::uint32_t largest = 0;
};
/// Copies the components of `positions` to `values`. Where all bins are kept there need be no positions.
[[nodiscard]] KeptBins take_bins(Queue<Space::host> queue, const float* spectrum, std::size_t bins,
                                 HostView<const std::uint32_t> positions, bool all, float* values);

/// What turns an unnormalised component into the number that is coded, and back.
struct FftScaling {
  float factor = 0.0F;  ///< component times this is coded
  float scale = 0.0F;   ///< what the header says
};
/// `unit` = 1/sqrt(L) makes the transform unitary; `scaled` stretches the largest kept component to 1, which is the
/// format's range. A largest component that is not finite gives a scale of NaN.
[[nodiscard]] FftScaling scaling_of(std::uint32_t largest, float unit, bool quantised, bool scaled);

/// Quantises and writes the whole payload.
void write_payload(Queue<Space::host> queue, const KeptBins& kept, law::FftHeader header, const law::RangeFloat& format,
                   const FftScaling& scaling, std::byte* payload);

/// Memory that pack_spectrum works on.
struct PackWork {
  const float* spectrum;     ///< header.bins pairs, unnormalised
  const float* power;        ///< one for each bin
  std::uint32_t* positions;  ///< room for header.kept
  float* values;             ///< room for header.kept pairs
  HostView<std::byte> selector;
};

/// Selects the header.kept strongest bins and writes them. Given the same spectrum, CPU and GPU write the same bytes.
void pack_spectrum(Queue<Space::host> queue, const PackWork& work, const law::FftHeader& header,
                   const law::RangeFloat& format, float unit, bool scaled, std::byte* payload);

/// A payload that has been checked: everything that unpack_add will touch lies inside it.
struct PackedSpectrum {
  law::FftLayout layout{};
  float scale = 0.0F;
  law::RangeFloat format{};
  const std::uint32_t* bitmap = nullptr;  ///< null when every bin is kept
  const std::uint32_t* codes = nullptr;
  std::span<const std::uint32_t> offsets;  ///< kept bins before each piece
};

/// Checks `payload` against the shape and `expected` (bits, mantissa, pbase, positives, bins), and counts the bitmap
/// into `offsets`. Throws Fault::data saying what does not fit.
[[nodiscard]] PackedSpectrum open_spectrum(HostView<const std::byte> payload, const law::FftHeader& expected,
                                           const law::FftShape& shape, std::span<std::uint32_t> offsets);

/// complex += the spectrum of one piece, unitary.
void unpack_add(const PackedSpectrum& spectrum, std::size_t piece, const law::FftShape& shape, float* complex);

}  // namespace gradtool::host
