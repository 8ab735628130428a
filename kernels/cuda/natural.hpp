#pragma once

#include <cstddef>

#include "kernels/cuda/payloads.hpp"
#include "kernels/law/philox.hpp"
#include "lib/core/view.hpp"

/// natural on the GPU, the bytes of lib/codecs/natural.cpp: n exponents padded to 4 bytes, then a sign bit each. One
/// pass. Enqueued. `payload` is 4-byte aligned.
namespace gradtool::cuda {

void natural_encode(Queue<Space::cuda> queue, View<const float, Space::cuda> gradient, const law::DrawKey& key,
                    std::byte* payload);
/// out[i] += weight * decoded for every payload in turn, in one pass over `out`.
void natural_decode_add(Queue<Space::cuda> queue, const Payloads& payloads, float weight, View<float, Space::cuda> out);

}  // namespace gradtool::cuda
