#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "kernels/draws.hpp"

namespace gradtool {

/// A network link that loses packets. One object serves one transfer: its packets must be passed in the order in which
/// they leave the sender, because the queue and the two-state chain remember the packets before.
class LossyChannel {
 public:
  enum class Model : std::uint8_t {
    none,             ///< loses nothing
    iid,              ///< loses each packet independently with the same probability
    gilbert_elliott,  ///< two-state Markov chain (Gilbert 1960, Elliott 1963): losses come in bursts
    importance,       ///< a switch queue that drops unimportant packets first (DLCP, arXiv 2008.08445)
  };
  /// A model reads only the options that name it, and ignores the others.
  struct Options {
    Model model = Model::importance;
    double loss = 0.0;         ///< iid: probability that a packet is lost
    double bad_share = 0.0;    ///< gilbert_elliott: stationary probability of the bad state
    double burst = 1.0;        ///< gilbert_elliott: mean length of a stay in the bad state, in packets
    double loss_good = 0.0;    ///< gilbert_elliott: probability of a loss in the good state
    double loss_bad = 1.0;     ///< gilbert_elliott: probability of a loss in the bad state
    double drain = 1.0;        ///< importance: bytes that leave the queue for each byte that arrives
    double queue_bytes = 0.0;  ///< importance: threshold K above which the queue drops unimportant packets
  };

  /// All random numbers are drawn from `key`. The queue starts filled up to K, as if congestion had begun before this
  /// transfer. The two-state chain starts in its stationary distribution.
  LossyChannel(const Options& options, const format::DrawKey& key)
      : options_{options}, key_{key}, waiting_bytes_{options.queue_bytes} {}

  /// Whether the channel loses packet number `packet`, which has `bytes` bytes including its header. The random numbers
  /// of packet p are those of elements 4p to 4p+3 of the key.
  [[nodiscard]] bool loses(std::uint64_t packet, std::size_t bytes, bool important) {
    switch (options_.model) {
      case Model::none:
        return false;
      case Model::iid:
        return uniform(format::draw4(key_, packet), 0) < options_.loss;
      case Model::gilbert_elliott:
        return burst_loses(packet);
      case Model::importance:
        return queue_drops(static_cast<double>(bytes), important);
    }
    return false;
  }

 private:
  static double uniform(const format::Draws& draws, int i) {
    return static_cast<double>(format::uniform(draws.bits[i]));
  }

  /// A stay in the bad state ends with probability 1/burst per packet. The probability that a stay begins follows from
  /// the stationary share of the bad state: share = begins / (begins + ends).
  bool burst_loses(std::uint64_t packet) {
    const format::Draws draws = format::draw4(key_, packet);
    const double ends = 1.0 / options_.burst;
    const double begins = std::min(1.0, ends * options_.bad_share / std::max(1.0 - options_.bad_share, 1e-9));
    if (packet == 0) {
      in_bad_state_ = uniform(draws, 2) < options_.bad_share;
    } else {
      in_bad_state_ = in_bad_state_ ? uniform(draws, 1) >= ends : uniform(draws, 1) < begins;
    }
    return uniform(draws, 0) < (in_bad_state_ ? options_.loss_bad : options_.loss_good);
  }

  /// One switch queue that runs RED with both thresholds at K, as DLCP configures it: an unimportant packet is dropped
  /// when the queue would exceed K. An important one is sent as ECN-capable, so that it is only marked above K, and
  /// dropped when the buffer of 3 K overflows.
  bool queue_drops(double bytes, bool important) {
    waiting_bytes_ = std::max(0.0, waiting_bytes_ - options_.drain * bytes);
    if (waiting_bytes_ + bytes > (important ? 3.0 : 1.0) * options_.queue_bytes) return true;
    waiting_bytes_ += bytes;
    return false;
  }

  Options options_;
  format::DrawKey key_;
  double waiting_bytes_;  ///< in the queue of Model::importance
  bool in_bad_state_ = false;
};

}  // namespace gradtool
