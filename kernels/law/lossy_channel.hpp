#pragma once

#include <cstdint>

#include "kernels/law/hd.hpp"
#include "kernels/law/philox.hpp"

namespace gradtool::law {

/// Which packets of a transfer a network loses. One object for one transfer: packets in the order in which they leave.
struct LossyChannel {
  enum class Model : std::uint8_t { none, iid, gilbert_elliott, importance };
  struct Options {
    Model model = Model::importance;
    double loss = 0.0;       ///< iid: probability for each packet
    double bad_share = 0.0;  ///< gilbert_elliott: share of the time in the bad state
    double burst = 1.0;      ///< mean packets that a stay in the bad state lasts
    double loss_good = 0.0;
    double loss_bad = 1.0;
    double drain = 1.0;        ///< importance: bytes that leave the queue for each byte that arrives
    double queue_bytes = 0.0;  ///< K: droppable packets are dropped where more would wait
  };

  Options o;
  double waiting;
  bool bad = false;

  /// The queue starts full up to K, as if the hotspot had formed before; the two-state chain in its stationary state.
  GT_HD explicit LossyChannel(const Options& options) : o{options}, waiting{options.queue_bytes} {}

  [[nodiscard]] GT_HD bool draws() const { return o.model == Model::iid || o.model == Model::gilbert_elliott; }

  /// Whether what it does to a packet depends on the packets before it.
  [[nodiscard]] GT_HD bool remembers() const {
    return o.model == Model::gilbert_elliott || o.model == Model::importance;
  }

  /// Whether packet number `packet` of `bytes` bytes is lost. `d`: the draws of element 4 packet, where draws() says
  /// that they are needed.
  [[nodiscard]] GT_HD bool loses(std::uint64_t packet, const Draws& d, double bytes, bool important) {
    switch (o.model) {
      case Model::none:
        return false;
      case Model::importance:
        return queue_drops(bytes, important);
      case Model::iid:
        return draw(d, 0) < o.loss;
      case Model::gilbert_elliott:
        break;
    }
    // A stay in the bad state ends with probability 1/burst; the share of time there fixes how often one begins.
    const double ends = 1.0 / o.burst;
    const double good_share = 1.0 - o.bad_share > 1e-9 ? 1.0 - o.bad_share : 1e-9;
    const double wanted = ends * o.bad_share / good_share;
    const double begins = wanted < 1.0 ? wanted : 1.0;
    bad = packet == 0 ? draw(d, 2) < o.bad_share : bad ? draw(d, 1) >= ends : draw(d, 1) < begins;
    return draw(d, 0) < (bad ? o.loss_bad : o.loss_good);
  }

 private:
  GT_HD static double draw(const Draws& d, int i) { return static_cast<double>(uniform(d.bits[i])); }

  /// One queue with one threshold (RED with min = max = K): what is not ECN-capable is dropped above K, what is stays
  /// until the buffer, three times K, overflows.
  GT_HD bool queue_drops(double bytes, bool important) {
    const double left = waiting - o.drain * bytes;
    waiting = left > 0.0 ? left : 0.0;
    if (waiting + bytes > (important ? 3.0 : 1.0) * o.queue_bytes) return true;
    waiting += bytes;
    return false;
  }
};

}  // namespace gradtool::law
