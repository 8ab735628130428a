#include "kernels/cuda/select.hpp"
#include "lib/codecs/cuda/sparse.hpp"
#include "lib/codecs/cuda_factories.hpp"

namespace gradtool {
namespace {

class CudaTopK final : public CudaTwin {
 public:
  explicit CudaTopK(const Params& params) : CudaTwin{"topk", params}, coding_{params.word("index")} {}

  [[nodiscard]] Footprint plan(std::size_t n) const override {
    return {.payload_bytes = sparse_bound(coding_, values_sent(n), n),
            .scratch_bytes = Room{*this, n, {}}.bytes,
            .exact = false};
  }

  void encode(Queue<Space::cuda> queue, View<const float, Space::cuda> gradient, const EncodeContext& /*context*/,
              View<std::byte, Space::cuda> payload, View<std::byte, Space::cuda> scratch) const override {
    const std::size_t n = gradient.size();
    if (n == 0) return cuda::write_empty_sparse(queue, shape(0), payload.data());
    const Room at{*this, n, scratch};
    const cuda::Select select{queue, gradient, at.select};
    select.largest(values_sent(n));
    select.write(at.positions, elements<float>(payload, sizeof(SparseHeader), values_sent(n)).data());
    cuda::write_sparse(queue, shape(n), at.positions, select.count(), payload.data(), at.sparse);
  }

  void decode_add(Queue<Space::cuda> queue, View<const std::byte, Space::cuda> payload, float weight,
                  View<float, Space::cuda> out, View<std::byte, Space::cuda> scratch) const override {
    const std::size_t n = out.size();
    expect_room("topk", payload.size(), sizeof(SparseHeader), sparse_bound(coding_, values_sent(n), n));
    cuda::add_sparse(queue, shape(n), payload, weight, out.data(), Room{*this, n, scratch}.sparse);
  }

 private:
  /// Pieces of the scratch.
  struct Room {
    Room(const CudaTopK& codec, std::size_t n, View<std::byte, Space::cuda> scratch) {
      cuda::ScratchPieces pieces{scratch};
      pieces.take(positions, codec.values_sent(n));
      select = pieces.take(cuda::Select::scratch_bytes(n));
      sparse = pieces.take(cuda::sparse_scratch_bytes(codec.shape(n)));
      bytes = pieces.bytes();
    }
    std::uint32_t* positions;
    View<std::byte, Space::cuda> select, sparse;
    std::size_t bytes;
  };
  [[nodiscard]] cuda::SparseShape shape(std::size_t n) const { return sparse_shape(coding_, values_sent(n), n); }

  IndexCoding coding_;
};

}  // namespace

std::unique_ptr<Codec<Space::cuda>> make_cuda_topk(const Params& params, const Layout& /*layout*/) {
  return std::make_unique<CudaTopK>(params);
}

}  // namespace gradtool
