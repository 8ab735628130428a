#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/law/philox.hpp"
#include "kernels/law/thc.hpp"
#include "lib/core/view.hpp"

/// The steps of THC's reducer on the GPU, the bytes and sums of lib/reduce/thc.cpp. Enqueued. Defined for tables of 3
/// and 4 bits, and sums of 8 and 16.
namespace gradtool::cuda {

/// signs[w] := draw w of the key.
void thc_signs(Queue<Space::cuda> queue, const law::DrawKey& key, View<std::uint32_t, Space::cuda> signs);

/// *norm := |u|. Scratch: 8 bytes for each law::kSumChunk elements.
void thc_norm(Queue<Space::cuda> queue, View<const float, Space::cuda> u, float* norm, std::byte* scratch);

/// codes := those of the rotated u, in whole groups; residual := what they do not say, unless it is null (it may be u).
/// Reads u once. `norms`: all ranks'.
template <std::uint32_t Bits>
void thc_encode(Queue<Space::cuda> queue, const law::ThcShape& shape, const law::ThcTable<Bits>& table, const float* u,
                const float* norms, const std::uint32_t* signs, const law::DrawKey& key, std::uint32_t* codes,
                float* residual);

/// sums := the values of the codes of `groups` groups, or sums += them. 16-byte aligned sums, which do not overflow.
template <std::uint32_t Bits, class Sum>
void thc_add_codes(Queue<Space::cuda> queue, const law::ThcTable<Bits>& table, const std::uint32_t* codes,
                   std::size_t groups, bool add, Sum* sums);

/// gradient := the mean that the sums of all ranks say: 16-byte aligned, in whole groups.
template <std::uint32_t Bits, class Sum>
void thc_decode(Queue<Space::cuda> queue, const law::ThcShape& shape, const law::ThcTable<Bits>& table, const Sum* sums,
                const float* norms, const std::uint32_t* signs, float* gradient);

}  // namespace gradtool::cuda
