#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/cuda/fft_calibrate.hpp"
#include "kernels/cuda/fft_select.hpp"
#include "kernels/law/fft_payload.hpp"
#include "kernels/law/range_float.hpp"
#include "lib/core/view.hpp"

/// What the fft codec does between transform and wire, on the GPU: given the same spectrum, the bytes and sums of
/// kernels/host/fft_pack.hpp. Everything is enqueued, allocates nothing and keeps its state in the work memory given.
namespace gradtool::cuda {

/// Bytes of PackMemory::work for up to `bins` bins. Asks the current GPU, so call it before the clock starts.
[[nodiscard]] std::size_t pack_work_bytes(std::size_t bins);

struct PackMemory {
  const float* spectrum;              ///< header.bins pairs, unnormalised; 16-byte aligned
  float* kept;                        ///< room for header.kept pairs; 16-byte aligned
  View<std::byte, Space::cuda> work;  ///< pack_work_bytes, 256-byte aligned
};

/// Selects header.kept bins, quantises and writes the whole payload (8-byte aligned). `unit` = 1/sqrt(L) and `scaled`
/// as in host::pack_spectrum. Reads the spectrum once (a small one twice), and then what is kept of it. With `shares`,
/// of which header.kept is the sum, each piece is selected alone, which reads it five times. With `calibration`, that
/// says how components are scaled and with which of the formats they are coded; else header.mantissa and `scaled`.
void pack_spectrum(Queue<Space::cuda> queue, const PackMemory& memory, const law::FftHeader& header,
                   const law::RangeFormats& formats, float unit, bool scaled, const PieceShares* shares,
                   const Calibration* calibration, std::byte* payload);

/// Payloads that are added into one spectrum at a time.
inline constexpr std::size_t kMostUnpacked = 16;

/// Bytes of work memory for up to kMostUnpacked payloads, as pack_work_bytes.
[[nodiscard]] std::size_t unpack_work_bytes(std::size_t bins);

/// Payloads whose spectra are added. They are 8-byte aligned and hold at least a header (Fault::usage otherwise).
struct PackedSpectra {
  std::span<const View<const std::byte, Space::cuda>> payloads;
  law::FftHeader expected;  ///< bits and bins that each must have
  law::RangeFormats formats;
  law::FftShape shape;
  View<std::byte, Space::cuda> work;  ///< unpack_work_bytes, 256-byte aligned
};

/// Checks the payloads and counts their bins, for calls of unpack_spectra with the same arguments.
void open_spectra(Queue<Space::cuda> queue, const PackedSpectra& of);

/// spectrum := `count` bins, from `first` on, of the sum of the payloads' spectra, in their order; unitary, the
/// imaginary parts of real bins 0. A payload that does not fit `expected`, that has none of the formats, or whose
/// sections contradict each other makes all bins NaN; nothing is read behind the end of its view, which may lie behind
/// the payload's.
void unpack_spectra(Queue<Space::cuda> queue, const PackedSpectra& of, std::size_t first, std::size_t count,
                    float* spectrum);

}  // namespace gradtool::cuda
