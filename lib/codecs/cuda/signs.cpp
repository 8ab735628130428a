// efsignsgd and signsgd: one class.
#include "kernels/cuda/signs.hpp"

#include "kernels/law/bitpack.hpp"
#include "lib/codecs/cuda/tensor_table.hpp"
#include "lib/codecs/cuda/twin.hpp"
#include "lib/codecs/cuda_factories.hpp"
#include "lib/codecs/payload.hpp"

namespace gradtool {
namespace {

/// The CUDA side of SignCodec.
class CudaSignCodec final : public CudaTwin {
 public:
  CudaSignCodec(std::string_view name, const Params& params, const Layout& layout, bool scaled)
      : CudaTwin{name, params, layout},
        name_{name},
        scaled_{scaled},
        pieces_{TensorPieces{layout, [](std::size_t count) { return law::packed_words(count, 1); }}} {}

  [[nodiscard]] Footprint plan(std::size_t n) const override {
    pieces_.make(n);
    return {.payload_bytes = bytes(), .scratch_bytes = scaled_ ? cuda::signs_scratch_bytes(pieces_.pieces()) : 0};
  }

  void encode(Queue<Space::cuda> queue, View<const float, Space::cuda> gradient, const EncodeContext& /*context*/,
              View<std::byte, Space::cuda> payload, View<std::byte, Space::cuda> scratch) const override {
    cuda::signs_encode(queue, pieces_.table(), gradient.data(),
                       elements<std::uint32_t>(payload, 4 * means(), pieces_.words()).data(),
                       scaled_ ? elements<float>(payload, 0, means()).data() : nullptr, scratch.data());
  }

  void decode_add(Queue<Space::cuda> queue, View<const std::byte, Space::cuda> payload, float weight,
                  View<float, Space::cuda> out, View<std::byte, Space::cuda> scratch) const override {
    decode_add_all(queue, {&payload, 1}, weight, out, scratch);
  }

  void decode_add_all(Queue<Space::cuda> queue, std::span<const View<const std::byte, Space::cuda>> payloads,
                      float weight, View<float, Space::cuda> out,
                      View<std::byte, Space::cuda> /*scratch*/) const override {
    for (const auto& payload : payloads) expect_length(name_, payload.size(), bytes());
    cuda::in_batches(payloads, [&](const cuda::Payloads& batch) {
      cuda::signs_decode_add(queue, pieces_.table(), batch, scaled_, weight, out.data());
    });
  }

 private:
  [[nodiscard]] std::size_t means() const { return scaled_ ? pieces_.tensors() : 0; }
  [[nodiscard]] std::size_t bytes() const { return 4 * (means() + pieces_.words()); }

  std::string_view name_;
  bool scaled_;
  CudaTensorPieces pieces_;
};

}  // namespace

std::unique_ptr<Codec<Space::cuda>> make_cuda_efsignsgd(const Params& params, const Layout& layout) {
  return std::make_unique<CudaSignCodec>("efsignsgd", params, layout, true);
}

std::unique_ptr<Codec<Space::cuda>> make_cuda_signsgd(const Params& params, const Layout& layout) {
  return std::make_unique<CudaSignCodec>("signsgd", params, layout, params.is("scale", "mean"));
}

}  // namespace gradtool
