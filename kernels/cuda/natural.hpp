#pragma once

#include <span>

#include "kernels/cuda/payloads.hpp"
#include "kernels/cuda/units.hpp"
#include "kernels/law/philox.hpp"
#include "lib/core/view.hpp"

/// natural on the GPU, the bytes of lib/codecs/natural.cpp: n exponents padded to 4 bytes, then a sign bit each. One
/// pass over every unit. Enqueued. Payloads are 4-byte aligned.
namespace gradtool::cuda {

/// Unit i draws as tensor key.tensor + i.
void natural_encode(Queue<Space::cuda> queue, std::span<const Unit> units, const law::DrawKey& key);
/// to[i] += weight * decoded.
void natural_decode_add(Queue<Space::cuda> queue, std::span<const Unit> units, float weight);
/// out[i] += weight * decoded for every payload in turn, in one pass over `out`.
void natural_decode_add(Queue<Space::cuda> queue, const Payloads& payloads, float weight, View<float, Space::cuda> out);

}  // namespace gradtool::cuda
