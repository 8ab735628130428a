#pragma once

#include <span>

#include "kernels/cuda/payloads.hpp"
#include "kernels/cuda/units.hpp"
#include "kernels/law/philox.hpp"
#include "kernels/law/qsgd_layout.hpp"
#include "lib/core/view.hpp"

/// qsgd on the GPU, one warp for a bucket, or for a piece of a large one; the bytes of lib/codecs/qsgd.cpp, for every
/// unit. `like` is the layout of a unit but for its n; like.bits is 2 to 8. Enqueued. Reads the gradients once from
/// memory (twice from cache) and writes the payloads once.
namespace gradtool::cuda {

/// True where a bucket is too long for one warp: units are then encoded one by one.
[[nodiscard]] bool qsgd_by_pieces(const law::QsgdLayout& like);

/// Writes the payloads, 4-byte aligned; unit i draws as tensor key.tensor + i. `l2`: the norm is the fixed tree of
/// kernels/law/qsgd.hpp, else the largest magnitude. Several units only where qsgd_by_pieces does not hold
/// (Fault::usage).
void qsgd_encode(Queue<Space::cuda> queue, const law::QsgdLayout& like, std::span<const Unit> units, bool l2,
                 const law::DrawKey& key);

/// to[i] += weight * decoded. Reads exactly the payloads' bytes, whatever they are.
void qsgd_decode_add(Queue<Space::cuda> queue, const law::QsgdLayout& like, std::span<const Unit> units, float weight);

/// out[i] += weight * decoded for layout.n elements and every payload in turn, in one pass over `out`. Reads exactly
/// layout.bytes() bytes of each, whatever they are.
void qsgd_decode_add(Queue<Space::cuda> queue, const law::QsgdLayout& layout, const Payloads& payloads, float weight,
                     float* out);

/// norms := what is stored for each bucket; layout.bits does not matter.
void qsgd_norms(Queue<Space::cuda> queue, const law::QsgdLayout& layout, const float* gradient, bool l2, float* norms);

}  // namespace gradtool::cuda
