#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>

#include "kernels/law/philox.hpp"
#include "lib/codecs/params.hpp"

namespace gradtool {

/// Which packets of a transfer a network loses. One object for one transfer: packets in the order in which they leave.
class LossyChannel {
 public:
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
    static Options from(const Params& params);
  };

  /// The queue starts full up to K, as if the hotspot had formed before; the two-state chain in its stationary state.
  LossyChannel(const Options& options, const law::DrawKey& key) : o_{options}, key_{key}, waiting_{o_.queue_bytes} {}

  /// Whether packet number `packet` of `bytes` bytes is lost.
  [[nodiscard]] bool loses(std::uint64_t packet, std::size_t bytes, bool important) {
    switch (o_.model) {
      case Model::none:
        return false;
      case Model::importance:
        return queue_drops(static_cast<double>(bytes), important);
      case Model::iid:
        return static_cast<double>(law::uniform(law::draw4(key_, packet).bits[0])) < o_.loss;
      case Model::gilbert_elliott:
        break;
    }
    const law::Draws draws = law::draw4(key_, packet);
    const auto draw = [&](int i) { return static_cast<double>(law::uniform(draws.bits[i])); };
    // A stay in the bad state ends with probability 1/burst; the share of time there fixes how often one begins.
    const double ends = 1.0 / o_.burst;
    const double begins = std::min(1.0, ends * o_.bad_share / std::max(1.0 - o_.bad_share, 1e-9));
    bad_ = packet == 0 ? draw(2) < o_.bad_share : bad_ ? draw(1) >= ends : draw(1) < begins;
    return draw(0) < (bad_ ? o_.loss_bad : o_.loss_good);
  }

 private:
  /// One queue with one threshold (RED with min = max = K): what is not ECN-capable is dropped above K, what is stays
  /// until the buffer, three times K, overflows.
  [[nodiscard]] bool queue_drops(double bytes, bool important) {
    waiting_ = std::max(0.0, waiting_ - o_.drain * bytes);
    if (waiting_ + bytes > (important ? 3.0 : 1.0) * o_.queue_bytes) return true;
    waiting_ += bytes;
    return false;
  }

  Options o_;
  law::DrawKey key_;
  double waiting_;
  bool bad_ = false;
};

}  // namespace gradtool
