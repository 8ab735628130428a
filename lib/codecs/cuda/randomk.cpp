#include "kernels/cuda/randomk.hpp"

#include "kernels/law/randomk.hpp"
#include "lib/codecs/cuda/twin.hpp"
#include "lib/codecs/cuda_factories.hpp"
#include "lib/codecs/payload.hpp"

namespace gradtool {
namespace {

class CudaRandomK final : public CudaTwin {
 public:
  explicit CudaRandomK(const Params& params) : CudaTwin{"randomk", params}, scaled_{params.is("scale", "on")} {}

  [[nodiscard]] Footprint plan(std::size_t n) const override {
    expects(n < (std::size_t{1} << 32), "codec randomk: a unit has 2^32 elements or more");
    return {.payload_bytes = bytes(n), .scratch_bytes = cuda::randomk_scratch_bytes(shape(n))};
  }

  void encode(Queue<Space::cuda> queue, View<const float, Space::cuda> gradient, const EncodeContext& context,
              View<std::byte, Space::cuda> payload, View<std::byte, Space::cuda> scratch) const override {
    const cuda::RandomKShape sent = shape(gradient.size());
    const float factor =
        scaled_ ? static_cast<float>(static_cast<double>(sent.n) / static_cast<double>(sent.sent)) : 1.0F;
    cuda::randomk_encode(queue, sent, gradient.data(), factor, context.key,
                         elements<float>(payload, 0, bytes(sent.n) / 4).data(), scratch);
  }

  void decode_add(Queue<Space::cuda> queue, View<const std::byte, Space::cuda> payload, float weight,
                  View<float, Space::cuda> out, View<std::byte, Space::cuda> scratch) const override {
    expect_length("randomk", payload.size(), bytes(out.size()));
    cuda::randomk_decode_add(queue, shape(out.size()), elements<float>(payload, 0, payload.size() / 4).data(), weight,
                             out.data(), scratch);
  }

 private:
  [[nodiscard]] cuda::RandomKShape shape(std::size_t n) const { return {n, values_sent(n)}; }
  [[nodiscard]] std::size_t bytes(std::size_t n) const {
    return n == 0 ? 0 : 4 * (values_sent(n) + law::RandomKKey::kTrailer);
  }

  bool scaled_;
};

}  // namespace

std::unique_ptr<Codec<Space::cuda>> make_cuda_randomk(const Params& params, const Layout& /*layout*/) {
  return std::make_unique<CudaRandomK>(params);
}

}  // namespace gradtool
