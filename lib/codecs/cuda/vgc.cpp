#include "kernels/cuda/vgc.hpp"

#include <algorithm>

#include "lib/codecs/cuda/device_table.hpp"
#include "lib/codecs/cuda/twin.hpp"
#include "lib/codecs/cuda_factories.hpp"
#include "lib/codecs/payload.hpp"
#include "lib/codecs/vgc_groups.hpp"

namespace gradtool {
namespace {

/// The groups in tiles of one warp's work.
struct VgcTables {
  explicit VgcTables(const VgcGroups& cut) {
    for (const auto& group : cut.groups) {
      const auto number = static_cast<std::uint32_t>(groups.size());
      groups.push_back({group.first, group.elements, tiles.size()});
      for (std::size_t at = 0; at < group.elements; at += cuda::kVgcTile) {
        tiles.push_back({group.first + at, static_cast<std::uint32_t>(std::min(cuda::kVgcTile, group.elements - at)),
                         number, static_cast<std::uint32_t>(at)});
      }
    }
    groups.push_back({0, 0, tiles.size()});
  }
  std::vector<cuda::VgcTile> tiles;
  std::vector<cuda::VgcGroup> groups;
};

class CudaVgc final : public CudaTwin {
 public:
  CudaVgc(const Params& params, const Layout& layout) : CudaVgc{params, layout, law_of(params)} {}

  [[nodiscard]] Footprint plan(std::size_t n) const override {
    expects(n == elements_, "codec vgc: made for another layout");
    tiles_.make();
    groups_.make();
    return {.payload_bytes = payload_bound(), .scratch_bytes = work_bytes() + 2 * padded(4 * n), .exact = false};
  }

  /// The first step, from empty state and without second moments.
  void encode(Queue<Space::cuda> queue, View<const float, Space::cuda> gradient, const EncodeContext& /*context*/,
              View<std::byte, Space::cuda> payload, View<std::byte, Space::cuda> scratch) const override {
    const std::size_t size = padded(4 * elements_);
    const auto state = scratch.part(work_bytes(), 2 * size);
    cuda::fill(queue, state, 0);
    step(queue, gradient, {}, elements<float>(state, 0, elements_).data(),
         elements<float>(state, size, elements_).data(), gradient.data(), payload, scratch);
  }

  /// One step of one rank. Words are made from `values`.
  void step(Queue<Space::cuda> queue, View<const float, Space::cuda> gradient, View<const float, Space::cuda> moment,
            float* r, float* v, const float* values, View<std::byte, Space::cuda> payload,
            View<std::byte, Space::cuda> scratch) const {
    cuda::vgc_encode(queue, cut(),
                     {.law = law_,
                      .over_all = over_all_,
                      .keeps_dropped = keeps_dropped_,
                      .gradient = gradient.data(),
                      .moment = moment.empty() ? nullptr : moment.data(),
                      .r = r,
                      .v = v,
                      .values = values},
                     payload.data(), scratch);
  }

  void decode_add(Queue<Space::cuda> queue, View<const std::byte, Space::cuda> payload, float weight,
                  View<float, Space::cuda> out, View<std::byte, Space::cuda> scratch) const override {
    expect_room("vgc", payload.size(), offsets_.words_offset(), payload_bound());
    cuda::vgc_decode_add(queue, cut(), law_, payload, weight, elements_, out.data(), scratch);
  }

  [[nodiscard]] std::unique_ptr<Encoder<Space::cuda>> make_encoder(std::size_t n, int ranks,
                                                                   Queue<Space::cuda> queue) const override;

 private:
  CudaVgc(const Params& params, const Layout& layout, const law::Vgc& law)
      : CudaVgc{params, layout, law, VgcGroups{layout, law.tau > 0.0F}} {}
  CudaVgc(const Params& params, const Layout& layout, const law::Vgc& law, VgcGroups groups)
      : CudaTwin{"vgc", params, layout},
        law_{law},
        keeps_dropped_{params.is("dropped", "keep")},
        over_all_{params.is("largest", "all")},
        offsets_{std::move(groups)},
        tiles_{VgcTables{offsets_}.tiles},
        groups_{VgcTables{offsets_}.groups},
        elements_{layout.elements} {}

  static law::Vgc law_of(const Params& params) {
    return {.alpha = static_cast<float>(params.real("alpha")),
            .zeta = static_cast<float>(params.real("zeta")),
            .tau = params.is("tau", "off") ? 0.0F : static_cast<float>(params.real("tau"))};
  }
  static std::size_t padded(std::size_t bytes) { return Arena<Space::cuda>::padded_size(bytes); }
  [[nodiscard]] std::size_t work_bytes() const {
    return padded(cuda::vgc_scratch_bytes(tiles_.size(), groups_.size() - 1));
  }
  [[nodiscard]] std::size_t payload_bound() const { return offsets_.words_offset() + 4 * elements_; }
  [[nodiscard]] cuda::VgcCut cut() const {
    return {.tiles = tiles_.get(),
            .groups = groups_.get(),
            .tile_count = tiles_.size(),
            .group_count = groups_.size() - 1,
            .counts_offset = VgcGroups::kCounts,
            .exponents_offset = offsets_.exponents_offset(),
            .words_offset = offsets_.words_offset()};
  }

  law::Vgc law_;
  bool keeps_dropped_, over_all_;
  VgcGroups offsets_;
  DeviceTable<cuda::VgcTile> tiles_;
  DeviceTable<cuda::VgcGroup> groups_;
  std::size_t elements_;
};

/// r and v of one rank.
class CudaVgcEncoder final : public Encoder<Space::cuda> {
 public:
  CudaVgcEncoder(const CudaVgc& codec, std::size_t n, Queue<Space::cuda> queue)
      : codec_{codec}, r_bytes_{4 * n}, v_bytes_{4 * n} {
    CudaVgcEncoder::reset(queue);
  }

  void encode(Queue<Space::cuda> queue, View<const float, Space::cuda> gradient, const SideInputs<Space::cuda>& side,
              const EncodeContext& /*context*/, View<std::byte, Space::cuda> payload,
              View<std::byte, Space::cuda> scratch) override {
    had_moments_ = had_moments_ && !side.second_moment.empty();
    auto* r = r_bytes_.as<float>().data();
    codec_.step(queue, gradient, side.second_moment, r, v_bytes_.as<float>().data(), r, payload, scratch);
  }
  void reset(Queue<Space::cuda> queue) override {
    cuda::fill(queue, r_bytes_.bytes(), 0);
    cuda::fill(queue, v_bytes_.bytes(), 0);
    had_moments_ = true;
  }
  [[nodiscard]] View<const float, Space::cuda> residual() const override { return r_bytes_.as<float>(); }
  [[nodiscard]] std::string note() const override { return VgcGroups::note(had_moments_); }

 private:
  const CudaVgc& codec_;
  cuda::DeviceBuffer r_bytes_, v_bytes_;
  bool had_moments_ = true;
};

std::unique_ptr<Encoder<Space::cuda>> CudaVgc::make_encoder(std::size_t n, int /*ranks*/,
                                                            Queue<Space::cuda> queue) const {
  return std::make_unique<CudaVgcEncoder>(*this, n, queue);
}

}  // namespace

std::unique_ptr<Codec<Space::cuda>> make_cuda_vgc(const Params& params, const Layout& layout) {
  return std::make_unique<CudaVgc>(params, layout);
}

}  // namespace gradtool
