#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "kernels/law/dgc.hpp"
#include "lib/codecs/codec.hpp"
#include "lib/codecs/dgc_runs.hpp"
#include "lib/codecs/params.hpp"
#include "lib/core/view.hpp"

namespace gradtool {

/// Which of the competing elements dgc sends in a step: those above a threshold that a sample estimates and counts
/// correct (Lin et al., ICLR 2018), k of them at most. Parameters are those of codec dgc.
class DgcThreshold {
 public:
  /// `runs` outlives it.
  DgcThreshold(const Params& params, const DgcRuns& runs);

  /// The most that any step of the warm-up sends.
  [[nodiscard]] std::size_t most_kept() const { return most_kept_; }
  [[nodiscard]] std::size_t scratch_bytes() const { return places_.bytes; }

  /// k of the elements that compete, at least one, and how their number is to be corrected.
  [[nodiscard]] std::size_t kept(double density) const;
  [[nodiscard]] law::DgcCorrection correction(std::size_t k) const { return {k, scales_}; }
  [[nodiscard]] double density(std::int64_t iteration) const;
  struct Samples {
    std::size_t stride = 1, count = 0;
  };
  [[nodiscard]] Samples samples(double density) const;
  /// The most samples that a step takes.
  [[nodiscard]] std::size_t most_samples() const { return std::max(samples(ratio_).count, samples(density(0)).count); }
  /// How many of `taken` samples reach the threshold.
  [[nodiscard]] static std::size_t top(double density, std::size_t taken);

  /// positions and values := what passes the sampled threshold, corrected until it lets about k pass; of more than k
  /// the k largest. Both hold most_kept(); `maxima` are the largest patterns of |v| by blocks. Returns how many they
  /// are.
  [[nodiscard]] std::size_t choose(Queue<Space::host> queue, const EncodeContext& context, const float* v,
                                   const std::uint32_t* maxima, HostView<std::byte> scratch, std::uint32_t* positions,
                                   float* values) const;

 private:
  /// Where things lie in the scratch.
  struct Places {
    std::size_t select = 0, sample = 0, sample_places = 0, sample_values = 0, candidates = 0, candidate_values = 0,
                largest = 0, bytes = 0;
  };

  [[nodiscard]] std::uint32_t sampled_threshold(Queue<Space::host> queue, const EncodeContext& context, double density,
                                                const float* v, HostView<std::byte> scratch) const;

  const DgcRuns& runs_;
  double ratio_;
  bool scales_;
  std::int64_t warmup_;
  std::size_t most_kept_;
  Places places_;
};

}  // namespace gradtool
