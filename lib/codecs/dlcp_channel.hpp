#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/law/lossy_channel.hpp"
#include "kernels/law/philox.hpp"
#include "lib/codecs/params.hpp"

namespace gradtool {

/// law::LossyChannel with the draws of a key.
class LossyChannel {
 public:
  using Model = law::LossyChannel::Model;
  using Options = law::LossyChannel::Options;

  LossyChannel(const Options& options, const law::DrawKey& key) : channel_{options}, key_{key} {}

  /// Whether packet number `packet` of `bytes` bytes is lost.
  [[nodiscard]] bool loses(std::uint64_t packet, std::size_t bytes, bool important) {
    const law::Draws draws = channel_.draws() ? law::draw4(key_, packet) : law::Draws{};
    return channel_.loses(packet, draws, static_cast<double>(bytes), important);
  }

 private:
  law::LossyChannel channel_;
  law::DrawKey key_;
};

/// The channel that a specification of dlcp asks for.
[[nodiscard]] inline LossyChannel::Options channel_options(const Params& params) {
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
          .queue_bytes = params.real("queue") * static_cast<double>(params.integer("packet") + 24)};
}

}  // namespace gradtool
