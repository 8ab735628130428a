#pragma once

#include "kernels/cuda/payloads.hpp"
#include "kernels/law/philox.hpp"
#include "kernels/law/qsgd_layout.hpp"
#include "lib/core/view.hpp"

/// qsgd on the GPU, one warp for a bucket, or for a piece of a large one; the bytes of lib/codecs/qsgd.cpp. Enqueued.
/// Reads the gradient once from memory (twice from cache) and writes the payload once.
namespace gradtool::cuda {

/// Writes the layout.bytes() bytes of `payload`. layout.n elements at `gradient`; layout.bits is 2 to 8; `payload` is
/// 4-byte aligned. `l2`: the norm is the fixed tree of kernels/law/qsgd.hpp, else the largest magnitude.
void qsgd_encode(Queue<Space::cuda> queue, const law::QsgdLayout& layout, const float* gradient, bool l2,
                 const law::DrawKey& key, std::byte* payload);

/// out[i] += weight * decoded for layout.n elements and every payload in turn, in one pass over `out`. Reads exactly
/// layout.bytes() bytes of each, whatever they are.
void qsgd_decode_add(Queue<Space::cuda> queue, const law::QsgdLayout& layout, const Payloads& payloads, float weight,
                     float* out);

/// norms := what is stored for each bucket; layout.bits does not matter.
void qsgd_norms(Queue<Space::cuda> queue, const law::QsgdLayout& layout, const float* gradient, bool l2, float* norms);

}  // namespace gradtool::cuda
