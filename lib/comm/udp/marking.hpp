#pragma once

#include <span>

#include "lib/comm/udp/message.hpp"
#include "lib/core/dtype.hpp"

/// Which packets matter (DLCP, specification part 3.4): large ones, and those of layers near the output.
namespace gradtool::udp {

/// The part with its class, one of seven from the input side, and whether its layer lies in the last third of the
/// model. `depth`: share of the model's elements in tensors before it, 0 to 1.
[[nodiscard]] TensorPart at_depth(TensorPart part, double depth);

/// One bit for each packet: set where the mean magnitude of its elements is at least the median (the upper one) of its
/// tensor's packets in this message, and for all packets of layers in the last third. The papers leave the statistic
/// open; a median of the message itself needs no memory of earlier ones. Takes one pass over the data. NaN is large.
[[nodiscard]] Bits important_packets(const Plan& plan, std::span<const std::byte> data, Dtype dtype);

}  // namespace gradtool::udp
