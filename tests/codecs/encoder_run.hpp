#pragma once

#include "tests/codecs/codec_run.hpp"
#include "tests/codecs/inputs.hpp"

namespace gradtool::test {

/// One rank's memory of a codec over steps, with buffers poisoned before every use.
class EncoderRun {
 public:
  EncoderRun(const std::string& spec, const Layout& layout, int threads = 1, int ranks = 1)
      : spec_{parse_codec(spec)},
        codec_{spec_.descriptor->make_host(spec_.params, layout)},
        footprint_{codec_->plan(layout.elements)},
        pool_{threads},
        queue_{threads > 1 ? &pool_ : nullptr},
        arena_{Arena<Space::host>::padded_size(footprint_.payload_bytes) +
               Arena<Space::host>::padded_size(footprint_.scratch_bytes)},
        payload_{arena_.take_bytes(footprint_.payload_bytes)},
        scratch_{arena_.take_bytes(footprint_.scratch_bytes)},
        encoder_{codec_->make_encoder(layout.elements, ranks, queue_)} {}

  std::vector<std::byte> encode(std::span<const float> x, const SideInputs<Space::host>& side = {},
                                const EncodeContext& context = {}) {
    std::memset(payload_.data(), 0xA5, payload_.size());
    std::memset(scratch_.data(), 0xA5, scratch_.size());
    encoder_->encode(queue_, {x.data(), x.size()}, side, context, payload_, scratch_);
    std::uint64_t bytes = footprint_.payload_bytes;
    if (!footprint_.exact) std::memcpy(&bytes, payload_.data(), sizeof bytes);
    return {payload_.data(), payload_.data() + std::min<std::size_t>(bytes, payload_.size())};
  }

  std::vector<float> decode(const std::vector<std::byte>& payload) {
    std::memcpy(payload_.data(), payload.data(), payload.size());
    std::vector<float> out(encoder_->residual().size(), 0.0F);
    codec_->decode_add(queue_, payload_.first(payload.size()), 1.0F, {out.data(), out.size()}, scratch_);
    return out;
  }

  [[nodiscard]] Encoder<Space::host>& encoder() { return *encoder_; }
  [[nodiscard]] const Codec<Space::host>& codec() const { return *codec_; }

 private:
  CodecSpec spec_;
  std::unique_ptr<Codec<Space::host>> codec_;
  Footprint footprint_;
  TaskPool pool_;
  Queue<Space::host> queue_;
  Arena<Space::host> arena_;
  HostView<std::byte> payload_, scratch_;
  std::unique_ptr<Encoder<Space::host>> encoder_;
};

/// Second moments as of micro-batches that differ: about 0.25 g^2 and noise of the gradient's own scale.
inline std::vector<float> noisy_moment(const std::vector<float>& gradient, std::uint32_t seed) {
  const auto noise = gradient_like(gradient.size(), seed);
  std::vector<float> v(gradient.size());
  for (std::size_t i = 0; i < v.size(); ++i) v[i] = 0.25F * gradient[i] * gradient[i] + 0.25F * noise[i] * noise[i];
  return v;
}

}  // namespace gradtool::test
