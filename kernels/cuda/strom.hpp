#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/law/strom.hpp"
#include "lib/core/view.hpp"

/// strom on the GPU: its dense form, and what its sparse one has beside kernels/cuda/sparse.hpp. Enqueued.
namespace gradtool::cuda {

/// Two bits for every element; `payload` is 4-byte aligned. One pass.
void strom_encode(Queue<Space::cuda> queue, View<const float, Space::cuda> gradient, law::Strom law,
                  std::byte* payload);
/// out[i] += weight * decoded.
void strom_decode_add(Queue<Space::cuda> queue, const std::byte* payload, law::Strom law, float weight,
                      View<float, Space::cuda> out);

/// *not_finite := whether one of *count values is not, at most `most`.
void strom_check(Queue<Space::cuda> queue, const float* values, const std::uint32_t* count, std::size_t most,
                 std::uint32_t* not_finite);

}  // namespace gradtool::cuda
