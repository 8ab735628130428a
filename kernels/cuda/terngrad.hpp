#pragma once

#include <cstdint>

#include "kernels/cuda/tensor_pieces.hpp"
#include "kernels/law/philox.hpp"

/// terngrad on the GPU, the bytes of lib/codecs/terngrad.cpp. Enqueued.
namespace gradtool::cuda {

[[nodiscard]] constexpr std::size_t terngrad_scratch_bytes(std::size_t pieces) {
  return (2 * sizeof(double) + sizeof(std::uint32_t)) * pieces;
}

struct TerngradFormat {
  double clip = 0.0;   ///< 0: off
  bool base3 = false;  ///< five elements a byte, else two bits each
};

/// scales := one for each tensor; words := the codes. Reads the gradient twice, as the scale is a tensor's.
void terngrad_encode(Queue<Space::cuda> queue, const TensorTable& table, const TerngradFormat& format,
                     const float* gradient, const law::DrawKey& key, float* scales, std::uint32_t* words,
                     std::byte* scratch);

/// out[i] += weight * decoded for every payload in turn. Reads and writes `out` once. Payloads are a scale for each
/// tensor, then codes, whatever they are.
void terngrad_decode_add(Queue<Space::cuda> queue, const TensorTable& table, const TerngradFormat& format,
                         const Payloads& payloads, float weight, float* out);

}  // namespace gradtool::cuda
