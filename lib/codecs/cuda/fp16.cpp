#include <cmath>

#include "kernels/cuda/cast.hpp"
#include "lib/codecs/cuda/batched.hpp"
#include "lib/codecs/cuda_factories.hpp"
#include "lib/codecs/payload.hpp"

namespace gradtool {
namespace {

class CudaFp16 final : public BatchedTwin {
 public:
  explicit CudaFp16(const Params& params)
      : BatchedTwin{"fp16", params}, scale_{std::ldexp(1.0F, static_cast<int>(params.integer("scale_log2")))} {}

  [[nodiscard]] Footprint plan(std::size_t n) const override { return {.payload_bytes = 2 * n}; }

 private:
  void encode_units(Queue<Space::cuda> queue, std::span<const cuda::Unit> units, const EncodeContext& /*context*/,
                    Bytes /*scratch*/) const override {
    cuda::to_half(queue, units, scale_);
  }
  void decode_units(Queue<Space::cuda> queue, std::span<const cuda::Unit> units, float weight) const override {
    cuda::add_half(queue, units, weight / scale_);
  }
  void check_length(std::size_t bytes, std::size_t n) const override { expect_length("fp16", bytes, 2 * n); }

  float scale_;
};

}  // namespace

std::unique_ptr<Codec<Space::cuda>> make_cuda_fp16(const Params& params, const Layout& /*layout*/) {
  return std::make_unique<CudaFp16>(params);
}

}  // namespace gradtool
