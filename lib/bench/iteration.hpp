#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "lib/bench/units.hpp"

namespace gradtool {

/// How communication and the rest of an iteration share time.
enum class Overlap : std::uint8_t {
  none,    ///< the backward pass, then encode, communicate, decode, one after the other
  bucket,  ///< a unit is encoded and sent as soon as the backward pass has it
};

/// What one unit of an iteration costs on one rank, in seconds.
struct UnitCost {
  double ready = 1.0;  ///< share of the backward pass that is over when its gradient is there, in (0, 1]
  double encode = 0.0, communicate = 0.0, decode = 0.0;
};

/// Forward is 1/3 and backward 2/3 of an iteration's computation: a layer's backward pass has two products of the size
/// of its one forward product, for the gradients of inputs and of weights; the
/// ratio that Narayanan et al. 2021 (Megatron-LM) take as well.
constexpr double kBackwardShare = 2.0 / 3.0;

/// Seconds of one iteration of which `compute` are forward and backward, by a schedule of two resources, the processor
/// and the link, each doing one thing at a time:
///   none: compute + sum of encode, communicate, decode;
///   bucket: the processor does the forward pass, then the backward pass; when unit u is ready, it encodes u at once,
///   which delays the rest of the backward pass. The link carries encoded units in the order in which they were ready.
///   After the backward pass and the last encoding the processor decodes units in the same order, waiting for each to
///   arrive: decoding earlier would delay what is still to be sent.
/// So bucket is never slower than none, and never faster than compute + encode + decode or than all communication.
/// Units are taken in ascending order of `ready`, those alike in the order given.
[[nodiscard]] double iteration_seconds(std::span<const UnitCost> units, double compute, Overlap overlap);

/// `ready` of each unit: the backward pass goes through the file's tensors from the last to the first and takes time in
/// proportion to their elements; a unit is ready when the first of its tensors is. That is exact for layers that use
/// each weight once a sample. Early layers of a convolutional network have few weights and use them many times, so its
/// units are ready earlier than this says, and more is hidden.
[[nodiscard]] std::vector<double> ready_shares(const std::vector<Unit>& units, const std::vector<TensorInfo>& tensors);

}  // namespace gradtool
