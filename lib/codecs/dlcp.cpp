#include <algorithm>
#include <vector>

#include "lib/codecs/cuda_factories.hpp"
#include "lib/codecs/dlcp_packets.hpp"
#include "lib/codecs/dlcp_payload.hpp"
#include "lib/codecs/dlcp_transport.hpp"
#include "lib/codecs/registry.hpp"

namespace gradtool {

namespace {

class Dlcp final : public Codec<Space::host> {
 public:
  Dlcp(const Params& params, const Layout& layout)
      : packets_{layout, static_cast<std::size_t>(params.integer("packet")) / 4},
        elements_{layout.elements},
        transport_{params, packets_},
        payloads_{packets_} {
    expects(params.integer("packet") % 4 == 0, "codec dlcp: packet must be a multiple of 4");
  }

  [[nodiscard]] Footprint plan(std::size_t n) const override {
    expects(n == elements_, "codec dlcp works on the units it was made for");
    return {
        .payload_bytes = packets_.most_payload_bytes(), .scratch_bytes = transport_.scratch_bytes(), .exact = false};
  }

  void encode(Queue<Space::host> queue, HostView<const float> gradient, const EncodeContext& context,
              HostView<std::byte> payload, HostView<std::byte> scratch) const override {
    DlcpDelivery delivery;
    send(queue, gradient, context, payload, scratch, nullptr, delivery);
  }

  void decode_add(Queue<Space::host> queue, HostView<const std::byte> payload, float weight, HostView<float> out,
                  HostView<std::byte> /*scratch*/) const override {
    payloads_.add(queue, payload, weight, out);
  }

  /// Any packet may be the one that is lost, unless nothing may be.
  [[nodiscard]] ErrorBound bound(std::size_t /*n*/) const override {
    const double lost = transport_.may_lose() ? 1.0 : 0.0;
    return {.nmse = lost, .of_largest = lost};
  }
  [[nodiscard]] std::size_t values_sent(std::size_t n) const override { return 2 * n; }
  [[nodiscard]] std::size_t values_in(HostView<const std::byte> payload, std::size_t /*n*/) const override {
    return payloads_.values_in(payload);
  }

  [[nodiscard]] std::unique_ptr<Encoder<Space::host>> make_encoder(std::size_t n, int ranks,
                                                                   Queue<Space::host> queue) const override;

  [[nodiscard]] std::size_t tensor_count() const { return packets_.tensors().size(); }

  /// One step, as DlcpTransport::send.
  void send(Queue<Space::host> queue, HostView<const float> gradient, const EncodeContext& context,
            HostView<std::byte> payload, HostView<std::byte> scratch, law::RunningMedian* running,
            DlcpDelivery& delivery) const {
    const DlcpSent sent = transport_.send(queue, gradient, context.key, scratch, running, delivery);
    payloads_.write(queue, gradient, context.iteration, sent, payload);
  }

 private:
  Packets packets_;
  std::size_t elements_;
  DlcpTransport transport_;
  DlcpPayload payloads_;
};

/// Knows each tensor's usual packet, and what has arrived so far.
class DlcpEncoder final : public Encoder<Space::host> {
 public:
  explicit DlcpEncoder(const Dlcp& codec) : codec_{codec}, running_(codec.tensor_count()) {}

  void encode(Queue<Space::host> queue, HostView<const float> gradient, const SideInputs<Space::host>& /*side*/,
              const EncodeContext& context, HostView<std::byte> payload, HostView<std::byte> scratch) override {
    codec_.send(queue, gradient, context, payload, scratch, running_.data(), delivery_);
  }
  void reset(Queue<Space::host> /*queue*/) override {
    std::fill(running_.begin(), running_.end(), law::RunningMedian{});
    delivery_ = {};
  }
  [[nodiscard]] std::vector<Tally> tallies() const override { return tallies_of(delivery_); }

 private:
  const Dlcp& codec_;
  std::vector<law::RunningMedian> running_;
  DlcpDelivery delivery_;
};

std::unique_ptr<Encoder<Space::host>> Dlcp::make_encoder(std::size_t /*n*/, int /*ranks*/,
                                                         Queue<Space::host> /*queue*/) const {
  return std::make_unique<DlcpEncoder>(*this);
}

constexpr ParamInfo kParams[] = {
    {.name = "model",
     .kind = ParamInfo::Kind::choice,
     .default_value = "importance",
     .choices = "importance|iid|gilbert|none",
     .meaning = "what loses packets: a full queue, chance, bursts (Gilbert-Elliott), or nothing"},
    {.name = "bound",
     .default_value = "0.1",
     .min = 0.0,
     .max = 1.0,
     .meaning = "share of a tensor's bytes that may stay lost; above it packets are sent again"},
    {.name = "loss", .default_value = "0.01", .min = 0.0, .max = 1.0, .meaning = "iid: share of packets lost"},
    {.name = "bad", .default_value = "0.02", .min = 0.0, .max = 1.0, .meaning = "gilbert: share of time in bursts"},
    {.name = "burst", .default_value = "8", .min = 1.0, .max = 1e6, .meaning = "gilbert: packets in a burst, mean"},
    {.name = "loss_good",
     .default_value = "0",
     .min = 0.0,
     .max = 1.0,
     .meaning = "gilbert: share lost outside of bursts"},
    {.name = "loss_bad", .default_value = "0.5", .min = 0.0, .max = 1.0, .meaning = "gilbert: share lost in bursts"},
    {.name = "drain",
     .default_value = "0.95",
     .min = 0.0,
     .max = 1.0,
     .meaning = "importance: bytes leaving the queue for each that arrives"},
    {.name = "queue",
     .default_value = "8",
     .min = 1.0,
     .max = 1e6,
     .meaning =
         "importance: K, full packets that wait before droppable ones are dropped; the buffer is three times it"},
    {.name = "packet",
     .kind = ParamInfo::Kind::integer,
     .default_value = "1436",
     .min = 4,
     .max = 65532,
     .meaning = "bytes of gradient in a packet, a multiple of 4"},
    {.name = "decay",
     .default_value = "0.9",
     .min = 0.0,
     .max = 1.0,
     .meaning = "of the running median that decides which packets are large"}};

}  // namespace

extern constinit const CodecDescriptor dlcp_codec{
    .name = "dlcp",
    .summary = "packets over a channel that may lose a bounded share, the unimportant ones first",
    .reference = "Wang et al., DLCP, arXiv 2008.08445; MLT, NSDI 2024 (emulation)",
    .description =
        "Not a compressor but a transport: each tensor is cut into packets, a packet counts as important when its "
        "mean magnitude reaches the tensor's running median or its layer lies in the last third of the model, a "
        "channel loses some, and while more than `bound` of a tensor's bytes is missing, lost packets are sent "
        "again; what stays lost is zero. The papers give the classes, the two thresholds of one queue, zero fill and "
        "the per-tensor bound; the statistic, its cut-off, headers and queue sizes are ours, the queue starts full, "
        "and packets sent again are not lost again, so one round is enough. The channel stands between a rank and "
        "everybody else, as between a worker and a parameter server: all ranks see the same losses. Payload bytes "
        "count everything that left: headers, lost packets, repetitions and the bitmap of arrivals. It shows what "
        "losses do to a gradient and what protecting large packets saves; the gain itself, less waiting, is in no "
        "figure here.",
    .params = kParams,
    .aggregation = Aggregation::gather,
    .memory = true,
    .by_layout = true,
    .payload = "32 n + 192 bits a packet, lost and repeated ones included, + 1 bit a packet + 128 bits",
    .make_host = [](const Params& p, const Layout& layout) -> std::unique_ptr<Codec<Space::host>> {
      return std::make_unique<Dlcp>(p, layout);
    },
    .make_cuda = GT_MAKE_CUDA(make_cuda_dlcp),
};

}  // namespace gradtool
