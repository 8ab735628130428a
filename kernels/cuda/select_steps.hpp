#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/select.hpp"
#include "lib/core/view.hpp"

/// The steps that kernels/cuda/select.cu puts together, enqueued. What one finds out, the next reads in SelectState.
namespace gradtool::cuda {

// select_histograms.cu: digits of patterns are counted, and the last block finds where k numbers begin.

/// One in 16 numbers is in a sample: neighbours, in a place that changes from tile to tile.
inline constexpr std::size_t kSelectSampled = SelectTiles::kTile / 16;
/// low := where the candidates begin that `wanted` of a sample reach.
void select_sample(Queue<Space::cuda> queue, const SelectSource& from, std::uint32_t wanted, SelectState* state);
/// low, prefix and left := from the leading digit of the k largest. `only_again`: where a sample failed.
void select_top_digit(Queue<Space::cuda> queue, const SelectSource& from, std::size_t k, bool only_again,
                      SelectState* state);
/// prefix and left := with the second digit, for the candidates that begin with the first.
void select_next_digit(Queue<Space::cuda> queue, const SelectTiles& tiles, SelectState* state);
/// threshold and ties := with the last digit, for the candidates that begin with the others.
void select_last_digit(Queue<Space::cuda> queue, const SelectTiles& tiles, SelectState* state);

// select_gather.cu: tiles := the numbers that reach state->low, or another threshold.

/// That is *low, or `value` where it is null. They are what is chosen: threshold, ties and `before` as of select_count.
void select_gather_chosen(Queue<Space::cuda> queue, const SelectSource& from, const SelectTiles& tiles,
                          std::uint32_t value, const std::uint32_t* low, std::uint64_t* before, SelectState* state);
/// prefix and left := with the second digit, for those that begin with the first.
void select_gather_refining(Queue<Space::cuda> queue, const SelectSource& from, const SelectTiles& tiles,
                            SelectState* state);
/// Of what the sample lets pass. Where it is at least k, prefix and left := from their leading digit; else retry := 1.
void select_gather_sampled(Queue<Space::cuda> queue, const SelectSource& from, const SelectTiles& tiles, std::size_t k,
                           SelectState* state);
/// Only where a sample failed.
void select_gather_again(Queue<Space::cuda> queue, const SelectSource& from, const SelectTiles& tiles,
                         SelectState* state);

// select_write.cu: what the threshold and its ties choose among the candidates.

/// before[tile] := candidates above the threshold (upper half) and equal to it; before[tiles] := 0. Where
/// `low` is not null, threshold := max(*low, 1) - 1: what reaches *low, and is not 0, lies above it.
void select_count(Queue<Space::cuda> queue, const SelectTiles& tiles, const std::uint32_t* low, std::uint64_t* before,
                  SelectState* state);
/// Writes them. state->count := how many they are.
void select_write(Queue<Space::cuda> queue, const SelectChosen& chosen, std::uint32_t* positions, float* values,
                  SelectState* state);

}  // namespace gradtool::cuda
