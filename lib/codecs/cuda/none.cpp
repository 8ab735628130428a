#include "kernels/cuda/runtime.hpp"
#include "kernels/cuda/vector.hpp"
#include "lib/codecs/cuda/twin.hpp"
#include "lib/codecs/cuda_factories.hpp"
#include "lib/codecs/payload.hpp"

namespace gradtool {
namespace {

class CudaNone final : public CudaTwin {
 public:
  explicit CudaNone(const Params& params) : CudaTwin{"none", params} {}

  [[nodiscard]] Footprint plan(std::size_t n) const override { return {.payload_bytes = 4 * n}; }

  void encode(Queue<Space::cuda> queue, View<const float, Space::cuda> gradient, const EncodeContext& /*context*/,
              View<std::byte, Space::cuda> payload, View<std::byte, Space::cuda> /*scratch*/) const override {
    cuda::copy(queue, payload.first(gradient.bytes()), as_bytes(gradient));
  }

  void decode_add(Queue<Space::cuda> queue, View<const std::byte, Space::cuda> payload, float weight,
                  View<float, Space::cuda> out, View<std::byte, Space::cuda> /*scratch*/) const override {
    expect_length("none", payload.size(), 4 * out.size());
    cuda::add_scaled(queue, elements<float>(payload, 0, out.size()), weight, out);
  }
};

class CudaNoop final : public CudaTwin {
 public:
  explicit CudaNoop(const Params& params) : CudaTwin{"noop", params} {}

  [[nodiscard]] Footprint plan(std::size_t /*n*/) const override { return {}; }
  void encode(Queue<Space::cuda> /*queue*/, View<const float, Space::cuda> /*gradient*/,
              const EncodeContext& /*context*/, View<std::byte, Space::cuda> /*payload*/,
              View<std::byte, Space::cuda> /*scratch*/) const override {}
  void decode_add(Queue<Space::cuda> /*queue*/, View<const std::byte, Space::cuda> payload, float /*weight*/,
                  View<float, Space::cuda> /*out*/, View<std::byte, Space::cuda> /*scratch*/) const override {
    expect_length("noop", payload.size(), 0);
  }
};

}  // namespace

std::unique_ptr<Codec<Space::cuda>> make_cuda_none(const Params& params, const Layout& /*layout*/) {
  return std::make_unique<CudaNone>(params);
}
std::unique_ptr<Codec<Space::cuda>> make_cuda_noop(const Params& params, const Layout& /*layout*/) {
  return std::make_unique<CudaNoop>(params);
}

}  // namespace gradtool
