#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <shared_mutex>
#include <span>

#include "kernels/transform.hpp"
#include "lib/core/scratch.hpp"
#include "lib/core/view.hpp"
#include "lib/methods/fft/format.hpp"
#include "lib/methods/fft/options.hpp"

/// The steps of the fft codec on the CPU: transforms of the pieces, choice of the strongest bins, and the way from
/// their components to a payload and back. Nothing here allocates but FftTransform::plan.
namespace gradtool {

/// Working memory of one call of encode or decode.
struct FftWorkspace {
  static constexpr std::size_t kMostParts = 16;   ///< transforms that are computed at the same time
  static constexpr std::size_t kMostSummed = 16;  ///< payloads that share one inverse transform

  FftWorkspace(const FftOptions& options, const format::FftShape& shape, Scratch<Space::host> scratch);

  /// Buffers of one thread.
  struct Part {
    HostView<float> real;           ///< one piece of the signal
    HostView<float> complex;        ///< its spectrum, (re, im)
    HostView<std::byte> selection;  ///< for host::Largest on one piece, with select=chunk
  };
  std::size_t part_count;  ///< how many of `parts` have memory
  std::array<Part, kMostParts> parts;
  HostView<float> spectrum;           ///< the spectra of all pieces in a row, (re, im), not normalised
  HostView<float> power;              ///< re^2 + im^2 of each bin
  HostView<std::byte> selection;      ///< for host::Largest on all bins, with select=global
  HostView<std::uint32_t> positions;  ///< the bins that are kept, in ascending order
  HostView<float> kept;               ///< the components of these bins
  HostView<std::uint32_t> offsets;    ///< decode: kept bins in front of each piece, for each of kMostSummed payloads
};

namespace host {

/// The bins that a payload keeps.
struct KeptBins {
  HostView<const std::uint32_t> positions;  ///< ascending; empty where all bins are kept
  HostView<const float> values;             ///< (re, im) of each kept bin
  std::uint32_t largest = 0;                ///< largest magnitude of `values`, as a binary32 pattern without sign
};
/// Copies the components of the bins at `positions`, or of all `bins` bins where `all` is true, to `values`.
[[nodiscard]] KeptBins take_bins(Queue<Space::host> queue, const float* spectrum, std::size_t bins,
                                 HostView<const std::uint32_t> positions, bool all, float* values);

/// Codes the kept bins and writes the whole payload. Of `header` the size and the scale are filled in here.
void write_payload(Queue<Space::host> queue, const KeptBins& kept, format::FftHeader header,
                   const format::RangeFloat& format, const format::FftScaling& scaling, std::byte* payload);

/// A payload that was checked: everything that unpack_add reads lies inside it.
struct PackedSpectrum {
  format::FftLayout layout{};
  float scale = 0.0F;
  format::RangeFloat format{};
  const std::uint32_t* bitmap = nullptr;  ///< null when every bin is kept
  const std::uint32_t* codes = nullptr;
  std::span<const std::uint32_t> offsets;  ///< kept bins in front of each piece
};

/// Checks `payload` against the shape and the fields bits, mantissa, pbase, positives and bins of `expected`, and
/// writes the kept bins in front of each piece to `offsets`. Throws Fault::data saying what does not fit.
[[nodiscard]] PackedSpectrum open_spectrum(HostView<const std::byte> payload, const format::FftHeader& expected,
                                           const format::RangeFloat& format, const format::FftShape& shape,
                                           std::span<std::uint32_t> offsets);

/// complex += the unitary spectrum of one piece.
void unpack_add(const PackedSpectrum& spectrum, std::size_t piece, const format::FftShape& shape, float* complex);

/// spectrum := factor * complex for `bins` (re, im) pairs, and power := re^2 + im^2 of the results.
void scale_and_square(const float* complex, std::size_t bins, float factor, float* spectrum, float* power);

/// precision=fp16: rounds `count` numbers that share one power of two, which brings the largest magnitude below 2^top
/// (format::HalfRounding).
void round_to_half(float* x, std::size_t count, int top);

}  // namespace host

/// The transforms of a codec's pieces by FFTW, several pieces in parallel, and the choice of the strongest bins.
class FftTransform {
 public:
  /// `options` outlive the transform.
  explicit FftTransform(const FftOptions& options) : options_{options} {}

  /// Makes FFTW's plans for a shape, which every other call needs. Allocates; may be called by several threads.
  void plan(const format::FftShape& shape) const;

  /// workspace.spectrum and workspace.power := those of the gradient. The tail's bins are scaled as if it had the
  /// length of a chunk, so that bins compare by their unitary coefficients.
  void forward(Queue<Space::host> queue, HostView<const float> gradient, const format::FftShape& shape,
               const FftWorkspace& workspace) const;
  /// positions := the bins with the largest workspace.power, of all pieces together or of each piece.
  void select(Queue<Space::host> queue, double theta, const format::FftShape& shape, const FftWorkspace& workspace,
              HostView<std::uint32_t> positions) const;
  /// out += weight * the signal whose spectrum is the sum of `spectra`, of at most FftWorkspace::kMostSummed.
  void inverse(Queue<Space::host> queue, std::span<const host::PackedSpectrum> spectra, float weight,
               const format::FftShape& shape, const FftWorkspace& workspace, HostView<float> out) const;

 private:
  void make_plan(std::size_t length) const;
  [[nodiscard]] const host::RealTransform& plan_of(std::size_t length) const;

  const FftOptions& options_;
  mutable std::shared_mutex mutex_;
  mutable std::map<std::size_t, std::unique_ptr<host::RealTransform>> plans_;  ///< by length
};

}  // namespace gradtool
