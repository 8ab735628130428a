#include "kernels/cuda/adacomp.hpp"

#include "lib/codecs/adacomp_bins.hpp"
#include "lib/codecs/cuda/device_table.hpp"
#include "lib/codecs/cuda/twin.hpp"
#include "lib/codecs/cuda_factories.hpp"
#include "lib/codecs/payload.hpp"

namespace gradtool {
namespace {

std::vector<cuda::AdaCompTensor> tensors_of(const AdaCompBins& bins) {
  std::vector<cuda::AdaCompTensor> tensors;
  for (const auto& t : bins.tensors)
    tensors.push_back({t.elements, t.bin, t.bins, t.width(), t.first_piece, t.last_piece});
  return tensors;
}

std::vector<cuda::AdaCompPiece> pieces_of(const AdaCompBins& bins) {
  std::vector<cuda::AdaCompPiece> pieces;
  for (const auto& p : bins.pieces) {
    expects(p.bins <= cuda::kAdaCompMostBins, "codec adacomp: a piece of too many bins");
    pieces.push_back({p.tensor, p.first, p.count, p.first_bin, p.bins});
  }
  return pieces;
}

class CudaAdaComp final : public CudaTwin {
 public:
  CudaAdaComp(const Params& params, const Layout& layout) : CudaAdaComp{params, layout, AdaCompBins{params, layout}} {}

  [[nodiscard]] Footprint plan(std::size_t n) const override {
    expects(n == n_, "codec adacomp: made for another layout");
    tensors_.make();
    pieces_.make();
    return {.payload_bytes = payload_bound_, .scratch_bytes = work_bytes() + 4 * n, .exact = false};
  }

  /// The first step, from an empty residue.
  void encode(Queue<Space::cuda> queue, View<const float, Space::cuda> gradient, const EncodeContext& /*context*/,
              View<std::byte, Space::cuda> payload, View<std::byte, Space::cuda> scratch) const override {
    const auto residue = elements<float>(scratch, work_bytes(), n_);
    cuda::fill(queue, as_writable_bytes(residue), 0);
    step(queue, gradient, residue, payload, scratch);
  }

  /// One step of one rank.
  void step(Queue<Space::cuda> queue, View<const float, Space::cuda> gradient, View<float, Space::cuda> residue,
            View<std::byte, Space::cuda> payload, View<std::byte, Space::cuda> scratch) const {
    cuda::adacomp_encode(queue, cut(), law_, gradient.data(), residue.data(), payload.data(), scratch);
  }

  void decode_add(Queue<Space::cuda> queue, View<const std::byte, Space::cuda> payload, float weight,
                  View<float, Space::cuda> out, View<std::byte, Space::cuda> scratch) const override {
    expect_room("adacomp", payload.size(), 8 + 4 * tensors_.size(), payload_bound_);
    cuda::adacomp_decode_add(queue, cut(), payload, weight, out.data(), scratch);
  }

  [[nodiscard]] std::unique_ptr<Encoder<Space::cuda>> make_encoder(std::size_t n, int ranks,
                                                                   Queue<Space::cuda> queue) const override;

 private:
  CudaAdaComp(const Params& params, const Layout& layout, const AdaCompBins& bins)
      : CudaTwin{"adacomp", params, layout},
        law_{static_cast<float>(params.real("s")) - 1.0F},
        tensors_{tensors_of(bins)},
        pieces_{pieces_of(bins)},
        n_{layout.elements},
        payload_bound_{8 + 4 * bins.tensors.size()} {
    for (const auto& tensor : bins.tensors) payload_bound_ += tensor.bytes(tensor.elements);
  }

  [[nodiscard]] std::size_t work_bytes() const {
    return Arena<Space::cuda>::padded_size(cuda::adacomp_scratch_bytes(n_, tensors_.size(), pieces_.size()));
  }
  [[nodiscard]] cuda::AdaCompCut cut() const {
    return {tensors_.get(), pieces_.get(), tensors_.size(), pieces_.size(), n_};
  }

  law::AdaComp law_;
  DeviceTable<cuda::AdaCompTensor> tensors_;
  DeviceTable<cuda::AdaCompPiece> pieces_;
  std::size_t n_;
  std::size_t payload_bound_;
};

/// The residue of one rank.
class CudaAdaCompEncoder final : public Encoder<Space::cuda> {
 public:
  CudaAdaCompEncoder(const CudaAdaComp& codec, std::size_t n, Queue<Space::cuda> queue)
      : codec_{codec}, residue_{4 * n} {
    CudaAdaCompEncoder::reset(queue);
  }

  void encode(Queue<Space::cuda> queue, View<const float, Space::cuda> gradient,
              const SideInputs<Space::cuda>& /*side*/, const EncodeContext& /*context*/,
              View<std::byte, Space::cuda> payload, View<std::byte, Space::cuda> scratch) override {
    codec_.step(queue, gradient, residue_.as<float>(), payload, scratch);
  }
  void reset(Queue<Space::cuda> queue) override { cuda::fill(queue, residue_.bytes(), 0); }
  [[nodiscard]] View<const float, Space::cuda> residual() const override { return residue_.as<float>(); }

 private:
  const CudaAdaComp& codec_;
  cuda::DeviceBuffer residue_;
};

std::unique_ptr<Encoder<Space::cuda>> CudaAdaComp::make_encoder(std::size_t n, int /*ranks*/,
                                                                Queue<Space::cuda> queue) const {
  return std::make_unique<CudaAdaCompEncoder>(*this, n, queue);
}

}  // namespace

std::unique_ptr<Codec<Space::cuda>> make_cuda_adacomp(const Params& params, const Layout& layout) {
  return std::make_unique<CudaAdaComp>(params, layout);
}

}  // namespace gradtool
