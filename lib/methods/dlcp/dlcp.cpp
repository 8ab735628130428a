#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/float_bits.hpp"
#include "lib/codecs/registry.hpp"
#include "lib/core/scratch.hpp"
#include "lib/core/task_pool.hpp"
#include "lib/methods/dlcp/channel.hpp"
#include "lib/methods/dlcp/payload.hpp"

namespace gradtool {

namespace {

/// The running median of the mean magnitudes of one tensor's packets, kept from step to step.
struct RunningMedian {
  float median = 0.0f;
  bool known = false;

  /// The magnitude from which a packet is important in a step whose own median is `median_now`.
  [[nodiscard]] float threshold(float median_now) const { return known ? median : median_now; }
  /// Moves towards this step's median, unless that is infinite.
  void update(float median_now, float decay) {
    if (!std::isfinite(median_now)) return;
    median = known ? decay * median + (1.0f - decay) * median_now : median_now;
    known = true;
  }
};

/// Bytes of data (without headers) since the last reset, by class: index 0 is droppable, index 1 important.
struct DeliveryCount {
  std::array<std::uint64_t, 2> sent{}, arrived{};
  std::uint64_t resent = 0;
};

/// Mean magnitude of a packet; infinity where that is not a number, so that such a packet is important. 16 partial
/// sums allow SIMD: number j adds elements j, j + 16, ..., then halves are added until one sum is left.
GT_SIMD_CLONES float mean_magnitude(const float* x, std::size_t count) {
  constexpr std::size_t kLanes = 16;
  std::array<float, kLanes> sum{};
  std::size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (std::size_t j = 0; j < kLanes; ++j) sum[j] += std::fabs(x[i + j]);
  }
  for (std::size_t j = 0; i + j < count; ++j) sum[j] += std::fabs(x[i + j]);
  for (std::size_t half = kLanes / 2; half > 0; half /= 2) {
    for (std::size_t j = 0; j < half; ++j) sum[j] += sum[j + half];
  }
  const float mean = sum[0] / static_cast<float>(count);
  return std::isnan(mean) ? std::numeric_limits<float>::infinity() : mean;
}

/// The channel that the parameters ask for.
LossyChannel::Options channel_options(const Params& params) {
  using Model = LossyChannel::Model;
  const std::string& word = params.word("model");
  return {.model = word == "none"      ? Model::none
                   : word == "iid"     ? Model::iid
                   : word == "gilbert" ? Model::gilbert_elliott
                                       : Model::importance,
          .loss = params.real("loss"),
          .bad_share = params.real("bad"),
          .burst = params.real("burst"),
          .loss_good = params.real("loss_good"),
          .loss_bad = params.real("loss_bad"),
          .drain = params.real("drain"),
          .queue_bytes = params.real("queue") *
                         static_cast<double>(params.integer("packet") + std::int64_t{sizeof(PacketHeader)})};
}

class Dlcp final : public Codec<Space::host> {
 public:
  Dlcp(const Params& params, const Layout& layout)
      : packets_{layout, static_cast<std::size_t>(params.integer("packet")) / sizeof(float)},
        elements_{layout.elements},
        tolerated_loss_{params.real("bound")},
        decay_{static_cast<float>(params.real("decay"))},
        channel_{channel_options(params)} {
    expect_valid(params.integer("packet") % 4 == 0, "codec dlcp: packet must be a multiple of 4");
  }

  [[nodiscard]] Footprint plan(std::size_t n) const override {
    expects(n == elements_, "codec dlcp works on the units it was made for");
    return {.payload_bytes = packets_.largest_payload(), .scratch_bytes = planned<Workspace>(packets_), .exact = false};
  }

  void encode(Queue<Space::host> queue, HostView<const float> gradient, const EncodeContext& context,
              HostView<std::byte> payload, HostView<std::byte> scratch) const override {
    std::vector<RunningMedian>* no_medians = nullptr;
    DeliveryCount count;
    send(queue, gradient, context, payload, scratch, no_medians, count);
  }

  void decode_add(Queue<Space::host> queue, HostView<const std::byte> payload, float weight, HostView<float> out,
                  HostView<std::byte> /*scratch*/) const override {
    add_payload(queue, packets_, payload, weight, out);
  }

  /// Any packet may be lost, unless the channel loses none or the bound tolerates no loss.
  [[nodiscard]] ErrorBound bound(std::size_t /*n*/) const override {
    const bool loses = channel_.model != LossyChannel::Model::none && tolerated_loss_ > 0.0;
    const double error = loses ? 1.0 : 0.0;
    return {.nmse = error, .of_largest = error};
  }
  [[nodiscard]] std::size_t values_sent(std::size_t n) const override { return 2 * n; }
  [[nodiscard]] std::size_t values_in(HostView<const std::byte> payload, std::size_t /*n*/) const override {
    return values_in_payload(packets_, payload);
  }

  [[nodiscard]] std::unique_ptr<Encoder<Space::host>> make_encoder(std::size_t n, int ranks,
                                                                   Queue<Space::host> queue) const override;

  [[nodiscard]] std::size_t tensor_count() const { return packets_.tensors().size(); }

  /// Encodes one step. `medians` has one entry per tensor and is updated; null compares every tensor with its own
  /// median of this step. Adds to `count`.
  void send(Queue<Space::host> queue, HostView<const float> gradient, const EncodeContext& context,
            HostView<std::byte> payload, HostView<std::byte> scratch, std::vector<RunningMedian>* medians,
            DeliveryCount& count) const {
    const Workspace work{packets_, Scratch<Space::host>{scratch}};
    for (std::size_t number = 0; number < tensor_count(); ++number)
      classify(queue, gradient, packets_.tensors()[number], work, medians == nullptr ? nullptr : &(*medians)[number]);
    write_payload(queue, packets_, gradient, context.iteration, transfer(context.key, work, count), payload);
  }

 private:
  struct Workspace {
    Workspace(const PacketLayout& packets, Scratch<Space::host> scratch)
        : means{scratch.take<float>(packets.count())},
          reordered{scratch.take<float>(packets.count())},
          flags{scratch.take<std::uint8_t>(packets.count())},
          arrived{scratch.take<std::uint32_t>(format::bitmap_bytes(2 * packets.count()) / sizeof(std::uint32_t))} {}
    HostView<float> means;            ///< of the magnitudes in each packet
    HostView<float> reordered;        ///< copy of one tensor's means, in which the median is found
    HostView<std::uint8_t> flags;     ///< see Transfer
    HostView<std::uint32_t> arrived;  ///< see Transfer; large enough for every packet to be sent twice
  };

  /// Sets a tensor's flags: a packet is important when its mean magnitude reaches the running median, or when its layer
  /// is one of the last third.
  void classify(Queue<Space::host> queue, HostView<const float> gradient, const PacketLayout::Tensor& tensor,
                const Workspace& work, RunningMedian* running) const {
    if (tensor.packets == 0) return;
    float* means = work.means.data() + tensor.first_packet;
    std::uint8_t* flags = work.flags.data() + tensor.first_packet;
    parallel_for(queue, tensor.packets, 1, 64, [&](std::size_t first, std::size_t last) {
      for (std::size_t i = first; i < last; ++i)
        means[i] = mean_magnitude(gradient.data() + packets_.first_element(tensor, i), packets_.elements(tensor, i));
    });
    float* reordered = work.reordered.data();
    std::copy_n(means, tensor.packets, reordered);
    float* median = reordered + tensor.packets / 2;
    std::nth_element(reordered, median, reordered + tensor.packets);
    const float threshold = running != nullptr ? running->threshold(*median) : *median;
    for (std::size_t i = 0; i < tensor.packets; ++i)
      flags[i] = tensor.back || means[i] >= threshold ? PacketHeader::kImportant : 0;
    if (running != nullptr) running->update(*median, decay_);
  }

  /// Sends all packets through the channel once. Then, tensor by tensor, sends lost ones again until the missing share
  /// of the tensor's bytes is at most the bound.
  Transfer transfer(const format::DrawKey& key, const Workspace& work, DeliveryCount& count) const {
    std::uint32_t* arrived = work.arrived.data();
    std::fill_n(arrived, work.arrived.size(), 0U);
    LossyChannel channel{channel_, key};
    std::size_t transmissions = packets_.count();
    std::size_t resent_bytes = 0;
    for (const auto& tensor : packets_.tensors()) {
      std::uint8_t* flags = work.flags.data() + tensor.first_packet;
      std::size_t missing = 0;  // bytes of data
      for (std::size_t i = 0; i < tensor.packets; ++i) {
        const std::size_t bytes = sizeof(float) * packets_.elements(tensor, i);
        const bool important = flags[i] != 0;
        count.sent[important ? 1 : 0] += bytes;
        if (channel.loses(tensor.first_packet + i, bytes + sizeof(PacketHeader), important)) {
          missing += bytes;
        } else {
          format::set_bit(arrived, tensor.first_packet + i);
          count.arrived[important ? 1 : 0] += bytes;
        }
      }
      const double tolerated = tolerated_loss_ * static_cast<double>(sizeof(float) * tensor.elements);
      for (std::size_t i = 0; static_cast<double>(missing) > tolerated && i < tensor.packets; ++i) {
        if (format::test_bit(arrived, tensor.first_packet + i)) continue;
        const std::size_t bytes = sizeof(float) * packets_.elements(tensor, i);
        format::set_bit(arrived, transmissions++);
        count.resent += bytes;
        count.arrived[flags[i] != 0 ? 1 : 0] += bytes;
        flags[i] |= PacketHeader::kRetransmitted;
        missing -= bytes;
        resent_bytes += sizeof(PacketHeader) + bytes;
      }
    }
    return {work.flags.data(), arrived, transmissions, resent_bytes};
  }

  PacketLayout packets_;
  std::size_t elements_;
  double tolerated_loss_;  ///< share of a tensor's bytes that may stay missing
  float decay_;            ///< of the running medians
  LossyChannel::Options channel_;
};

/// Keeps the running median of each tensor's packets, and counts what has arrived.
class DlcpEncoder final : public Encoder<Space::host> {
 public:
  explicit DlcpEncoder(const Dlcp& codec) : codec_{codec}, medians_(codec.tensor_count()) {}

  void encode(Queue<Space::host> queue, HostView<const float> gradient, const SideInputs<Space::host>& /*side*/,
              const EncodeContext& context, HostView<std::byte> payload, HostView<std::byte> scratch) override {
    codec_.send(queue, gradient, context, payload, scratch, &medians_, count_);
  }
  void reset(Queue<Space::host> /*queue*/) override {
    std::fill(medians_.begin(), medians_.end(), RunningMedian{});
    count_ = {};
  }
  void visit_state(StateVisitor& visitor) override {
    visitor.values("medians", medians_);
    visitor.value("delivered", count_);
  }
  [[nodiscard]] std::vector<Tally> tallies() const override {
    const auto tally = [](const char* what, std::uint64_t part, std::uint64_t whole) {
      return Tally{what, static_cast<double>(part), static_cast<double>(whole)};
    };
    return {tally("important bytes delivered", count_.arrived[1], count_.sent[1]),
            tally("droppable bytes delivered", count_.arrived[0], count_.sent[0]),
            tally("bytes sent again", count_.resent, count_.sent[0] + count_.sent[1])};
  }

 private:
  const Dlcp& codec_;
  std::vector<RunningMedian> medians_;
  DeliveryCount count_;
};

std::unique_ptr<Encoder<Space::host>> Dlcp::make_encoder(std::size_t /*n*/, int /*ranks*/,
                                                         Queue<Space::host> /*queue*/) const {
  return std::make_unique<DlcpEncoder>(*this);
}

constexpr ParamInfo kParams[] = {
    choice_param("model", "importance", "importance|iid|gilbert|none",
                 "what loses packets: a full queue, chance, bursts (Gilbert-Elliott), or nothing"),
    real_param("bound", "0.1", {0.0, 1.0},
               "share of a tensor's bytes that may stay lost; above it packets are sent again")
        .searched("0.02|0.1|0.3"),
    real_param("loss", "0.01", {0.0, 1.0}, "iid: share of packets lost").only_with("model=iid"),
    real_param("bad", "0.02", {0.0, 1.0}, "gilbert: share of time in bursts").only_with("model=gilbert"),
    real_param("burst", "8", {1.0, 1e6}, "gilbert: packets in a burst, mean").only_with("model=gilbert"),
    real_param("loss_good", "0", {0.0, 1.0}, "gilbert: share lost outside of bursts").only_with("model=gilbert"),
    real_param("loss_bad", "0.5", {0.0, 1.0}, "gilbert: share lost in bursts").only_with("model=gilbert"),
    real_param("drain", "0.95", {0.0, 1.0}, "importance: bytes leaving the queue for each that arrives")
        .only_with("model=importance"),
    real_param("queue", "8", {1.0, 1e6},
               "importance: K, full packets that wait before droppable ones are dropped; the buffer is three times it")
        .only_with("model=importance"),
    integer_param("packet", "1436", {4, 65532}, "bytes of gradient in a packet, a multiple of 4"),
    real_param("decay", "0.9", {0.0, 1.0}, "of the running median that decides which packets are large")};

}  // namespace

extern constinit const CodecDescriptor dlcp_codec{
    .name = "dlcp",
    .summary = "sends everything over a channel that may lose a bounded share, the unimportant packets first",
    .reference = "Wang et al., DLCP, arXiv 2008.08445; MLT, NSDI 2024 (emulation)",
    .params = kParams,
    .memory = true,
    .by_layout = true,
    .payload = "32 n + 192 bits a packet, lost and repeated ones included, + 1 bit a packet + 128 bits",
    .make_host = make_method_codec<Space::host, Dlcp>,
};

}  // namespace gradtool
