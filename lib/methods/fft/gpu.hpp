#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "lib/codecs/codec.hpp"
#include "lib/core/view.hpp"
#include "lib/methods/fft/calibration.hpp"
#include "lib/methods/fft/format.hpp"

/// The steps of the fft codec on a GPU, between the transform and the payload: pack.cu, unpack.cu and calibration.cu.
/// Given the same spectrum they make the bytes and sums of spectrum.hpp. Everything is enqueued and allocates nothing.
namespace gradtool::cuda {

/// select=chunk: how many bins each piece keeps.
struct PieceShares {
  format::FftShape shape{};
  std::uint32_t of_chunk = 0;
  std::uint32_t of_tail = 0;
};

/// The device's calibration state. `step` is the decision on the step that is being encoded.
struct DeviceCalibrationState {
  CalibrationState state;
  CalibrationStep step;
  std::uint32_t outside = 0;  ///< components of the step outside of the range
};

/// range=calibrated: the memory of one encoder. The decisions are those of FftCalibration; the squared errors by which
/// m is chosen are added in another order than on the CPU.
struct Calibration {
  CalibrationRules rules;
  bool chooses_mantissa;
  DeviceCalibrationState* device;  ///< on the GPU, as are the arrays below
  float* samples;                  ///< CalibrationRules::kSamplesPerStep for each of rules.steps
  double* errors;                  ///< one for each m
};

/// Decides how this step's components are coded and learns from them. `values` are `count` components, *largest is the
/// largest magnitude among them as a binary32 pattern without sign.
void calibrate(Queue<Space::cuda> queue, const Calibration& calibration, const format::RangeFormats& formats,
               const float* values, std::size_t count, const std::uint32_t* largest, float unit);

/// A spectrum and how it is packed.
struct SpectrumPacking {
  const float* spectrum;              ///< header.bins (re, im) pairs, unnormalised; 16-byte aligned
  float* kept;                        ///< memory for header.kept pairs; 16-byte aligned
  View<std::byte, Space::cuda> work;  ///< pack_work_bytes(header.bins), 256-byte aligned
  format::FftHeader header;           ///< its kept, bins and bits hold; with calibration m is decided anew
  format::RangeFormats formats;
  float unit;                                ///< format::unitary_factor(L)
  bool to_peak;                              ///< as in format::FftScaling::of
  const PieceShares* shares = nullptr;       ///< select=chunk: the shares, whose sum is header.kept
  const Calibration* calibration = nullptr;  ///< decides on scaling and m where it is not null
};

/// Bytes of SpectrumPacking::work. Asks the current GPU, so it is to be called before the clock starts.
[[nodiscard]] std::size_t pack_work_bytes(std::size_t bins);

/// Selects header.kept bins, codes them and writes the whole payload, which is 8-byte aligned. With select=global the
/// spectrum is read once when it is large and twice when it is small, with select=chunk four times; after that, only
/// what is kept is read.
void pack_spectrum(Queue<Space::cuda> queue, const SpectrumPacking& packing, std::byte* payload);

/// Payloads that are added into one spectrum at a time.
inline constexpr std::size_t kMostUnpacked = 16;

/// Payloads whose spectra are added. Each is 8-byte aligned and holds at least a header.
struct PackedSpectra {
  std::span<const View<const std::byte, Space::cuda>> payloads;  ///< at most kMostUnpacked
  format::FftHeader expected;                                    ///< bits and bins that each payload must have
  format::RangeFormats formats;                                  ///< one of which each payload must have
  format::FftShape shape;
  View<std::byte, Space::cuda> work;  ///< unpack_work_bytes(expected.bins), 256-byte aligned
};

/// Bytes of PackedSpectra::work for up to kMostUnpacked payloads. Asks the current GPU, as pack_work_bytes.
[[nodiscard]] std::size_t unpack_work_bytes(std::size_t bins);

/// Checks the payloads and counts their bins, for calls of unpack_spectra with the same argument.
void open_spectra(Queue<Space::cuda> queue, const PackedSpectra& spectra);

/// spectrum := `count` bins, from `first` on, of the sum of the payloads' spectra, added in their order; unitary, and
/// the imaginary parts of bins that are real are 0. A payload that host::open_spectrum would refuse makes all bins NaN;
/// nothing behind the end of its view is read. Unlike there, the view may be longer than the payload.
void unpack_spectra(Queue<Space::cuda> queue, const PackedSpectra& spectra, std::size_t first, std::size_t count,
                    float* spectrum);

/// precision=fp16: `rows` rows of `length` floats, one behind the other, each of which is rounded as by
/// host::round_to_half. Of all numbers the first `given` are in `in`, the others count as 0. `out` may be `in`.
struct HalfRows {
  const float* in;
  float* out;
  std::size_t rows, length, given;
  int top;
  std::uint32_t* largest;  ///< working memory, one number for each row
};
void round_rows_to_half(Queue<Space::cuda> queue, const HalfRows& rows);

/// The codec. Chunks are transformed in groups of `group` elements, or of one chunk where that is larger; only tests
/// choose it.
[[nodiscard]] std::unique_ptr<Codec<Space::cuda>> make_fft(const Params& params, std::size_t group);

}  // namespace gradtool::cuda
