#pragma once

#include <cstddef>
#include <vector>

#include "lib/codecs/registry.hpp"

namespace gradtool {

/// Registers, on GPU 0 and some `elements` synthetic elements, by CUDA events: whole steps of the methods of `specs`
/// that are matrix products between ranks (powersgd on one square matrix, gradiveq on 3 x 3 convolutions of 256 by
/// 256), of one rank alone, and for each those products alone by cuBLAS; for fft, cuFFT's transforms there and back
/// alone. What a method takes over its library is the quotient of the two. Fault::unavailable without a GPU.
void register_cuda_products(const std::vector<CodecSpec>& specs, std::size_t elements);

}  // namespace gradtool
