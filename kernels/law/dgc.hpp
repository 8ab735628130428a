#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/law/half.hpp"
#include "kernels/law/hd.hpp"

namespace gradtool::law {

/// Momentum correction of deep gradient compression (Lin et al., ICLR 2018, arXiv 1712.01887, section 3.2), one element
/// at a time: what accumulates is velocity, not gradient.
struct Dgc {
  float momentum = 0.9F;
  float scale = 1.0F;  ///< of local clipping
  bool nesterov = false;

  struct Step {
    float u = 0.0F;          ///< the velocity after the step
    float increment = 0.0F;  ///< what v grows by
  };
  GT_HD Step step(float g, float u) const {
    const float clipped = scale * g;
    if (nesterov) {
      const float next = momentum * (u + clipped);
      return {next, next + clipped};
    }
    const float next = momentum * u + clipped;
    return {next, next};
  }
};

/// The norm of local clipping adds squares in float64 and in an order of its own: of pieces of so many elements, each
/// in lanes whose sums then add in turn; what the last round of lanes does not fill goes to the first of them.
inline constexpr std::size_t kDgcNormPiece = 8192;
inline constexpr std::size_t kDgcNormLanes = 16;

/// How a sampled threshold is corrected until about k pass (section 3.1 and the published code).
struct DgcCorrection {
  static constexpr float kRaise = 1.3F;  ///< a threshold that lets more than 1.3 k pass is too low,
  static constexpr float kLower = 0.8F;  ///< one that lets less than 0.8 k pass too high
  static constexpr int kTries = 10;

  std::size_t k = 0;
  bool scales = false;  ///< one that is too low is raised; else the exact cut settles it

  [[nodiscard]] GT_HD static std::size_t most(std::size_t k) {
    return static_cast<std::size_t>(static_cast<double>(kRaise) * static_cast<double>(k));
  }
  [[nodiscard]] GT_HD bool many(std::size_t count) const { return count > most(k); }
  [[nodiscard]] GT_HD bool few(std::size_t count) const {
    return static_cast<double>(count) < static_cast<double>(kLower) * static_cast<double>(k);
  }
  /// At least the smallest number, so that zeros are never sent, and at most infinity, so that NaNs are.
  [[nodiscard]] GT_HD static std::uint32_t clamped(std::uint32_t pattern) {
    constexpr std::uint32_t kInfinity = 0x7f800000u;
    return pattern < 1 ? 1 : pattern > kInfinity ? kInfinity : pattern;
  }
  [[nodiscard]] GT_HD static std::uint32_t moved(std::uint32_t threshold, bool up) {
    return clamped(bits_of(float_of(threshold) * (up ? kRaise : kLower)));
  }

  struct Threshold {
    std::uint32_t pattern = 1;
    std::size_t count = 0;  ///< of what reaches it
  };
  /// The threshold after all corrections. `count` tells how many reach a pattern.
  template <class Count>
  [[nodiscard]] GT_HD Threshold settle(std::uint32_t sampled, const Count& count) const {
    Threshold now{sampled, count(sampled)};
    for (int tries = 0; tries < kTries; ++tries) {
      const bool up = many(now.count);
      if (up ? !scales : !few(now.count)) break;
      const std::uint32_t next = moved(now.pattern, up);
      if (next == now.pattern) break;
      const std::size_t passing = count(next);
      if (up && few(passing)) break;  // nothing lies between: the exact cut of the too many
      now = {next, passing};
    }
    return now;
  }
};

}  // namespace gradtool::law
