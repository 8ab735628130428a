#pragma once

#include <cstddef>
#include <vector>

#include "lib/codecs/registry.hpp"

namespace gradtool {

/// Registers, on GPU 0 and some `elements` synthetic elements, by CUDA events: whole steps of the methods of `specs`
/// that exist between ranks, of one rank alone (on one square matrix, gradiveq on 3 x 3 convolutions of 256 by 256),
/// and for powersgd and gradiveq their matrix products alone by cuBLAS; for fft, cuFFT's transforms there and back
/// alone. What such a method takes over its library is the quotient of the two. Counter of_copy as register_cuda, of
/// the `copy_rate` that it returned. Fault::unavailable without a GPU.
void register_cuda_products(const std::vector<CodecSpec>& specs, std::size_t elements, double copy_rate);

}  // namespace gradtool
