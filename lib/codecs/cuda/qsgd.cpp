#include "kernels/cuda/qsgd.hpp"

#include "lib/codecs/cuda/twin.hpp"
#include "lib/codecs/cuda_factories.hpp"
#include "lib/codecs/payload.hpp"

namespace gradtool {
namespace {

class CudaQsgd final : public CudaTwin {
 public:
  explicit CudaQsgd(const Params& params)
      : CudaTwin{"qsgd", params},
        bucket_{static_cast<std::size_t>(params.integer("bucket"))},
        bits_{static_cast<std::uint32_t>(params.integer("bits"))},
        l2_{params.is("norm", "l2")} {}

  [[nodiscard]] Footprint plan(std::size_t n) const override { return {.payload_bytes = layout(n).bytes()}; }

  void encode(Queue<Space::cuda> queue, View<const float, Space::cuda> gradient, const EncodeContext& context,
              View<std::byte, Space::cuda> payload, View<std::byte, Space::cuda> /*scratch*/) const override {
    cuda::qsgd_encode(queue, layout(gradient.size()), gradient.data(), l2_, context.key, payload.data());
  }

  void decode_add(Queue<Space::cuda> queue, View<const std::byte, Space::cuda> payload, float weight,
                  View<float, Space::cuda> out, View<std::byte, Space::cuda> /*scratch*/) const override {
    expect_length("qsgd", payload.size(), layout(out.size()).bytes());
    cuda::qsgd_decode_add(queue, layout(out.size()), payload.data(), weight, out.data());
  }

 private:
  [[nodiscard]] law::QsgdLayout layout(std::size_t n) const { return {n, bucket_, bits_}; }

  std::size_t bucket_;
  std::uint32_t bits_;
  bool l2_;
};

}  // namespace

std::unique_ptr<Codec<Space::cuda>> make_cuda_qsgd(const Params& params, const Layout& /*layout*/) {
  if (params.is("code", "elias"))
    throw Error{Fault::unavailable, "codec qsgd: code=elias has no CUDA version; use code=fixed or --device cpu"};
  return std::make_unique<CudaQsgd>(params);
}

}  // namespace gradtool
