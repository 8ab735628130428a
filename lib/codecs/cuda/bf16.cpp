#include "kernels/cuda/cast.hpp"
#include "lib/codecs/cuda/batched.hpp"
#include "lib/codecs/cuda_factories.hpp"
#include "lib/codecs/payload.hpp"

namespace gradtool {
namespace {

class CudaBf16 final : public BatchedTwin {
 public:
  explicit CudaBf16(const Params& params) : BatchedTwin{"bf16", params} {}

  [[nodiscard]] Footprint plan(std::size_t n) const override { return {.payload_bytes = 2 * n}; }

 private:
  void encode_units(Queue<Space::cuda> queue, std::span<const cuda::Unit> units, const EncodeContext& /*context*/,
                    Bytes /*scratch*/) const override {
    cuda::to_bfloat(queue, units);
  }
  void decode_units(Queue<Space::cuda> queue, std::span<const cuda::Unit> units, float weight) const override {
    cuda::add_bfloat(queue, units, weight);
  }
  void check_length(std::size_t bytes, std::size_t n) const override { expect_length("bf16", bytes, 2 * n); }
};

}  // namespace

std::unique_ptr<Codec<Space::cuda>> make_cuda_bf16(const Params& params, const Layout& /*layout*/) {
  return std::make_unique<CudaBf16>(params);
}

}  // namespace gradtool
