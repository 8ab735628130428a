#pragma once

#include "kernels/cuda/blocks.hpp"
#include "lib/codecs/cuda/twin.hpp"
#include "lib/codecs/payload.hpp"

namespace gradtool {

/// The CUDA side of a BlockCodec, for the formats that kernels/cuda/blocks.hpp is defined for.
template <class Format>
class CudaBlock final : public CudaTwin {
 public:
  CudaBlock(std::string_view name, const Params& params, std::size_t block)
      : CudaTwin{name, params}, name_{name}, block_{block}, stochastic_{params.is("rounding", "stochastic")} {}
  /// Rounding to nearest.
  CudaBlock(std::string_view name, std::unique_ptr<Codec<Space::host>> host, std::size_t block)
      : CudaTwin{std::move(host)}, name_{name}, block_{block}, stochastic_{false} {}

  [[nodiscard]] Footprint plan(std::size_t n) const override {
    return {.payload_bytes = layout(n).bytes(), .scratch_bytes = cuda::blocks_scratch_bytes(layout(n))};
  }

  void encode(Queue<Space::cuda> queue, View<const float, Space::cuda> gradient, const EncodeContext& context,
              View<std::byte, Space::cuda> payload, View<std::byte, Space::cuda> scratch) const override {
    cuda::encode_blocks<Format>(queue, layout(gradient.size()), gradient.data(), stochastic_, context.key,
                                payload.data(), scratch.data());
  }

  void decode_add(Queue<Space::cuda> queue, View<const std::byte, Space::cuda> payload, float weight,
                  View<float, Space::cuda> out, View<std::byte, Space::cuda> scratch) const override {
    decode_add_all(queue, {&payload, 1}, weight, out, scratch);
  }

  void decode_add_all(Queue<Space::cuda> queue, std::span<const View<const std::byte, Space::cuda>> payloads,
                      float weight, View<float, Space::cuda> out,
                      View<std::byte, Space::cuda> /*scratch*/) const override {
    for (const auto& payload : payloads) expect_length(name_, payload.size(), layout(out.size()).bytes());
    cuda::in_batches(payloads, [&](const cuda::Payloads& batch) {
      cuda::decode_add_blocks<Format>(queue, layout(out.size()), batch, weight, out.data());
    });
  }

 private:
  [[nodiscard]] law::BlockLayout layout(std::size_t n) const {
    return {n, block_, sizeof(typename Format::Scale), Format::Element::kBits};
  }

  std::string_view name_;
  std::size_t block_;
  bool stochastic_;
};

}  // namespace gradtool
