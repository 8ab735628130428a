#pragma once

#include <cstdint>
#include <string>

#include "kernels/sparse.hpp"
#include "lib/codecs/params.hpp"

namespace gradtool {

/// The parameters of dct and what follows from them on both processors.
struct DctOptions {
  explicit DctOptions(const Params& params)
      : ratio{params.real("ratio")}, refresh{params.integer("refresh")}, coding{params.word("index")} {}

  /// k: the threshold is the k-th largest of n magnitudes.
  [[nodiscard]] std::size_t kept(std::size_t n) const { return share_of(ratio, n); }
  /// A note for the reader of a row after so many steps: that the threshold was never refreshed.
  [[nodiscard]] std::string note(std::int64_t steps) const {
    if (steps < 2 || steps > refresh) return "";
    return "the threshold is that of the first of " + std::to_string(steps) + " steps";
  }

  double ratio;
  std::int64_t refresh;  ///< steps that a threshold serves
  IndexCoding coding;
};

namespace format {

/// Thresholds are binary32 patterns of magnitudes. Zeros are never sent, so the pattern 0 says that there is none yet.
inline constexpr std::uint32_t kNoThreshold = 0;
/// A threshold is at most infinity: what is not finite is always sent, and a threshold among the NaNs would stop
/// everything else until the next refresh.
inline constexpr std::uint32_t kInfinity = 0x7f800000u;

}  // namespace format
}  // namespace gradtool
