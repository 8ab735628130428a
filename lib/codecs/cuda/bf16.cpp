#include "kernels/cuda/cast.hpp"
#include "lib/codecs/cuda/twin.hpp"
#include "lib/codecs/cuda_factories.hpp"
#include "lib/codecs/payload.hpp"

namespace gradtool {
namespace {

class CudaBf16 final : public CudaTwin {
 public:
  explicit CudaBf16(const Params& params) : CudaTwin{"bf16", params} {}

  [[nodiscard]] Footprint plan(std::size_t n) const override { return {.payload_bytes = 2 * n}; }

  void encode(Queue<Space::cuda> queue, View<const float, Space::cuda> gradient, const EncodeContext& /*context*/,
              View<std::byte, Space::cuda> payload, View<std::byte, Space::cuda> /*scratch*/) const override {
    cuda::to_bfloat(queue, gradient, elements<std::uint16_t>(payload, 0, gradient.size()));
  }

  void decode_add(Queue<Space::cuda> queue, View<const std::byte, Space::cuda> payload, float weight,
                  View<float, Space::cuda> out, View<std::byte, Space::cuda> /*scratch*/) const override {
    expect_length("bf16", payload.size(), 2 * out.size());
    cuda::add_bfloat(queue, elements<std::uint16_t>(payload, 0, out.size()), weight, out);
  }
};

}  // namespace

std::unique_ptr<Codec<Space::cuda>> make_cuda_bf16(const Params& params, const Layout& /*layout*/) {
  return std::make_unique<CudaBf16>(params);
}

}  // namespace gradtool
