#include "kernels/cuda/dgc.hpp"

#include <algorithm>

#include "kernels/cuda/vector.hpp"
#include "lib/codecs/cuda/device_table.hpp"
#include "lib/codecs/cuda/sparse.hpp"
#include "lib/codecs/cuda_factories.hpp"
#include "lib/codecs/dgc_momentum.hpp"
#include "lib/codecs/dgc_runs.hpp"
#include "lib/codecs/dgc_threshold.hpp"

namespace gradtool {
namespace {

std::vector<cuda::DgcPiece> pieces_of(const DgcRuns& runs) {
  std::vector<cuda::DgcPiece> pieces;
  const auto cut = [&](const DgcRuns::Run& run, std::size_t dense) {
    for (std::size_t at = 0; at < run.count; at += cuda::kDgcPiece) {
      const bool whole = dense != cuda::DgcPiece::kCompetes;
      pieces.push_back({run.first + at, std::min(cuda::kDgcPiece, run.count - at), whole ? dense + at : dense});
    }
  };
  for (const auto& run : runs.sparse_runs) cut(run, cuda::DgcPiece::kCompetes);
  std::size_t dense = 0;
  for (const auto& run : runs.dense_runs) cut(run, std::exchange(dense, dense + run.count));
  return pieces;
}

std::vector<cuda::DgcRun> runs_of(const DgcRuns& runs) {
  std::vector<cuda::DgcRun> list;
  std::size_t before = 0;
  for (const auto& run : runs.sparse_runs)
    list.push_back({run.first, run.count, std::exchange(before, before + run.count)});
  return list;
}

class CudaDgc final : public CudaTwin {
 public:
  CudaDgc(const Params& params, const Layout& layout)
      : CudaTwin{"dgc", params, layout},
        runs_{layout, params.is("vectors", "dense")},
        momentum_{params},
        threshold_{params, runs_},
        masks_{params.is("masking", "on")},
        coding_{params.word("index")},
        n_{layout.elements},
        piece_table_{pieces_of(runs_)},
        run_table_{runs_of(runs_)} {}

  [[nodiscard]] std::string note() const { return momentum_.note(); }

  [[nodiscard]] Footprint plan(std::size_t n) const override {
    expects(n == n_, "codec dgc: made for another layout");
    piece_table_.make();
    run_table_.make();
    return {.payload_bytes = payload_bound(), .scratch_bytes = Room{*this, {}}.bytes, .exact = false};
  }

  /// The first step, from empty state.
  void encode(Queue<Space::cuda> queue, View<const float, Space::cuda> gradient, const EncodeContext& context,
              View<std::byte, Space::cuda> payload, View<std::byte, Space::cuda> scratch) const override {
    const Room at{*this, scratch};
    const View<float, Space::cuda> u{at.u, n_}, v{at.v, n_};
    cuda::fill(queue, as_writable_bytes(u), 0);
    cuda::fill(queue, as_writable_bytes(v), 0);
    step(queue, gradient, context, 1, u, v, payload, scratch);
  }

  /// One step of one of `ranks` ranks.
  void step(Queue<Space::cuda> queue, View<const float, Space::cuda> gradient, const EncodeContext& context, int ranks,
            View<float, Space::cuda> u, View<float, Space::cuda> v, View<std::byte, Space::cuda> payload,
            View<std::byte, Space::cuda> scratch) const {
    if (n_ == 0) return cuda::write_empty_sparse(queue, shape(), payload.data());
    const Room at{*this, scratch};
    if (momentum_.clips()) cuda::dgc_clip(queue, gradient, momentum_.limit(ranks), at.norms, at.scale);
    const cuda::Select select{queue, v, at.select};
    cuda::dgc_accumulate(
        queue, piece_table_.get(), piece_table_.size(), momentum_.law(), gradient.data(),
        {u.data(), v.data(), elements<float>(payload, 8, runs_.dense).data(), momentum_.clips() ? at.scale : nullptr},
        select);
    std::byte* sparse = payload.data() + sparse_offset();
    if (runs_.sparse > 0) {
      choose(queue, context, v, select, at);
      select.write(at.positions, reinterpret_cast<float*>(sparse + sizeof(SparseHeader)));
      // Factor masking: no stale momentum behind what was sent.
      cuda::zero_at(queue, at.positions, select.count(), threshold_.most_kept(), v.data(), masks_ ? u.data() : nullptr);
    }
    cuda::write_sparse(queue, shape(), at.positions, select.count(), sparse, at.sparse, sparse_offset());
  }

  void decode_add(Queue<Space::cuda> queue, View<const std::byte, Space::cuda> payload, float weight,
                  View<float, Space::cuda> out, View<std::byte, Space::cuda> scratch) const override {
    const std::size_t front = sparse_offset();
    expect_room("dgc", payload.size(), front + sizeof(SparseHeader), payload_bound());
    cuda::add_sparse(queue, shape(), payload.part(front, payload.size() - front), weight, out.data(),
                     Room{*this, scratch}.sparse);
    if (runs_.dense == 0) return;
    cuda::dgc_add_dense(queue, piece_table_.get(), piece_table_.size(), elements<float>(payload, 8, runs_.dense).data(),
                        weight, out.data());
  }

  [[nodiscard]] std::unique_ptr<Encoder<Space::cuda>> make_encoder(std::size_t n, int ranks,
                                                                   Queue<Space::cuda> queue) const override;

 private:
  /// Pieces of the scratch.
  struct Room {
    Room(const CudaDgc& codec, View<std::byte, Space::cuda> scratch) {
      cuda::ScratchPieces pieces{scratch};
      pieces.take(scale, 1);
      pieces.take(work, cuda::kDgcWorkBytes);
      pieces.take(positions, codec.threshold_.most_kept());
      norms = pieces.take(cuda::dgc_norm_bytes(codec.n_));
      pieces.take(sample, codec.threshold_.most_samples());
      sample_select = pieces.take(cuda::Select::scratch_bytes(codec.threshold_.most_samples()));
      select = pieces.take(cuda::Select::scratch_bytes(codec.n_));
      pieces.take(u, codec.n_);
      pieces.take(v, codec.n_);
      sparse = pieces.take(cuda::sparse_scratch_bytes(codec.shape()));
      bytes = pieces.bytes();
    }
    float *scale, *sample, *u, *v;
    std::byte* work;
    std::uint32_t* positions;
    View<std::byte, Space::cuda> norms, sample_select, select, sparse;
    std::size_t bytes;
  };

  /// Chooses in `select` what of v is sent in this step.
  void choose(Queue<Space::cuda> queue, const EncodeContext& context, View<const float, Space::cuda> v,
              const cuda::Select& select, const Room& at) const {
    const double density = threshold_.density(context.iteration);
    const std::size_t k = threshold_.kept(density);
    if (k == runs_.sparse) return cuda::dgc_choose(queue, threshold_.correction(k), nullptr, select, at.work);
    const std::size_t stride = threshold_.samples(density).stride;
    const std::size_t start = law::draw4(context.key, 0).bits[0] % stride;  // among the elements that compete
    const std::size_t taken = (runs_.sparse - start + stride - 1) / stride;
    const View<float, Space::cuda> sample{at.sample, taken};
    cuda::dgc_sample(queue, run_table_.get(), run_table_.size(), v.data(), start, stride, sample);
    const cuda::Select of_sample{queue, sample, at.sample_select};
    of_sample.largest(DgcThreshold::top(density, taken));
    cuda::dgc_choose(queue, threshold_.correction(k), of_sample.threshold(), select, at.work);
  }

  [[nodiscard]] std::size_t sparse_offset() const { return runs_.dense == 0 ? 0 : 8 + 4 * runs_.dense; }
  [[nodiscard]] std::size_t payload_bound() const {
    return sparse_offset() + sparse_bound(coding_, threshold_.most_kept(), n_);
  }
  [[nodiscard]] cuda::SparseShape shape() const { return sparse_shape(coding_, threshold_.most_kept(), n_); }

  DgcRuns runs_;
  DgcMomentum momentum_;
  DgcThreshold threshold_;
  bool masks_;
  IndexCoding coding_;
  std::size_t n_;
  DeviceTable<cuda::DgcPiece> piece_table_;
  DeviceTable<cuda::DgcRun> run_table_;
};

/// u and v of one rank.
class CudaDgcEncoder final : public Encoder<Space::cuda> {
 public:
  CudaDgcEncoder(const CudaDgc& codec, std::size_t n, int ranks, Queue<Space::cuda> queue)
      : codec_{codec}, ranks_{ranks}, u_bytes_{4 * n}, v_bytes_{4 * n} {
    CudaDgcEncoder::reset(queue);
  }

  void encode(Queue<Space::cuda> queue, View<const float, Space::cuda> gradient,
              const SideInputs<Space::cuda>& /*side*/, const EncodeContext& context,
              View<std::byte, Space::cuda> payload, View<std::byte, Space::cuda> scratch) override {
    codec_.step(queue, gradient, context, ranks_, u_bytes_.as<float>(), v_bytes_.as<float>(), payload, scratch);
  }
  void reset(Queue<Space::cuda> queue) override {
    cuda::fill(queue, u_bytes_.bytes(), 0);
    cuda::fill(queue, v_bytes_.bytes(), 0);
  }
  [[nodiscard]] View<const float, Space::cuda> residual() const override { return v_bytes_.as<float>(); }
  [[nodiscard]] std::string note() const override { return codec_.note(); }

 private:
  const CudaDgc& codec_;
  int ranks_;
  cuda::DeviceBuffer u_bytes_, v_bytes_;
};

std::unique_ptr<Encoder<Space::cuda>> CudaDgc::make_encoder(std::size_t n, int ranks, Queue<Space::cuda> queue) const {
  return std::make_unique<CudaDgcEncoder>(*this, n, ranks, queue);
}

}  // namespace

std::unique_ptr<Codec<Space::cuda>> make_cuda_dgc(const Params& params, const Layout& layout) {
  return std::make_unique<CudaDgc>(params, layout);
}

}  // namespace gradtool
