#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "lib/codecs/dlcp_channel.hpp"
#include "lib/codecs/dlcp_packets.hpp"
#include "lib/codecs/encoder.hpp"
#include "lib/core/arena.hpp"

namespace gradtool {

/// Bytes of data, by class.
struct DlcpDelivery {
  std::array<std::uint64_t, 2> sent{}, arrived{};  ///< [important]
  std::uint64_t resent = 0;
};

/// What a bench reports of them; CUDA counts in a struct of its own.
template <class Delivery>
[[nodiscard]] std::vector<Tally> tallies_of(const Delivery& d) {
  const auto tally = [](const char* what, auto part, auto whole) {
    return Tally{what, static_cast<double>(part), static_cast<double>(whole)};
  };
  return {tally("important bytes delivered", d.arrived[1], d.sent[1]),
          tally("droppable bytes delivered", d.arrived[0], d.sent[0]),
          tally("bytes sent again", d.resent, d.sent[0] + d.sent[1])};
}

/// What became of a unit's packets; it lies in the scratch.
struct DlcpSent {
  static constexpr std::uint8_t kImportant = 1, kResent = 2;
  const std::uint8_t* marks = nullptr;     ///< of every packet
  const std::uint32_t* arrived = nullptr;  ///< a bit for every transmission: each packet, then those sent again
  std::size_t transmissions = 0;
  std::size_t resent_bytes = 0;  ///< headers included
};

/// Decides which of a unit's packets are important, which the channel loses, and which are sent again.
class DlcpTransport {
 public:
  DlcpTransport(const Params& params, const Packets& packets)
      : packets_{packets},
        bound_{params.real("bound")},
        decay_{static_cast<float>(params.real("decay"))},
        channel_{channel_options(params)} {}

  [[nodiscard]] bool may_lose() const { return channel_.model != LossyChannel::Model::none && bound_ > 0.0; }
  [[nodiscard]] std::size_t scratch_bytes() const {
    const std::size_t p = packets_.count();
    return 2 * padded(4 * p) + padded(p) + padded(law::bitmap_bytes(2 * p));
  }

  /// Sends every packet once, then again, reliably, as many of a tensor's lost ones as its bound asks for. `running`:
  /// of every tensor, which moves; null in a first step of its own.
  DlcpSent send(Queue<Space::host> queue, HostView<const float> gradient, const law::DrawKey& key,
                HostView<std::byte> scratch, law::RunningMedian* running, DlcpDelivery& delivery) const;

 private:
  static constexpr std::size_t padded(std::size_t bytes) { return Arena<Space::host>::padded_size(bytes); }
  void mark(Queue<Space::host> queue, HostView<const float> gradient, const Packets::Tensor& tensor, float* statistic,
            float* sorted, std::uint8_t* marks, law::RunningMedian* running) const;

  const Packets& packets_;
  double bound_;
  float decay_;
  LossyChannel::Options channel_;
};

}  // namespace gradtool
