#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/block_format.hpp"
#include "kernels/symmetric_integer.hpp"

namespace gradtool::format {

/// Integers with a float32 scale, of which 32 consecutive elements are rotated together, whatever the size of a block.
template <std::uint32_t Bits>
struct Sdp4bitFormat : FloatScaled<SymmetricInt<Bits>> {
  Rotation<32, true> rotation;

  /// The rotation that the parameters ask for. Seed 0 turns no signs.
  template <class Params>
  static Sdp4bitFormat of(const Params& params) {
    Sdp4bitFormat made;
    const auto seed = static_cast<std::uint64_t>(params.integer("seed"));
    if (seed != 0) made.rotation = made.rotation.of(seed);
    made.rotation.on = params.is("hadamard", "on");
    return made;
  }
};

}  // namespace gradtool::format
