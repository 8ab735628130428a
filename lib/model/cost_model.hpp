#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "lib/comm/communicator.hpp"
#include "lib/core/words.hpp"
#include "lib/model/network.hpp"
#include "lib/model/units.hpp"

namespace gradtool {

/// The collectives of one kind that one rank takes part in during a step, added up.
struct CollectiveUse {
  enum class Kind : std::uint8_t {
    all_reduce,      ///< bytes: of the vector
    all_gather,      ///< bytes: of one rank's part, mean over ranks
    broadcast,       ///< bytes: of the view
    exchange,        ///< bytes: that one rank sends to others; p-1 of these are an all-to-all
    reduce_scatter,  ///< bytes: of the vector
    all_to_all,      ///< bytes: that one rank sends to others
    shard_gather,    ///< bytes: of one rank's part, mean over the measured ranks; the parts are shares of one whole
    ring_hop,        ///< bytes: that one rank sends to its neighbour; p-1 of these are a ring's way round
  };
  Kind kind = Kind::all_reduce;
  double calls = 0.0;  ///< a step
  double bytes = 0.0;  ///< a step, of all calls
  Level level = Level::whole;
  int node = 1;  ///< ranks of a machine, on the other levels
};

constexpr auto spellings(CollectiveUse::Kind) {
  return words("all_reduce", "all_gather", "broadcast", "exchange", "reduce_scatter", "all_to_all", "shard_gather",
               "ring_hop");
}

/// One of each kind on each level, level by level in the order of Level and of Kind.
using CollectiveUses = std::array<CollectiveUse, 24>;
/// All of them unused.
[[nodiscard]] CollectiveUses no_uses();
/// Adds a call, by the name that RecordingCommunicator gives it and what its reducer says of itself (Reducer::Pattern).
/// An empty exchange is no message.
void add_use(CollectiveUses& uses, std::string_view call, double bytes, bool shards = false, bool ring = false,
             Level level = Level::whole, int node = 1);

/// Seconds that a step's collectives take among p ranks, and bytes that one rank sends, by the alpha-beta model. For
/// Library::best, whose latencies are those of the best known algorithms (library.hpp has the other libraries):
///   all-reduce of S: best_all_reduce() for the mean size of its calls; its bytes count as those of a ring;
///   all-gather of parts s: recursive doubling, ceil(log2 p) alpha + (p-1) s / beta;
///   reduce-scatter of S: recursive halving, ceil(log2 p) alpha + (p-1)/p S / beta;
///   broadcast of S: ceil(log2 p) alpha + S / beta;
///   all-to-all of S, own part included: all messages under way at once, alpha + (p-1)/p S / beta; S stays as on
///     `measured_ranks` ranks;
///   exchange: bytes and messages counted on `measured_ranks` ranks, scaled with (p-1)/p and p-1, one after the other;
///   gather of shards: an all-gather of parts that shrink as 1/p;
///   hop on a ring: as an exchange, but of all ranks of a machine only one sends across.
/// What is used inside machines of `node` ranks (CollectiveUse) is among these, over `inner` where a machine of the
/// network has all of them; what is used across is among the machines, each rank having its share of the machine's
/// link. Where `node` does not divide the ranks, machines are counted as fractions. With two levels of the network the
/// ranks of a machine first combine over `inner`, and share the machine's link: an all-reduce is a reduce-scatter
/// inside, an all-reduce of the shares across, an all-gather inside; or, if that is faster,
/// recursive doubling of the whole, or an all-gather of wholes.
struct ModelledStep {
  double seconds = 0.0;
  double wire_bytes = 0.0;                      ///< sent by one rank
  double wire_inside = 0.0, wire_across = 0.0;  ///< of these, on the levels of --levels
  double messages = 0.0;                        ///< sent by one rank, of the rank that sends most
};
[[nodiscard]] ModelledStep model_step(std::span<const CollectiveUse> uses, const Network& network, int measured_ranks,
                                      int ranks);

/// How communication and the rest of an iteration share time.
enum class Overlap : std::uint8_t {
  none,    ///< the backward pass, then encode, communicate, decode, one after the other
  bucket,  ///< a unit is encoded and sent as soon as the backward pass has it
};

/// The cost of one unit of an iteration on one rank, in seconds.
struct UnitCost {
  double ready = 1.0;  ///< share of the backward pass that is over when its gradient is there, in [0, 1]
  double encode = 0.0, communicate = 0.0, decode = 0.0;
};

/// Forward is 1/3 and backward 2/3 of an iteration's computation, where the file does not say (BackwardTiming): a
/// layer's backward pass has two products of the size of its one forward product, for the gradients of inputs and of
/// weights. Narayanan et al. 2021 (Megatron-LM) take the same ratio.
constexpr double kBackwardShare = 2.0 / 3.0;

/// The backward pass of an iteration, and whether UnitCost::ready is as captured or in proportion to elements.
struct BackwardPass {
  double share = kBackwardShare;  ///< of the computation
  bool captured = false;
};

/// Seconds of one iteration of which `compute` are forward, backward and update, `backward_share` of it the backward
/// pass whose gradients are sent. All else comes before that pass: update and forward pass, which follow each other
/// from one iteration to the next, and earlier micro-batches. By a schedule of two resources, the processor and the
/// link, each doing one thing at a time:
///   none: compute + sum of encode, communicate, decode;
///   bucket: the processor does the forward pass, then the backward pass; when unit u is ready, it encodes u at once,
///   which delays the rest of the backward pass. The link carries encoded units in the order in which they were ready.
///   After the backward pass and the last encoding the processor decodes units in the same order, waiting for each to
///   arrive: decoding earlier would delay what is still to be sent.
/// So bucket is never slower than none, and never faster than compute + encode + decode or than all communication.
/// Units are taken in ascending order of `ready`, those alike in the order given.
[[nodiscard]] double iteration_seconds(std::span<const UnitCost> units, double compute, Overlap overlap,
                                       double backward_share = kBackwardShare);

/// `ready` of each unit where the file does not say (lib/bench/readiness.hpp): the backward pass goes through the
/// file's tensors from the last to the first and takes time in proportion to their elements; a unit is ready when the
/// first of its tensors is. That is exact for layers that use each weight once a sample. Early layers of a
/// convolutional network have few weights and use them many times, so its units are ready earlier than this says, and
/// more is hidden.
[[nodiscard]] std::vector<double> ready_shares(const std::vector<Unit>& units, const std::vector<TensorInfo>& tensors);

}  // namespace gradtool
