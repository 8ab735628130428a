#include "kernels/cuda/natural.hpp"

#include "lib/codecs/cuda/twin.hpp"
#include "lib/codecs/cuda_factories.hpp"
#include "lib/codecs/payload.hpp"

namespace gradtool {
namespace {

class CudaNatural final : public CudaTwin {
 public:
  explicit CudaNatural(const Params& params) : CudaTwin{"natural", params} {}

  [[nodiscard]] Footprint plan(std::size_t n) const override { return {.payload_bytes = bytes(n)}; }

  void encode(Queue<Space::cuda> queue, View<const float, Space::cuda> gradient, const EncodeContext& context,
              View<std::byte, Space::cuda> payload, View<std::byte, Space::cuda> /*scratch*/) const override {
    cuda::natural_encode(queue, gradient, context.key, payload.data());
  }

  void decode_add(Queue<Space::cuda> queue, View<const std::byte, Space::cuda> payload, float weight,
                  View<float, Space::cuda> out, View<std::byte, Space::cuda> scratch) const override {
    decode_add_all(queue, {&payload, 1}, weight, out, scratch);
  }

  void decode_add_all(Queue<Space::cuda> queue, std::span<const View<const std::byte, Space::cuda>> payloads,
                      float weight, View<float, Space::cuda> out,
                      View<std::byte, Space::cuda> /*scratch*/) const override {
    for (const auto& payload : payloads) expect_length("natural", payload.size(), bytes(out.size()));
    cuda::in_batches(payloads,
                     [&](const cuda::Payloads& batch) { cuda::natural_decode_add(queue, batch, weight, out); });
  }

 private:
  static std::size_t bytes(std::size_t n) { return (n + 3) / 4 * 4 + (n + 31) / 32 * 4; }
};

}  // namespace

std::unique_ptr<Codec<Space::cuda>> make_cuda_natural(const Params& params, const Layout& /*layout*/) {
  return std::make_unique<CudaNatural>(params);
}

}  // namespace gradtool
