#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/float_bits.hpp"
#include "kernels/marks.hpp"
#include "lib/codecs/params.hpp"

namespace gradtool {

/// The parameters of demo.
struct DemoOptions {
  explicit DemoOptions(const Params& params)
      : k{static_cast<std::size_t>(params.integer("k"))},
        beta{static_cast<float>(params.real("beta"))},
        signs{params.is("values", "sign")},
        senders{params.is("average", "senders")},
        sign_of_result{params.is("sign", "on")} {}

  std::size_t k;        ///< coefficients that are sent of a chunk of 4096
  float beta;           ///< of the momentum
  bool signs;           ///< values are sent as signs
  bool senders;         ///< a coefficient is averaged over the ranks that sent it, not over all
  bool sign_of_result;  ///< the result is the sign of the mean
};

namespace format {

/// The first bytes of the sections in a payload of `sent` coefficients. Signs have a scale for each tensor.
struct DemoSections {
  DemoSections(std::size_t tensors, std::size_t sent, bool signs)
      : values{signs && sent > 0 ? 4 * tensors : 0},
        positions{values + 4 * (signs ? mark_words(sent) : sent)},
        bytes{positions + (2 * sent + 3) / 4 * 4} {}
  std::size_t values, positions, bytes;
};

/// The coefficient of the momentum: beta m + c.
GT_HD inline float demo_carry(float held, float coefficient, float beta) {
  return one_nan(beta * held + coefficient);
}

/// The mean of a coefficient from its sum over ranks, `senders` of which sent it.
GT_HD inline float demo_mean(float sum, std::uint32_t senders) {
  return senders > 1 ? sum / static_cast<float>(senders) : sum;
}

/// An element of the result as its sign; 0 and what is not a number stay.
GT_HD inline float demo_sign(float x) {
  return x > 0.0F ? 1.0F : x < 0.0F ? -1.0F : x;
}

}  // namespace format
}  // namespace gradtool
