#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/law/adacomp.hpp"
#include "lib/core/view.hpp"

/// A step of adacomp on the GPU, the bytes of lib/codecs/adacomp.cpp. Enqueued; nothing allocates.
namespace gradtool::cuda {

/// Elements and bins of a tensor; `width` bytes an entry or a count.
struct AdaCompTensor {
  std::size_t elements = 0;
  std::size_t bin = 1, bins = 0;
  std::size_t width = 1;
  std::size_t first_piece = 0, last_piece = 0;
};
/// Some whole bins of a tensor: what a block takes at a time.
struct AdaCompPiece {
  std::size_t tensor = 0, first = 0, count = 0;
  std::size_t first_bin = 0, bins = 0;
};
inline constexpr std::size_t kAdaCompMostBins = 8192;  ///< of a piece

struct AdaCompCut {
  const AdaCompTensor* tensors = nullptr;
  const AdaCompPiece* pieces = nullptr;
  std::size_t tensor_count = 0, piece_count = 0;
  std::size_t elements = 0;
};

/// Scratch of a step and of decoding. Asks the current GPU, so call it before the clock starts.
[[nodiscard]] std::size_t adacomp_scratch_bytes(std::size_t elements, std::size_t tensors, std::size_t pieces);

/// One step of one rank. The payload is 8-byte aligned.
void adacomp_encode(Queue<Space::cuda> queue, const AdaCompCut& cut, law::AdaComp law, const float* gradient,
                    float* residue, std::byte* payload, View<std::byte, Space::cuda> scratch);

/// out += weight * decoded, for a payload of at least 8 + 4 tensors bytes, which may be shorter than its view. One that
/// contradicts itself makes all of `out` NaN; entries that cannot be are skipped.
void adacomp_decode_add(Queue<Space::cuda> queue, const AdaCompCut& cut, View<const std::byte, Space::cuda> payload,
                        float weight, float* out, View<std::byte, Space::cuda> scratch);

}  // namespace gradtool::cuda
