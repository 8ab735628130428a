#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace gradtool {

/// The bounded-loss transport as `--comm udp:key=value,...` chooses it.
struct UdpOptions {
  double loss = 0.0;             ///< share of each tensor's bytes that a sum over ranks may lose, end to end
  double loss_back = -1.0;       ///< the same of tensors in the last third of the model; below 0: as `loss`
  double loss_important = -1.0;  ///< the same of important packets' bytes; below 0: as the tensor's
  double loss_sums = 0.0;        ///< share that may be lost of finished sums; above 0 ranks may end with other bits
  bool mark = false;             ///< classes of packets by layer and magnitude, as type of service
  bool mark_given = false;       ///< otherwise `mark` is on where something may be lost
  std::size_t packet = 1424;     ///< bytes of data in a full datagram
  double rate = 12.5e9;          ///< most bytes a second from one rank to another
  double first_rate = 12.5e6;    ///< the same at the start
  double delay = 5e-3;           ///< seconds in queues beyond which a sender slows down

  std::string text;  ///< as given

  [[nodiscard]] bool marks() const { return mark_given ? mark : loss > 0.0 || loss_sums > 0.0; }
};

/// Parses what stands behind "udp:", for example "loss=0.01,important=0,rate=1Gbps"; empty for the defaults. Throws
/// Fault::usage naming the key or the value and what would be valid.
[[nodiscard]] UdpOptions parse_udp_options(std::string_view text);

}  // namespace gradtool
