#pragma once

#include "kernels/cuda/blocks.hpp"
#include "lib/codecs/cuda/batched.hpp"
#include "lib/codecs/payload.hpp"

namespace gradtool {

/// The CUDA side of a BlockCodec, for the formats that kernels/cuda/blocks.hpp is defined for.
template <class Format>
class CudaBlock final : public BatchedTwin {
 public:
  CudaBlock(std::string_view name, const Params& params, std::size_t block)
      : BatchedTwin{name, params}, name_{name}, block_{block}, stochastic_{params.is("rounding", "stochastic")} {}
  /// Rounding to nearest.
  CudaBlock(std::string_view name, std::unique_ptr<Codec<Space::host>> host, std::size_t block)
      : BatchedTwin{std::move(host)}, name_{name}, block_{block}, stochastic_{false} {}

  [[nodiscard]] Footprint plan(std::size_t n) const override {
    return {.payload_bytes = layout(n).bytes(), .scratch_bytes = cuda::blocks_scratch_bytes(layout(n))};
  }

  void decode_add_all(Queue<Space::cuda> queue, std::span<const View<const std::byte, Space::cuda>> payloads,
                      float weight, View<float, Space::cuda> out,
                      View<std::byte, Space::cuda> /*scratch*/) const override {
    for (const auto& payload : payloads) check_length(payload.size(), out.size());
    cuda::in_batches(payloads, [&](const cuda::Payloads& batch) {
      cuda::decode_add_blocks<Format>(queue, layout(out.size()), batch, weight, out.data());
    });
  }

 private:
  void encode_units(Queue<Space::cuda> queue, std::span<const cuda::Unit> units, const EncodeContext& context,
                    Bytes scratch) const override {
    cuda::encode_blocks<Format>(queue, layout(0), units, stochastic_, context.key, scratch.data());
  }
  void decode_units(Queue<Space::cuda> queue, std::span<const cuda::Unit> units, float weight) const override {
    cuda::decode_add_blocks<Format>(queue, layout(0), units, weight);
  }
  void check_length(std::size_t bytes, std::size_t n) const override { expect_length(name_, bytes, layout(n).bytes()); }
  [[nodiscard]] bool batches() const override { return cuda::blocks_scratch_bytes(layout(1)) == 0; }

  [[nodiscard]] law::BlockLayout layout(std::size_t n) const {
    return {n, block_, sizeof(typename Format::Scale), Format::Element::kBits};
  }

  std::string_view name_;
  std::size_t block_;
  bool stochastic_;
};

}  // namespace gradtool
