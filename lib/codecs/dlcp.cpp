#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "kernels/law/hd.hpp"
#include "lib/codecs/cuda_factories.hpp"
#include "lib/codecs/dlcp_channel.hpp"
#include "lib/codecs/dlcp_packets.hpp"
#include "lib/codecs/payload.hpp"
#include "lib/codecs/registry.hpp"
#include "lib/core/arena.hpp"
#include "lib/core/task_pool.hpp"

namespace gradtool {

namespace {

using law::bitmap_bytes;
using law::ChannelHeader;
using law::RunningMedian;

/// Sum of magnitudes over 16 running sums, the same bits on every processor.
GT_SIMD_CLONES float mean_magnitude(const float* x, std::size_t count) {
  constexpr std::size_t kLanes = law::kPacketLanes;
  std::array<float, kLanes> sum{};
  std::size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (std::size_t j = 0; j < kLanes; ++j) sum[j] += std::fabs(x[i + j]);
  }
  for (std::size_t j = 0; i + j < count; ++j) sum[j] += std::fabs(x[i + j]);
  for (std::size_t half = kLanes / 2; half > 0; half /= 2) {
    for (std::size_t j = 0; j < half; ++j) sum[j] += sum[j + half];
  }
  return law::packet_mean(sum[0], count);
}

GT_SIMD_CLONES void add_packet(const float* x, float weight, float* out, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) out[i] += weight * x[i];
}

/// Bytes of data, by class.
struct Delivery {
  std::array<std::uint64_t, 2> sent{}, arrived{};  ///< [important]
  std::uint64_t resent = 0;
};

class Dlcp final : public Codec<Space::host> {
 public:
  Dlcp(const Params& params, const Layout& layout)
      : packets_{layout, static_cast<std::size_t>(params.integer("packet")) / 4},
        elements_{layout.elements},
        bound_{params.real("bound")},
        decay_{static_cast<float>(params.real("decay"))},
        channel_{channel_options(params)} {
    expects(params.integer("packet") % 4 == 0, "codec dlcp: packet must be a multiple of 4");
  }

  [[nodiscard]] Footprint plan(std::size_t n) const override {
    expects(n == elements_, "codec dlcp works on the units it was made for");
    const std::size_t p = packets_.count();
    return {.payload_bytes = sizeof(ChannelHeader) + bitmap_bytes(2 * p) + 2 * packets_.bytes(),
            .scratch_bytes = 2 * padded(4 * p) + padded(p) + padded(bitmap_bytes(2 * p)),
            .exact = false};
  }

  void encode(Queue<Space::host> queue, HostView<const float> gradient, const EncodeContext& context,
              HostView<std::byte> payload, HostView<std::byte> scratch) const override {
    Delivery delivery;
    send(queue, gradient, context, payload, scratch, nullptr, delivery);
  }

  void decode_add(Queue<Space::host> queue, HostView<const std::byte> payload, float weight, HostView<float> out,
                  HostView<std::byte> /*scratch*/) const override {
    const ChannelHeader header = read_header(payload);
    const auto* arrived = section<std::uint32_t>(payload, sizeof header);
    const std::size_t base = sizeof header + bitmap_bytes(header.transmissions);
    std::uint32_t number = 0;
    for (const auto& tensor : packets_.tensors()) {
      parallel_for(queue, tensor.packets, 1, 64, [&](std::size_t first, std::size_t last) {
        for (std::size_t i = first; i < last; ++i) {
          const std::size_t at = base + packets_.offset(tensor, i);
          check_packet(payload, at, tensor, number, i, false);
          if (!bit(arrived, tensor.before + i)) continue;
          add_packet(section<float>(payload, at + sizeof(PacketHeader)), weight,
                     out.data() + tensor.first + i * packets_.elements_each(), packets_.elements_in(tensor, i));
        }
      });
      ++number;
    }
    add_resent(payload, header, base + packets_.bytes(), weight, out);
  }

  /// Any packet may be the one that is lost, unless nothing may be.
  [[nodiscard]] ErrorBound bound(std::size_t /*n*/) const override {
    const double lossless = channel_.model == LossyChannel::Model::none || bound_ == 0.0 ? 0.0 : 1.0;
    return {.nmse = lossless, .of_largest = lossless};
  }
  [[nodiscard]] std::size_t values_sent(std::size_t n) const override { return 2 * n; }
  [[nodiscard]] std::size_t values_in(HostView<const std::byte> payload, std::size_t /*n*/) const override {
    const ChannelHeader header = read_header(payload);
    return (payload.size() - sizeof header - bitmap_bytes(header.transmissions) -
            sizeof(PacketHeader) * header.transmissions) /
           4;
  }

  [[nodiscard]] std::unique_ptr<Encoder<Space::host>> make_encoder(std::size_t n, int ranks,
                                                                   Queue<Space::host> queue) const override;

  [[nodiscard]] std::size_t tensor_count() const { return packets_.tensors().size(); }

  /// Marks and sends every packet once, then again, reliably, as many of a tensor's lost ones as its bound asks for.
  void send(Queue<Space::host> queue, HostView<const float> gradient, const EncodeContext& context,
            HostView<std::byte> payload, HostView<std::byte> scratch, RunningMedian* running,
            Delivery& delivery) const {
    const std::size_t p = packets_.count();
    auto* statistic = section<float>(scratch);
    auto* sorted = section<float>(scratch, padded(4 * p));
    auto* important = section<std::uint8_t>(scratch, 2 * padded(4 * p));
    auto* arrived = section<std::uint32_t>(scratch, 2 * padded(4 * p) + padded(p));
    std::fill_n(arrived, bitmap_bytes(2 * p) / 4, 0U);

    LossyChannel channel{channel_, context.key};
    for (const auto& tensor : packets_.tensors()) {
      mark(queue, gradient, tensor, statistic, sorted, important, running);
      if (running != nullptr) ++running;
    }
    std::size_t transmissions = p;
    std::size_t resent_bytes = 0;
    for (const auto& tensor : packets_.tensors()) {
      std::size_t missing = 0;
      for (std::size_t i = 0; i < tensor.packets; ++i) {
        const std::size_t bytes = 4 * packets_.elements_in(tensor, i);
        const bool matters = important[tensor.before + i] != 0;
        const bool lost = channel.loses(tensor.before + i, bytes + sizeof(PacketHeader), matters);
        delivery.sent[matters ? 1 : 0] += bytes;
        if (lost) {
          missing += bytes;
        } else {
          set(arrived, tensor.before + i);
          delivery.arrived[matters ? 1 : 0] += bytes;
        }
      }
      // The receiver says stop when at least 1 - bound of the bytes are there.
      const double tolerated = bound_ * static_cast<double>(4 * tensor.elements);
      for (std::size_t i = 0; i<tensor.packets&& static_cast<double>(missing)> tolerated; ++i) {
        if (bit(arrived, tensor.before + i)) continue;
        const std::size_t bytes = 4 * packets_.elements_in(tensor, i);
        set(arrived, transmissions++);
        important[tensor.before + i] |= kResent;
        missing -= bytes;
        resent_bytes += sizeof(PacketHeader) + bytes;
        delivery.resent += bytes;
        delivery.arrived[(important[tensor.before + i] & 1U) != 0 ? 1 : 0] += bytes;
      }
    }
    write(queue, gradient, context, payload, important, arrived, transmissions, resent_bytes);
  }

 private:
  static constexpr std::uint8_t kResent = 2;  ///< beside 1, in the marks

  static constexpr std::size_t padded(std::size_t bytes) { return Arena<Space::host>::padded_size(bytes); }
  static bool bit(const std::uint32_t* words, std::size_t i) { return (words[i / 32] >> i % 32 & 1U) != 0; }
  static void set(std::uint32_t* words, std::size_t i) { words[i / 32] |= 1U << i % 32; }
  [[noreturn]] static void bad(const char* what) { throw Error{Fault::data, fmt::format("dlcp payload: {}", what)}; }

  /// Important is a packet whose mean magnitude is at least the tensor's usual median, or one of the back layers.
  void mark(Queue<Space::host> queue, HostView<const float> gradient, const Packets::Tensor& tensor, float* statistic,
            float* sorted, std::uint8_t* important, RunningMedian* running) const {
    if (tensor.packets == 0) return;
    float* mean = statistic + tensor.before;
    parallel_for(queue, tensor.packets, 1, 64, [&](std::size_t first, std::size_t last) {
      for (std::size_t i = first; i < last; ++i) {
        mean[i] = mean_magnitude(gradient.data() + tensor.first + i * packets_.elements_each(),
                                 packets_.elements_in(tensor, i));
      }
    });
    std::copy_n(mean, tensor.packets, sorted);
    float* middle = sorted + tensor.packets / 2;
    std::nth_element(sorted, middle, sorted + tensor.packets);
    const float usual = running != nullptr ? running->usual(*middle) : *middle;
    for (std::size_t i = 0; i < tensor.packets; ++i)
      important[tensor.before + i] = tensor.back || mean[i] >= usual ? 1 : 0;
    if (running != nullptr) running->move(*middle, decay_);
  }

  [[nodiscard]] PacketHeader packet_header(const Packets::Tensor& tensor, std::size_t number, std::size_t packet,
                                           const EncodeContext& context, std::uint8_t flags) const {
    return {.iteration = static_cast<std::uint32_t>(context.iteration),
            .tensor = static_cast<std::uint32_t>(number),
            .packet = static_cast<std::uint32_t>(packet),
            .bytes = static_cast<std::uint16_t>(4 * packets_.elements_in(tensor, packet)),
            .layer_class = tensor.layer_class,
            .flags = flags,
            .packets = static_cast<std::uint32_t>(tensor.packets)};
  }

  void write(Queue<Space::host> queue, HostView<const float> gradient, const EncodeContext& context,
             HostView<std::byte> payload, const std::uint8_t* marks, const std::uint32_t* arrived,
             std::size_t transmissions, std::size_t resent_bytes) const {
    const std::size_t base = sizeof(ChannelHeader) + bitmap_bytes(transmissions);
    const ChannelHeader header{base + packets_.bytes() + resent_bytes, static_cast<std::uint32_t>(packets_.count()),
                               static_cast<std::uint32_t>(transmissions)};
    std::memcpy(payload.data(), &header, sizeof header);
    std::memcpy(payload.data() + sizeof header, arrived, bitmap_bytes(transmissions));
    const auto put = [&](const Packets::Tensor& tensor, std::size_t number, std::size_t i, std::byte* to,
                         std::uint8_t flags) {
      const PacketHeader head = packet_header(tensor, number, i, context, flags);
      std::memcpy(to, &head, sizeof head);
      std::memcpy(to + sizeof head, gradient.data() + tensor.first + i * packets_.elements_each(), head.bytes);
      return sizeof head + head.bytes;
    };
    std::byte* again = payload.data() + base + packets_.bytes();
    std::size_t number = 0;
    for (const auto& tensor : packets_.tensors()) {
      parallel_for(queue, tensor.packets, 1, 64, [&](std::size_t first, std::size_t last) {
        for (std::size_t i = first; i < last; ++i)
          put(tensor, number, i, payload.data() + base + packets_.offset(tensor, i), marks[tensor.before + i] & 1U);
      });
      for (std::size_t i = 0; i < tensor.packets; ++i) {
        const std::uint8_t flags = marks[tensor.before + i];
        if ((flags & kResent) != 0) again += put(tensor, number, i, again, flags);
      }
      ++number;
    }
  }

  [[nodiscard]] ChannelHeader read_header(HostView<const std::byte> payload) const {
    ChannelHeader header;
    if (payload.size() < sizeof header) bad("too short for its header");
    std::memcpy(&header, payload.data(), sizeof header);
    if (header.bytes != payload.size()) bad("its length is not the one it states");
    if (header.packets != packets_.count() || header.transmissions < header.packets ||
        header.transmissions > 2 * std::uint64_t{header.packets})
      bad("it does not have this gradient's packets");
    const std::size_t least = sizeof header + bitmap_bytes(header.transmissions) + packets_.bytes() +
                              (header.transmissions - header.packets) * sizeof(PacketHeader);
    if (payload.size() < least) bad("too short for its packets");
    return header;
  }

  void check_packet(HostView<const std::byte> payload, std::size_t at, const Packets::Tensor& tensor,
                    std::uint32_t number, std::size_t packet, bool again) const {
    PacketHeader head;
    std::memcpy(&head, payload.data() + at, sizeof head);
    if (head.magic != PacketHeader::kMagic || head.tensor != number || head.packet != packet ||
        head.bytes != 4 * packets_.elements_in(tensor, packet) || head.packets != tensor.packets ||
        ((head.flags & PacketHeader::kRetransmitted) != 0) != again)
      bad("a packet is not the one that belongs there");
  }

  /// Packets sent again: in order, each of one that was lost, all of them arrived.
  void add_resent(HostView<const std::byte> payload, const ChannelHeader& header, std::size_t at, float weight,
                  HostView<float> out) const {
    const auto* arrived = section<std::uint32_t>(payload, sizeof header);
    std::size_t next = 0;  // packets of all tensors that may come again
    for (std::size_t t = header.packets; t < header.transmissions; ++t) {
      PacketHeader head;
      if (payload.size() - at < sizeof head) bad("too short for the packets sent again");
      std::memcpy(&head, payload.data() + at, sizeof head);
      if (head.tensor >= packets_.tensors().size()) bad("a packet of no tensor");
      const auto& tensor = packets_.tensors()[head.tensor];
      const std::size_t place = tensor.before + head.packet;
      if (head.packet >= tensor.packets || place < next || bit(arrived, place) || !bit(arrived, t))
        bad("a packet sent again that was not lost, or out of order");
      check_packet(payload, at, tensor, head.tensor, head.packet, true);
      next = place + 1;
      at += sizeof head;
      if (payload.size() - at < head.bytes) bad("too short for the packets sent again");
      add_packet(section<float>(payload, at), weight,
                 out.data() + tensor.first + head.packet * packets_.elements_each(), head.bytes / 4U);
      at += head.bytes;
    }
    if (at != payload.size()) bad("bytes behind its last packet");
  }

  Packets packets_;
  std::size_t elements_;
  double bound_;
  float decay_;
  LossyChannel::Options channel_;
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
    std::fill(running_.begin(), running_.end(), RunningMedian{});
    delivery_ = {};
  }
  [[nodiscard]] std::vector<Tally> tallies() const override {
    const auto tally = [](const char* what, std::uint64_t part, std::uint64_t whole) {
      return Tally{what, static_cast<double>(part), static_cast<double>(whole)};
    };
    return {tally("important bytes delivered", delivery_.arrived[1], delivery_.sent[1]),
            tally("droppable bytes delivered", delivery_.arrived[0], delivery_.sent[0]),
            tally("bytes sent again", delivery_.resent, delivery_.sent[0] + delivery_.sent[1])};
  }

 private:
  const Dlcp& codec_;
  std::vector<RunningMedian> running_;
  Delivery delivery_;
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
