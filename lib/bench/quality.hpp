#pragma once

#include <optional>
#include <vector>

#include "lib/bench/units.hpp"
#include "lib/codecs/registry.hpp"

namespace gradtool {

/// One rank's codec alone, on worker 0's gradients of the first captured step, without residual or collective.
struct CodecQuality {
  double nmse = 0.0;                    ///< of one encode, pooled over units
  std::optional<double> bias_nmse;      ///< unbiased codecs: |mean over seeds - x|^2 / |x|^2, less its sampling error
  std::optional<double> variance_nmse;  ///< unbiased codecs: mean |y - mean y|^2 / |x|^2
};

/// 30 seeds where the codec claims to be unbiased, one encode else. Not timed.
[[nodiscard]] CodecQuality measure_quality(const GradientReader& reader, const std::vector<Unit>& units,
                                           const CodecSpec& spec, std::uint64_t seed);

}  // namespace gradtool
