#pragma once

#include <cstddef>
#include <cstdint>

#include "lib/core/view.hpp"

/// What oktopk's reducer does with a list of selected values, beside kernels/cuda/select.hpp and sparse.hpp. Enqueued.
namespace gradtool::cuda {

/// to[j] := where (j+1)/ranks of the list begins, of n elements where the list is empty.
void oktopk_cuts(Queue<Space::cuda> queue, const std::uint32_t* positions, std::size_t count, std::size_t n,
                 std::size_t ranks, View<std::uint32_t, Space::cuda> to);

/// starts[r] := how many positions lie in front of borders[r], for ranks + 1 ascending borders.
void oktopk_starts(Queue<Space::cuda> queue, const std::uint32_t* positions, std::size_t count,
                   const std::uint64_t* borders, std::size_t ranks, std::uint64_t* starts);

/// positions := those in their regions. Values of region `mine` go to their places in `region`.
void oktopk_split(Queue<Space::cuda> queue, const std::uint64_t* borders, std::size_t ranks, std::size_t mine,
                  View<std::uint32_t, Space::cuda> positions, const float* values, float* region);

/// *to := value.
void store(Queue<Space::cuda> queue, std::uint32_t value, std::uint32_t* to);

}  // namespace gradtool::cuda
