#pragma once

#include <vector>

#include "lib/codecs/registry.hpp"

namespace gradtool {

/// Registers encode and decode of the 161 tensors of a ResNet-50 on GPU 0, by CUDA events: one by one, in batches
/// (Codec::encode_each) and fused into one, for the codecs of `specs` whose CUDA version treats tensors alike. Counter
/// times_fused: over the median of the fused form, measured beside it. Throws Fault::unavailable without a GPU.
void register_cuda_tensors(const std::vector<CodecSpec>& specs);

}  // namespace gradtool
