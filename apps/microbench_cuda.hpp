#pragma once

#include <cstddef>
#include <vector>

#include "lib/codecs/registry.hpp"

namespace gradtool {

/// Registers encode and decode of every codec of `specs` that has a CUDA version, on GPU 0 and `elements` synthetic
/// elements, by CUDA events. Two inputs take turns, so that a gradient larger than half the L2 cache is read from
/// memory. Counters: raw = raw fp32 bytes a second; of_copy = what the codec's minimum traffic would take at the rate
/// of a device-to-device copy, over what it took (copying B bytes moves 2 B). Throws Fault::unavailable without a GPU.
/// Returns the copy's rate, bytes a second.
double register_cuda(const std::vector<CodecSpec>& specs, std::size_t elements);

}  // namespace gradtool
