#include "lib/codecs/gpu_codec.hpp"

namespace gradtool {
namespace {

class GpuNoop final : public GpuCodec {
 public:
  explicit GpuNoop(const Params& params) : GpuCodec{"noop", params} {}

  [[nodiscard]] Footprint plan(std::size_t /*n*/) const override { return {}; }
  void encode(Queue<Space::cuda> /*queue*/, ConstFloats /*gradient*/, const EncodeContext& /*context*/,
              Bytes /*payload*/, Bytes /*scratch*/) const override {}
  void decode_add(Queue<Space::cuda> /*queue*/, ConstBytes payload, float /*weight*/, Floats /*out*/,
                  Bytes /*scratch*/) const override {
    expect_length("noop", payload.size(), 0);
  }
};

}  // namespace

extern constinit const GpuFactories noop_gpu{.codec = make_method_codec<Space::cuda, GpuNoop>};

}  // namespace gradtool
