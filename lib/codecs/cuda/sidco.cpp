#include "kernels/cuda/sidco.hpp"

#include "lib/codecs/cuda/sparse.hpp"
#include "lib/codecs/cuda_factories.hpp"

namespace gradtool {
namespace {

class CudaSidco final : public CudaTwin {
 public:
  explicit CudaSidco(const Params& params)
      : CudaTwin{"sidco", params},
        ratio_{params.real("ratio")},
        fit_{params.is("fit", "gamma")    ? SidcoFit::gamma
             : params.is("fit", "pareto") ? SidcoFit::pareto
                                          : SidcoFit::exponential},
        stages_{params.is("stages", "auto") ? law::sidco_stages(ratio_) : static_cast<int>(params.integer("stages"))},
        coding_{params.word("index")} {}

  [[nodiscard]] Footprint plan(std::size_t n) const override {
    return {.payload_bytes = sparse_bound(coding_, n, n), .scratch_bytes = Room{*this, n, {}}.bytes, .exact = false};
  }

  void encode(Queue<Space::cuda> queue, View<const float, Space::cuda> gradient, const EncodeContext& /*context*/,
              View<std::byte, Space::cuda> payload, View<std::byte, Space::cuda> scratch) const override {
    const std::size_t n = gradient.size();
    if (n == 0) return cuda::write_empty_sparse(queue, shape(0), payload.data());
    const Room at{*this, n, scratch};
    const auto* threshold = cuda::sidco_threshold_in(at.fit);
    const cuda::Select select{queue, gradient, at.select};
    cuda::sidco_start(queue, ratio_, at.fit);
    int stage = 0;
    // A stage over all numbers lets a quarter pass, two a sixteenth, which are worth gathering for those behind them.
    for (; stage < std::min(stages_, 2); ++stage)
      cuda::sidco_stage(queue, fit_of(stage), gradient, stage == 0, stage + 1 == stages_, at.fit);
    select.at_least(threshold);
    for (; stage < stages_; ++stage) cuda::sidco_stage(queue, fit_of(stage), select, stage + 1 == stages_, at.fit);
    if (stages_ > 2) select.narrow(threshold);
    select.write(at.positions, elements<float>(payload, sizeof(SparseHeader), n).data());
    cuda::write_sparse(queue, shape(n), at.positions, select.count(), payload.data(), at.sparse);
  }

  void decode_add(Queue<Space::cuda> queue, View<const std::byte, Space::cuda> payload, float weight,
                  View<float, Space::cuda> out, View<std::byte, Space::cuda> scratch) const override {
    const std::size_t n = out.size();
    expect_room("sidco", payload.size(), sizeof(SparseHeader), sparse_bound(coding_, n, n));
    cuda::add_sparse(queue, shape(n), payload, weight, out.data(), Room{*this, n, scratch}.sparse);
  }

 private:
  /// Pieces of the scratch.
  struct Room {
    Room(const CudaSidco& codec, std::size_t n, View<std::byte, Space::cuda> scratch) {
      cuda::ScratchPieces pieces{scratch};
      fit = pieces.take(cuda::sidco_scratch_bytes());
      pieces.take(positions, n);
      select = pieces.take(cuda::Select::scratch_bytes(n));
      sparse = pieces.take(cuda::sparse_scratch_bytes(codec.shape(n)));
      bytes = pieces.bytes();
    }
    std::uint32_t* positions;
    View<std::byte, Space::cuda> fit, select, sparse;
    std::size_t bytes;
  };
  [[nodiscard]] cuda::SparseShape shape(std::size_t n) const { return sparse_shape(coding_, n, n); }
  [[nodiscard]] SidcoFit fit_of(int stage) const {
    return stage > 0 && fit_ == SidcoFit::gamma ? SidcoFit::pareto : fit_;
  }

  double ratio_;
  SidcoFit fit_;
  int stages_;
  IndexCoding coding_;
};

}  // namespace

std::unique_ptr<Codec<Space::cuda>> make_cuda_sidco(const Params& params, const Layout& /*layout*/) {
  return std::make_unique<CudaSidco>(params);
}

}  // namespace gradtool
