#pragma once

#include <cstdint>

#include "kernels/cuda/tensor_pieces.hpp"

/// Signs and means of magnitudes on the GPU, the bytes of lib/codecs/sign_codec.cpp. Enqueued. Pieces are packed one
/// bit an element.
namespace gradtool::cuda {

/// Scratch of signs_encode with means.
[[nodiscard]] constexpr std::size_t signs_scratch_bytes(std::size_t pieces) {
  return sizeof(double) * pieces;
}

/// words := a bit for each element, set where it is below zero; means := the mean magnitude of each tensor, unless it
/// is null. Reads the gradient once.
void signs_encode(Queue<Space::cuda> queue, const TensorTable& table, const float* gradient, std::uint32_t* words,
                  float* means, std::byte* scratch);

/// out[i] += ±weight * mean for every payload in turn, ±weight where they have no means (`scaled` false). Reads and
/// writes `out` once. Payloads are `means`, then words, as long as the table says.
void signs_decode_add(Queue<Space::cuda> queue, const TensorTable& table, const Payloads& payloads, bool scaled,
                      float weight, float* out);

}  // namespace gradtool::cuda
