#include "kernels/cuda/terngrad.hpp"

#include "kernels/law/bitpack.hpp"
#include "lib/codecs/cuda/tensor_table.hpp"
#include "lib/codecs/cuda/twin.hpp"
#include "lib/codecs/cuda_factories.hpp"
#include "lib/codecs/payload.hpp"

namespace gradtool {
namespace {

class CudaTernGrad final : public CudaTwin {
 public:
  CudaTernGrad(const Params& params, const Layout& layout)
      : CudaTwin{"terngrad", params, layout},
        format_{params.is("clip", "off") ? 0.0 : params.real("clip"), params.is("pack", "base3")},
        pieces_{TensorPieces{layout, [this](std::size_t count) {
                               return format_.base3 ? (count + 19) / 20 : law::packed_words(count, 2);
                             }}} {}

  [[nodiscard]] Footprint plan(std::size_t n) const override {
    pieces_.make(n);
    return {.payload_bytes = bytes(), .scratch_bytes = cuda::terngrad_scratch_bytes(pieces_.pieces())};
  }

  void encode(Queue<Space::cuda> queue, View<const float, Space::cuda> gradient, const EncodeContext& context,
              View<std::byte, Space::cuda> payload, View<std::byte, Space::cuda> scratch) const override {
    cuda::terngrad_encode(queue, pieces_.table(), format_, gradient.data(), context.key,
                          elements<float>(payload, 0, pieces_.tensors()).data(),
                          elements<std::uint32_t>(payload, 4 * pieces_.tensors(), pieces_.words()).data(),
                          scratch.data());
  }

  void decode_add(Queue<Space::cuda> queue, View<const std::byte, Space::cuda> payload, float weight,
                  View<float, Space::cuda> out, View<std::byte, Space::cuda> scratch) const override {
    decode_add_all(queue, {&payload, 1}, weight, out, scratch);
  }

  void decode_add_all(Queue<Space::cuda> queue, std::span<const View<const std::byte, Space::cuda>> payloads,
                      float weight, View<float, Space::cuda> out,
                      View<std::byte, Space::cuda> /*scratch*/) const override {
    for (const auto& payload : payloads) expect_length("terngrad", payload.size(), bytes());
    cuda::in_batches(payloads, [&](const cuda::Payloads& batch) {
      cuda::terngrad_decode_add(queue, pieces_.table(), format_, batch, weight, out.data());
    });
  }

 private:
  [[nodiscard]] std::size_t bytes() const { return 4 * (pieces_.tensors() + pieces_.words()); }

  cuda::TerngradFormat format_;
  CudaTensorPieces pieces_;
};

}  // namespace

std::unique_ptr<Codec<Space::cuda>> make_cuda_terngrad(const Params& params, const Layout& layout) {
  return std::make_unique<CudaTernGrad>(params, layout);
}

}  // namespace gradtool
