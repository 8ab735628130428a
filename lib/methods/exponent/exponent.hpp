#pragma once

#include "lib/core/view.hpp"

namespace gradtool {

/// out := the values of a payload of `exponent`, with the bits that were sent: NaNs and the sign of zero included,
/// which an addition to something does not keep. Throws Fault::data for a payload that cannot be one of out.size()
/// elements.
void decode_exponent(Queue<Space::host> queue, HostView<const std::byte> payload, HostView<float> out);

}  // namespace gradtool
