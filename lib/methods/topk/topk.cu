#include "kernels/select.hpp"
#include "kernels/sparse.hpp"
#include "lib/codecs/gpu_codec.hpp"
#include "lib/codecs/payload.hpp"
#include "lib/core/scratch.hpp"

namespace gradtool {
namespace {

class CudaTopK final : public GpuCodec {
 public:
  explicit CudaTopK(const Params& params) : GpuCodec{"topk", params}, coding_{params.word("index")} {}

  [[nodiscard]] Footprint plan(std::size_t n) const override {
    return {.payload_bytes = sparse_bound(coding_, values_sent(n), n),
            .scratch_bytes = planned<Workspace>(*this, n),
            .exact = false};
  }

  void encode(Queue<Space::cuda> queue, View<const float, Space::cuda> gradient, const EncodeContext& /*context*/,
              View<std::byte, Space::cuda> payload, View<std::byte, Space::cuda> scratch) const override {
    const std::size_t n = gradient.size();
    if (n == 0) return cuda::write_empty_sparse(queue, shape(0), payload.data());
    const Workspace workspace{*this, n, Scratch<Space::cuda>{scratch}};
    std::uint32_t* positions = workspace.positions.data();
    const cuda::Select select{queue, gradient, workspace.selection};
    select.largest(values_sent(n));
    select.write(positions, sparse_values(payload, values_sent(n)).data());
    cuda::write_sparse(queue, shape(n), positions, select.count(), payload.data(), workspace.sparse);
  }

  void decode_add(Queue<Space::cuda> queue, View<const std::byte, Space::cuda> payload, float weight,
                  View<float, Space::cuda> out, View<std::byte, Space::cuda> scratch) const override {
    const std::size_t n = out.size();
    expect_room("topk", payload.size(), sizeof(SparseHeader), sparse_bound(coding_, values_sent(n), n));
    const Workspace workspace{*this, n, Scratch<Space::cuda>{scratch}};
    cuda::add_sparse(queue, shape(n), payload, weight, out.data(), workspace.sparse);
  }

 private:
  struct Workspace {
    Workspace(const CudaTopK& codec, std::size_t n, Scratch<Space::cuda> scratch)
        : positions{scratch.take<std::uint32_t>(codec.values_sent(n))},
          selection{scratch.take_bytes(cuda::Select::scratch_bytes(n))},
          sparse{scratch.take_bytes(cuda::sparse_scratch_bytes(codec.shape(n)))} {}
    View<std::uint32_t, Space::cuda> positions;
    View<std::byte, Space::cuda> selection, sparse;
  };
  [[nodiscard]] cuda::SparseShape shape(std::size_t n) const { return sparse_shape(coding_, values_sent(n), n); }

  IndexCoding coding_;
};

}  // namespace

extern constinit const GpuFactories topk_gpu{.codec = make_method_codec<Space::cuda, CudaTopK>};

}  // namespace gradtool
