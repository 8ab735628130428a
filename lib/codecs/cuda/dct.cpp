#include "kernels/cuda/dct.hpp"

#include "kernels/cuda/vector.hpp"
#include "lib/codecs/cuda/sparse.hpp"
#include "lib/codecs/cuda_factories.hpp"
#include "lib/codecs/dct_options.hpp"

namespace gradtool {
namespace {

class CudaDct final : public CudaTwin {
 public:
  explicit CudaDct(const Params& params) : CudaTwin{"dct", params}, options_{params} {}

  [[nodiscard]] Footprint plan(std::size_t n) const override {
    return {.payload_bytes = sparse_bound(options_.coding, n, n),
            .scratch_bytes = Room{*this, n, {}}.bytes,
            .exact = false};
  }

  /// The first step, from empty state.
  void encode(Queue<Space::cuda> queue, View<const float, Space::cuda> gradient, const EncodeContext& /*context*/,
              View<std::byte, Space::cuda> payload, View<std::byte, Space::cuda> scratch) const override {
    const std::size_t n = gradient.size();
    const Room at{*this, n, scratch};
    const View<float, Space::cuda> e{at.e, n};
    cuda::fill(queue, as_writable_bytes(e), 0);
    cuda::fill(queue, as_writable_bytes(View<cuda::DctThreshold, Space::cuda>{at.threshold, 1}), 0);
    step(queue, gradient, true, e, at.threshold, payload, scratch);
  }

  /// e += g; what reaches the threshold is sent and taken off e.
  void step(Queue<Space::cuda> queue, View<const float, Space::cuda> gradient, bool refresh, View<float, Space::cuda> e,
            cuda::DctThreshold* threshold, View<std::byte, Space::cuda> payload,
            View<std::byte, Space::cuda> scratch) const {
    const std::size_t n = gradient.size();
    if (n == 0) return cuda::write_empty_sparse(queue, shape(0), payload.data());
    const Room at{*this, n, scratch};
    const cuda::Select select{queue, e, at.select};
    cuda::dct_choose(queue, gradient, e.data(), options_.kept(n), refresh, select, threshold);
    select.write(at.positions, elements<float>(payload, sizeof(SparseHeader), n).data());
    cuda::zero_at(queue, at.positions, select.count(), n, e.data());
    cuda::write_sparse(queue, shape(n), at.positions, select.count(), payload.data(), at.sparse);
  }

  void decode_add(Queue<Space::cuda> queue, View<const std::byte, Space::cuda> payload, float weight,
                  View<float, Space::cuda> out, View<std::byte, Space::cuda> scratch) const override {
    const std::size_t n = out.size();
    expect_room("dct", payload.size(), sizeof(SparseHeader), sparse_bound(options_.coding, n, n));
    cuda::add_sparse(queue, shape(n), payload, weight, out.data(), Room{*this, n, scratch}.sparse);
  }

  [[nodiscard]] const DctOptions& options() const { return options_; }
  [[nodiscard]] std::unique_ptr<Encoder<Space::cuda>> make_encoder(std::size_t n, int ranks,
                                                                   Queue<Space::cuda> queue) const override;

 private:
  /// Pieces of the scratch.
  struct Room {
    Room(const CudaDct& codec, std::size_t n, View<std::byte, Space::cuda> scratch) {
      cuda::ScratchPieces pieces{scratch};
      pieces.take(threshold, 1);
      pieces.take(e, n);
      pieces.take(positions, n);
      select = pieces.take(cuda::Select::scratch_bytes(n));
      sparse = pieces.take(cuda::sparse_scratch_bytes(codec.shape(n)));
      bytes = pieces.bytes();
    }
    cuda::DctThreshold* threshold;
    float* e;
    std::uint32_t* positions;
    View<std::byte, Space::cuda> select, sparse;
    std::size_t bytes;
  };
  [[nodiscard]] cuda::SparseShape shape(std::size_t n) const { return sparse_shape(options_.coding, n, n); }

  DctOptions options_;
};

/// Residual and threshold of one rank.
class CudaDctEncoder final : public Encoder<Space::cuda> {
 public:
  CudaDctEncoder(const CudaDct& codec, std::size_t n, Queue<Space::cuda> queue)
      : codec_{codec}, residual_{4 * n}, threshold_{sizeof(cuda::DctThreshold)} {
    CudaDctEncoder::reset(queue);
  }

  void encode(Queue<Space::cuda> queue, View<const float, Space::cuda> gradient,
              const SideInputs<Space::cuda>& /*side*/, const EncodeContext& /*context*/,
              View<std::byte, Space::cuda> payload, View<std::byte, Space::cuda> scratch) override {
    const bool refresh = steps_++ % codec_.options().refresh == 0;
    codec_.step(queue, gradient, refresh, residual_.as<float>(), threshold_.as<cuda::DctThreshold>().data(), payload,
                scratch);
  }
  void reset(Queue<Space::cuda> queue) override {
    cuda::fill(queue, residual_.bytes(), 0);
    cuda::fill(queue, threshold_.bytes(), 0);
    steps_ = 0;
  }
  [[nodiscard]] View<const float, Space::cuda> residual() const override { return residual_.as<float>(); }
  [[nodiscard]] std::string note() const override { return codec_.options().note(steps_); }

 private:
  const CudaDct& codec_;
  cuda::DeviceBuffer residual_, threshold_;
  std::int64_t steps_ = 0;
};

std::unique_ptr<Encoder<Space::cuda>> CudaDct::make_encoder(std::size_t n, int /*ranks*/,
                                                            Queue<Space::cuda> queue) const {
  return std::make_unique<CudaDctEncoder>(*this, n, queue);
}

}  // namespace

std::unique_ptr<Codec<Space::cuda>> make_cuda_dct(const Params& params, const Layout& /*layout*/) {
  return std::make_unique<CudaDct>(params);
}

}  // namespace gradtool
