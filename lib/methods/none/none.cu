#include "kernels/vector.hpp"
#include "lib/codecs/gpu_codec.hpp"

namespace gradtool {
namespace {

class GpuNone final : public GpuCodec {
 public:
  explicit GpuNone(const Params& params) : GpuCodec{"none", params} {}

  [[nodiscard]] Footprint plan(std::size_t n) const override { return {.payload_bytes = 4 * n}; }

  void encode(Queue<Space::cuda> queue, ConstFloats gradient, const EncodeContext& /*context*/, Bytes payload,
              Bytes /*scratch*/) const override {
    cuda::copy(queue, payload.first(gradient.bytes()), as_bytes(gradient));
  }

  void decode_add(Queue<Space::cuda> queue, ConstBytes payload, float weight, Floats out,
                  Bytes /*scratch*/) const override {
    expect_length("none", payload.size(), 4 * out.size());
    cuda::add_scaled(queue, elements<float>(payload, 0, out.size()), weight, out);
  }
};

}  // namespace

extern constinit const GpuFactories none_gpu{.codec = make_method_codec<Space::cuda, GpuNone>};

}  // namespace gradtool
