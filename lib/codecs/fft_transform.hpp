#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/host/fft_pack.hpp"
#include "lib/codecs/fft_options.hpp"
#include "lib/codecs/fft_plans.hpp"
#include "lib/codecs/fft_scratch.hpp"
#include "lib/core/view.hpp"

namespace gradtool {

/// What lies between gradients and packed spectra in the fft codec: transforms of the pieces, in parallel, and the
/// choice of the strongest bins.
class FftTransform {
 public:
  /// `options` outlive it.
  explicit FftTransform(const FftOptions& options) : options_{options} {}

  /// Makes the plans of a shape, which all else needs. Allocates.
  void plan(const law::FftShape& shape) const;

  /// at.spectrum and at.power := those of the gradient, piece by piece, not normalised.
  void forward(Queue<Space::host> queue, HostView<const float> gradient, const law::FftShape& shape,
               const FftScratch& at) const;
  /// positions := the bins with the largest at.power, of all pieces or of each, ascending.
  void select(Queue<Space::host> queue, double theta, const law::FftShape& shape, const FftScratch& at,
              HostView<std::uint32_t> positions) const;
  /// out += weight * the signal of the sum of `spectra`, at most FftScratch::kMaxSummed.
  void inverse(Queue<Space::host> queue, std::span<const host::PackedSpectrum> spectra, float weight,
               const law::FftShape& shape, const FftScratch& at, HostView<float> out) const;

  /// Makes a transform of this length unitary.
  [[nodiscard]] static float unit_of(std::size_t length);

 private:
  const FftOptions& options_;
  FftPlans plans_;
};

}  // namespace gradtool
