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
            .scratch_bytes = Places{*this, n}.bytes,
            .exact = false};
  }

  void encode(Queue<Space::cuda> queue, View<const float, Space::cuda> gradient, const EncodeContext& /*context*/,
              View<std::byte, Space::cuda> payload, View<std::byte, Space::cuda> scratch) const override {
    const std::size_t n = gradient.size();
    if (n == 0) return cuda::write_empty_sparse(queue, shape(0), payload.data());
    const Places at{*this, n};
    const auto positions = elements<std::uint32_t>(scratch, at.positions, values_sent(n));
    const cuda::Select select{queue, gradient, scratch.part(at.select, cuda::Select::scratch_bytes(n))};
    select.largest(values_sent(n));
    select.write(positions.data(), elements<float>(payload, sizeof(SparseHeader), values_sent(n)).data());
    cuda::write_sparse(queue, shape(n), positions.data(), select.count(), payload.data(), sparse(scratch, at));
  }

  void decode_add(Queue<Space::cuda> queue, View<const std::byte, Space::cuda> payload, float weight,
                  View<float, Space::cuda> out, View<std::byte, Space::cuda> scratch) const override {
    const std::size_t n = out.size();
    expect_room("topk", payload.size(), sizeof(SparseHeader), sparse_bound(coding_, values_sent(n), n));
    cuda::add_sparse(queue, shape(n), payload, weight, out.data(), sparse(scratch, Places{*this, n}));
  }

 private:
  /// Where things lie in the scratch.
  struct Places : ScratchPlaces {
    Places(const CudaTopK& codec, std::size_t n) {
      positions = take(4 * codec.values_sent(n));
      select = take(cuda::Select::scratch_bytes(n));
      sparse = take(cuda::sparse_scratch_bytes(codec.shape(n)));
    }
    std::size_t positions = 0, select = 0, sparse = 0;
  };
  [[nodiscard]] cuda::SparseShape shape(std::size_t n) const { return sparse_shape(coding_, values_sent(n), n); }
  [[nodiscard]] static View<std::byte, Space::cuda> sparse(View<std::byte, Space::cuda> scratch, const Places& at) {
    return scratch.part(at.sparse, at.bytes - at.sparse);
  }

  IndexCoding coding_;
};

}  // namespace

std::unique_ptr<Codec<Space::cuda>> make_cuda_topk(const Params& params, const Layout& /*layout*/) {
  return std::make_unique<CudaTopK>(params);
}

}  // namespace gradtool
