#include "kernels/cuda/natural.hpp"

#include "lib/codecs/cuda/batched.hpp"
#include "lib/codecs/cuda_factories.hpp"
#include "lib/codecs/payload.hpp"

namespace gradtool {
namespace {

class CudaNatural final : public BatchedTwin {
 public:
  explicit CudaNatural(const Params& params) : BatchedTwin{"natural", params} {}

  [[nodiscard]] Footprint plan(std::size_t n) const override { return {.payload_bytes = bytes(n)}; }

  void decode_add_all(Queue<Space::cuda> queue, std::span<const View<const std::byte, Space::cuda>> payloads,
                      float weight, View<float, Space::cuda> out,
                      View<std::byte, Space::cuda> /*scratch*/) const override {
    for (const auto& payload : payloads) check_length(payload.size(), out.size());
    cuda::in_batches(payloads,
                     [&](const cuda::Payloads& batch) { cuda::natural_decode_add(queue, batch, weight, out); });
  }

 private:
  void encode_units(Queue<Space::cuda> queue, std::span<const cuda::Unit> units, const EncodeContext& context,
                    Bytes /*scratch*/) const override {
    cuda::natural_encode(queue, units, context.key);
  }
  void decode_units(Queue<Space::cuda> queue, std::span<const cuda::Unit> units, float weight) const override {
    cuda::natural_decode_add(queue, units, weight);
  }
  void check_length(std::size_t bytes_there, std::size_t n) const override {
    expect_length("natural", bytes_there, bytes(n));
  }

  static std::size_t bytes(std::size_t n) { return (n + 3) / 4 * 4 + (n + 31) / 32 * 4; }
};

}  // namespace

std::unique_ptr<Codec<Space::cuda>> make_cuda_natural(const Params& params, const Layout& /*layout*/) {
  return std::make_unique<CudaNatural>(params);
}

}  // namespace gradtool
