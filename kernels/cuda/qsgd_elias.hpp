#pragma once

#include "kernels/law/philox.hpp"
#include "kernels/law/qsgd_streams.hpp"
#include "lib/core/view.hpp"

/// qsgd with code=elias on the GPU: the bytes and sums of lib/codecs/qsgd_elias.hpp. Enqueued. A block writes a part's
/// stream, whose length nobody knows before, into a slot; the slots are then moved together. A warp reads one.
namespace gradtool::cuda {

/// Scratch for encode and for decode_add. Asks the current GPU, so call it before the clock starts.
[[nodiscard]] std::size_t qsgd_elias_scratch_bytes(const law::QsgdStreams& layout);

/// Writes a payload of at most layout.most_bytes(). layout.n elements at `gradient`; bits is 2 to 8; `payload` is
/// 8-byte aligned. `l2` as in qsgd_encode.
void qsgd_elias_encode(Queue<Space::cuda> queue, const law::QsgdStreams& layout, std::uint32_t bits,
                       const float* gradient, bool l2, const law::DrawKey& key, std::byte* payload,
                       View<std::byte, Space::cuda> scratch);

/// out[i] += weight * decoded for layout.n elements. `payload` may be longer than what it says of itself, and holds at
/// least layout.streams_offset() bytes. Sizes that contradict each other or the view make all of `out` NaN; a stream
/// ends at the first code that is none.
void qsgd_elias_decode_add(Queue<Space::cuda> queue, const law::QsgdStreams& layout,
                           View<const std::byte, Space::cuda> payload, float weight, float* out,
                           View<std::byte, Space::cuda> scratch);

}  // namespace gradtool::cuda
