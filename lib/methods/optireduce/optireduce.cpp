// OptiReduce on the CPU: a transpose all-reduce between whose ranks packets are lost.
#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/float_bits.hpp"
#include "kernels/vector.hpp"
#include "lib/codecs/reducer.hpp"
#include "lib/codecs/registry.hpp"
#include "lib/core/scratch.hpp"
#include "lib/core/task_pool.hpp"
#include "lib/methods/optireduce/format.hpp"

namespace gradtool {
namespace {

constexpr std::size_t kGrain = 1 << 14;
constexpr std::size_t kSigns = 128;  ///< elements whose signs one call of draw4 gives

/// to[i] := factor * from[i], with the sign that bit i of `bits` says. A NaN becomes format::one_nan, because ranks
/// send what is made here.
GT_SIMD_CLONES void turn(const float* __restrict from, float factor, const std::uint32_t* __restrict bits,
                         std::size_t count, float* __restrict to) {
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint32_t sign = (bits[i / 32] >> i % 32) << 31;
    to[i] = format::one_nan(format::float_of(format::bits_of(factor * from[i]) ^ sign));
  }
}

/// Transforms columns `first` to `last` - 1 of a row-major matrix by the Hadamard matrix of its number of rows, in
/// natural (Sylvester's) order and not normalised.
GT_SIMD_CLONES void transform_columns(float* x, const format::RotationShape& shape, std::size_t first,
                                      std::size_t last) {
  const bool whole = last - first == shape.columns;  // rows then lie one behind the other
  for (std::size_t h = 1; h < shape.order; h *= 2) {
    const std::size_t rows = whole ? 1 : h;
    const std::size_t count = whole ? h * shape.columns : last - first;
    for (std::size_t base = 0; base < shape.order; base += 2 * h) {
      for (std::size_t row = base; row < base + rows; ++row) {
        float* __restrict upper = x + row * shape.columns + first;
        float* __restrict lower = upper + h * shape.columns;
        for (std::size_t i = 0; i < count; ++i) {
          const float sum = upper[i] + lower[i];
          lower[i] = upper[i] - lower[i];
          upper[i] = sum;
        }
      }
    }
  }
}

void transform(Queue<Space::host> queue, const format::RotationShape& shape, HostView<float> x) {
  constexpr std::size_t kLine = 16;                                                // floats of a cache line
  const std::size_t tile = std::max(kLine, (std::size_t{1} << 15) / shape.order);  // 128 KiB, for the cache
  parallel_for(queue, shape.columns, kLine, std::max(kLine, kGrain / shape.order),
               [&](std::size_t first, std::size_t last) {
                 for (std::size_t at = first; at < last; at += tile)
                   transform_columns(x.data(), shape, at, std::min(last, at + tile));
               });
}

/// Every rank sends shard r of its rotated vector to rank r, which averages what arrives, and sends the mean to all.
class OptireduceReducer final : public CountingReducer<Space::host> {
 public:
  explicit OptireduceReducer(const ReducerSetup<Space::host>& setup)
      : CountingReducer<Space::host>{setup.layout.elements, setup.ranks},
        rotates_{setup.spec.params.is("hadamard", "on")},
        shape_{n_, rotates_ ? static_cast<std::size_t>(setup.spec.params.integer("block")) : 1},
        each_{static_cast<std::size_t>(setup.spec.params.integer("packet")) / sizeof(float)},
        model_{setup.spec.params.is("model", "tail") ? format::PacketLoss::tail : format::PacketLoss::iid},
        over_all_{setup.spec.params.is("average", "all")} {
    expect_valid(setup.spec.params.integer("packet") % 4 == 0, "codec optireduce: packet must be a multiple of 4");
    expect_valid(std::has_single_bit(static_cast<std::uint64_t>(setup.spec.params.integer("block"))),
                 "codec optireduce: block must be a power of two");
    const double loss = setup.spec.params.real("loss");
    push_loss_ = setup.spec.params.is("direction", "pull") ? 0.0 : loss;
    // The mean of a single rank is sent to nobody.
    pull_loss_ = setup.spec.params.is("direction", "push") || ranks_ == 1 ? 0.0 : loss;
    for (std::size_t r = 0; r < ranks_; ++r) {
      const Segment shard = ring_segment(shape_.elements(), static_cast<int>(r), setup.ranks);
      shards_.push_back({.first = shard.first, .count = shard.count, .first_packet = packets_});
      packets_ += shards_.back().packets(each_);
      sizes_.push_back(sizeof(float) * shard.count);
      offsets_.push_back(sizeof(float) * shard.first);
    }
  }

  [[nodiscard]] Pattern pattern(Level /*level*/) const override { return {.shards = true, .ring = false}; }
  void reset(Queue<Space::host> /*queue*/) override { delivered_ = {}; }
  void visit_state(StateVisitor& visitor) override { visitor.value("delivered", delivered_); }
  [[nodiscard]] std::vector<Tally> tallies() const override {
    return {{"contributions delivered", static_cast<double>(delivered_.arrived[0]),
             static_cast<double>(delivered_.sent[0])},
            {"means delivered", static_cast<double>(delivered_.arrived[1]), static_cast<double>(delivered_.sent[1])}};
  }

  [[nodiscard]] std::size_t workspace_bytes() const override { return Workspace{*this, Scratch<Space::host>{}}.bytes; }

  void reduce(Communicator<Space::host>& comm, Queue<Space::host> queue, HostView<float> gradient,
              const SideInputs<Space::host>& /*side*/, const EncodeContext& context, HostView<std::byte> workspace,
              PhaseClock<Space::host>& clock) override {
    const Workspace work{*this, Scratch<Space::host>{workspace}};
    const auto me = static_cast<std::size_t>(comm.rank());
    const auto vector = as_writable_bytes(work.vector);

    in_phase(clock, Phase::encode, queue, [&] {
      turn_all(queue, context.key, gradient, work.vector);
      std::fill(work.vector.data() + n_, work.vector.data() + work.vector.size(), 0.0F);
      transform(queue, shape_, work.vector);
    });
    in_phase(clock, Phase::communicate, queue, [&] {
      for (std::size_t k = 1; k < ranks_; ++k) {
        const std::size_t to = (me + k) % ranks_;
        const std::size_t from = (me + ranks_ - k) % ranks_;
        comm.exchange(queue, static_cast<int>(to), vector.part(offsets_[to], sizes_[to]), static_cast<int>(from),
                      as_writable_bytes(received_from(work, me, from)));
      }
    });
    in_phase(clock, Phase::decode, queue, [&] { average(queue, context.key, me, work); });
    in_phase(clock, Phase::communicate, queue,
             [&] { comm.all_gather_v(queue, vector.part(offsets_[me], sizes_[me]), sizes_, offsets_, vector); });
    in_phase(clock, Phase::decode, queue, [&] {
      lose_means(queue, context.key, me, work.vector);
      transform(queue, shape_, work.vector);
      turn_all(queue, context.key, work.vector.first(n_), gradient);
    });
    payload_bytes_ = vector.size();
    values_sent_ = work.vector.size();
  }

 private:
  /// What rank r averages. Each shard is cut into packets by itself, so that the last packet of a shard may be shorter.
  struct Shard {
    std::size_t first = 0;
    std::size_t count = 0;
    std::size_t first_packet = 0;  ///< counted over the whole vector
    [[nodiscard]] std::size_t packets(std::size_t each) const { return (count + each - 1) / each; }
  };
  /// Elements in packets to this rank (0) and of the means that it sends (1).
  struct Delivered {
    std::uint64_t sent[2] = {};
    std::uint64_t arrived[2] = {};
  };
  struct Workspace {
    Workspace(const OptireduceReducer& r, Scratch<Space::host> pieces)
        : vector{pieces.take<float>(r.shape_.elements())},
          received{pieces.take<float>((r.ranks_ - 1) * r.largest_shard())},
          lost{pieces.take<std::uint8_t>((r.ranks_ - 1) * r.packets_in(r.largest_shard()))},
          bytes{pieces.bytes()} {}
    HostView<float> vector;       ///< rotated: at first this rank's, and at last the mean
    HostView<float> received;     ///< the other ranks' elements of the own shard
    HostView<std::uint8_t> lost;  ///< for each packet of those: whether it is lost
    std::size_t bytes;
  };

  [[nodiscard]] std::size_t packets_in(std::size_t count) const { return (count + each_ - 1) / each_; }
  [[nodiscard]] std::size_t largest_shard() const { return (shape_.elements() + ranks_ - 1) / ranks_; }
  /// What rank `from` sent to this rank, in the order in which it is added: me + 1, me + 2, ...
  [[nodiscard]] HostView<float> received_from(const Workspace& work, std::size_t me, std::size_t from) const {
    const std::size_t place = (from + ranks_ - me) % ranks_ - 1;
    return work.received.part(place * shards_[me].count, shards_[me].count);
  }
  [[nodiscard]] format::MessageLoss message(format::DrawKey key, double loss, std::size_t from,
                                            std::size_t shard) const {
    key.rank = static_cast<std::uint32_t>(from);
    return {model_, loss, key, shards_[shard].first_packet, shards_[shard].packets(each_)};
  }
  [[nodiscard]] HostView<float> packet(HostView<float> shard, std::size_t number) const {
    return shard.part(number * each_, std::min(each_, shard.size() - number * each_));
  }

  /// Random signs and the factor that makes the transform orthonormal; without rotation a copy.
  void turn_all(Queue<Space::host> queue, const format::DrawKey& key, HostView<const float> from,
                HostView<float> to) const {
    const float factor = 1.0F / std::sqrt(static_cast<float>(shape_.order));
    parallel_for(queue, from.size(), kSigns, kGrain, [&](std::size_t first, std::size_t last) {
      format::Draws signs{};
      for (std::size_t i = first; i < last; i += kSigns) {
        if (rotates_) signs = format::draw4(format::shared_by_ranks(key), i / kSigns);
        turn(from.data() + i, factor, signs.bits, std::min(kSigns, last - i), to.data() + i);
      }
    });
  }

  /// Own shard of the vector := its mean over what has arrived, or over all ranks, of which the missing ones have zero.
  void average(Queue<Space::host> queue, const format::DrawKey& key, std::size_t me, const Workspace& work) {
    const Shard& own = shards_[me];
    const auto sums = work.vector.part(own.first, own.count);
    const std::size_t packets = own.packets(each_);
    for (std::size_t k = 1; k < ranks_; ++k) {
      const format::MessageLoss loss = message(key, push_loss_, (me + k) % ranks_, me);
      for (std::size_t i = 0; i < packets; ++i) {
        const bool lost = loss.loses(i);
        work.lost[(k - 1) * packets + i] = lost ? 1 : 0;
        count_packet(0, packet(sums, i).size(), lost);
      }
    }
    parallel_for(queue, packets, 1, std::max<std::size_t>(1, kGrain / each_), [&](std::size_t first, std::size_t last) {
      for (std::size_t i = first; i < last; ++i) {
        const auto sum = packet(sums, i);
        std::size_t arrived = 1;
        for (std::size_t k = 1; k < ranks_; ++k) {
          if (work.lost[(k - 1) * packets + i] != 0) continue;
          add({}, packet(received_from(work, me, (me + k) % ranks_), i), sum);
          ++arrived;
        }
        scale({}, sum, 1.0F / static_cast<float>(over_all_ ? ranks_ : arrived));
      }
    });
  }

  /// Means that are lost on their way are zero, on all ranks alike, their owner included.
  void lose_means(Queue<Space::host> queue, const format::DrawKey& key, std::size_t me, HostView<float> vector) {
    for (std::size_t r = 0; r < ranks_ && ranks_ > 1; ++r) {
      const format::MessageLoss loss = message(key, pull_loss_, r, r);
      for (std::size_t i = 0; i < shards_[r].packets(each_); ++i) {
        const auto mean = packet(vector.part(shards_[r].first, shards_[r].count), i);
        const bool lost = loss.loses(i);
        if (lost) fill_zero(queue, mean);
        if (r == me) count_packet(1, mean.size(), lost);
      }
    }
  }

  void count_packet(std::size_t direction, std::size_t elements, bool lost) {
    delivered_.sent[direction] += elements;
    delivered_.arrived[direction] += lost ? 0 : elements;
  }

  bool rotates_;
  format::RotationShape shape_;
  std::size_t each_;  ///< elements of a full packet
  format::PacketLoss model_;
  bool over_all_;
  double push_loss_ = 0.0;  ///< share of packets lost on their way to where they are averaged
  double pull_loss_ = 0.0;  ///< and of means
  std::vector<Shard> shards_;
  std::vector<std::uint64_t> sizes_, offsets_;  ///< bytes of every shard
  std::size_t packets_ = 0;                     ///< of the whole vector
  Delivered delivered_;
};

constexpr ParamInfo kParams[] = {
    {.name = "loss",
     .default_value = "0.01",
     .min = 0.0,
     .max = 1.0,
     .search = "0.001|0.01|0.1",
     .meaning = "share of packets lost"},
    {.name = "model",
     .kind = ParamInfo::Kind::choice,
     .default_value = "tail",
     .choices = "tail|iid",
     .meaning = "which packets are lost: the last of every message, as by a time-out, or any"},
    {.name = "direction",
     .kind = ParamInfo::Kind::choice,
     .default_value = "both",
     .choices = "both|push|pull",
     .meaning = "where packets are lost: on their way to be averaged (push), as means (pull), or both"},
    {.name = "average",
     .kind = ParamInfo::Kind::choice,
     .default_value = "arrived",
     .choices = "arrived|all",
     .meaning = "divide by the ranks whose packet arrived, or by all, with zero for those missing"},
    {.name = "hadamard",
     .kind = ParamInfo::Kind::choice,
     .default_value = "on",
     .choices = "off|on",
     .meaning = "rotate blocks by random signs and a Hadamard transform, which spreads what is lost"},
    {.name = "block",
     .kind = ParamInfo::Kind::integer,
     .default_value = "1024",
     .min = 2,
     .max = 65536,
     .meaning = "elements that are rotated together, a power of two"},
    {.name = "packet",
     .kind = ParamInfo::Kind::integer,
     .default_value = "1436",
     .min = 4,
     .max = 65532,
     .meaning = "bytes of elements in a packet, a multiple of 4"}};

}  // namespace

extern constinit const CodecDescriptor optireduce_codec{
    .name = "optireduce",
    .summary =
        "a transpose all-reduce that does not wait for the last packets, rotated so that all elements bear the loss",
    .reference = "Warraich et al., OptiReduce, NSDI 2025, arXiv 2310.06993 (emulation)",
    .description =
        "Not a compressor but a transport: it shows what a time-out does to a gradient, and what a rotation saves. "
        "Every rank sends shard r of its vector to rank r, which averages what arrives in time and sends the mean to "
        "all. Random signs and a Hadamard transform of blocks come first, so that a lost packet takes a little of "
        "every element instead of all of some. Losses are emulated: model=tail cuts the last packets of every "
        "message, which is what a receiver loses that stops to wait; model=iid loses any. The paper gives the two "
        "stages, the rotation, and time-outs, which keep losses near a thousandth. Decided here: an owner divides by "
        "the ranks whose packet arrived, its own among them, so that equal gradients stay what they are (average=all "
        "takes zero for what is missing); lost means are zero, which shrinks the result by the share lost; the "
        "elements of a block lie evenly over the vector, so that no packet and no tail takes much of one block. A "
        "mean that is lost is lost for all ranks alike, so that they end with the same bits; over a real network each"
        " rank would lose others. Payload bytes count what is sent, lost packets included, without headers. With "
        "loss=0 and hadamard=off the result is that of none over udp with --all-reduce transpose, bit for bit, for "
        "units of p² elements and more, below which that takes a ring. The paper's gain is less waiting, and no figure "
        "here contains it. One rank loses nothing. There is no GPU "
        "version.",
    .params = kParams,
    .aggregation = Aggregation::own,
    .memory = true,
    .determinism = Determinism::cross_backend,
    .payload = "32 n bits; hadamard=on: n rounded up to whole blocks",
    .make_host = nullptr,
    .make_host_reducer = [](const ReducerSetup<Space::host>& setup) -> std::unique_ptr<Reducer<Space::host>> {
      return std::make_unique<OptireduceReducer>(setup);
    },
};

}  // namespace gradtool
