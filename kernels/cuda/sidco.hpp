#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/select.hpp"
#include "kernels/law/sidco.hpp"
#include "lib/core/view.hpp"

/// The stages of sidco on the GPU. Enqueued. Sums of moments have their own fixed order, not the CPU's, so that a
/// threshold may differ from the CPU's in its last bit; from run to run it is the same.
namespace gradtool::cuda {

/// Scratch of a threshold, 256-byte aligned.
[[nodiscard]] std::size_t sidco_scratch_bytes();

/// The device's SidcoStages at the start of the scratch: where the threshold is.
[[nodiscard]] inline const std::uint32_t* sidco_threshold_in(View<std::byte, Space::cuda> scratch) {
  return reinterpret_cast<const std::uint32_t*>(scratch.data() + offsetof(law::SidcoStages, threshold));
}

/// A new threshold, from nothing.
void sidco_start(Queue<Space::cuda> queue, double ratio, View<std::byte, Space::cuda> scratch);

/// One stage over all numbers, n >= 1, or over the candidates of `select`, which hold all that reach the threshold.
/// `last`: of the stages.
void sidco_stage(Queue<Space::cuda> queue, SidcoFit fit, View<const float, Space::cuda> numbers, bool first, bool last,
                 View<std::byte, Space::cuda> scratch);
void sidco_stage(Queue<Space::cuda> queue, SidcoFit fit, const Select& select, bool last,
                 View<std::byte, Space::cuda> scratch);

}  // namespace gradtool::cuda
