#include "lib/codecs/gpu_sparse_codec.hpp"

namespace gradtool {
namespace {

class CudaTopK final : public GpuSparseCodec {
 public:
  explicit CudaTopK(const Params& params) : GpuSparseCodec{"topk", params} {}

  void encode(Queue<Space::cuda> queue, ConstFloats gradient, const EncodeContext& /*context*/, Bytes payload,
              Bytes scratch) const override {
    send(queue, gradient, payload, scratch,
         [&](const cuda::Select& select) { select.largest(values_sent(gradient.size())); });
  }
  void encode_each(Queue<Space::cuda> queue, std::span<const ConstFloats> gradients, const EncodeContext& context,
                   std::span<const Bytes> payloads, Bytes scratch) const override {
    send_largest_each(queue, gradients, context, payloads, scratch);
  }
};

}  // namespace

extern constinit const GpuFactories topk_gpu{.codec = make_method_codec<Space::cuda, CudaTopK>};

}  // namespace gradtool
