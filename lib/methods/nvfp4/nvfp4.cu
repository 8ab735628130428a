#include "lib/codecs/gpu_block_codec.hpp"
#include "lib/methods/nvfp4/format.hpp"

namespace gradtool {
namespace cuda {
namespace {

/// MS-EDEN by warps, each of which has a group in its window. Blocks are in four lanes.
struct EdenWindows : format::Nvfp4Format<true> {
  static_assert(decltype(rotation)::kSize == kWindow && kBlock == 16);

  /// Elements behind the last whole group are not rotated, and rounded stochastically.
  __device__ Scale encode_window(const Four<float>& x, float largest, std::size_t first, std::uint32_t present,
                                 const format::DrawKey& key, std::uint32_t* words) const {
    if (present < kWindow) {
      const auto up = this->scaled_up(largest);
      cuda::encode_window<Element, true>(x, up.factor, first, present, key, nullptr, words);
      return up.stored;
    }
    const auto nearest = this->scaled(largest);
    Four<std::uint32_t> code;
    format::EdenSums of[4];
    for (std::uint32_t i = 0; i < 4; ++i) {
      const float scaled = x.value[i] * nearest.factor;
      code.value[i] = Element::encode(nearest.factor, x.value[i]);
      of[i] = added({scaled * scaled, scaled * Element::decode(code.value[i])}, 2, 1);
    }
    store_window<Element::kBits>(packed_four<Element::kBits>(code), present, nullptr, words);
    const float scale = BlockScale::decode(nearest.stored);
    const format::EdenSums sums = added(((of[0] + of[2]) + (of[1] + of[3])).times(scale * scale), 16, 4);
    return format::corrected_scale(nearest.stored, sums.correction(),
                                   format::draw_of(key, first / kBlock + lane_in_warp() / 4));
  }

 private:
  /// The sums of lanes that are `far`, half of it and so on down to `near` apart.
  __device__ static format::EdenSums added(format::EdenSums sums, std::uint32_t far, std::uint32_t near) {
    for (std::uint32_t apart = far; apart >= near; apart /= 2) {
      sums = sums + format::EdenSums{__shfl_xor_sync(kAllLanes, sums.squares, static_cast<int>(apart)),
                                     __shfl_xor_sync(kAllLanes, sums.products, static_cast<int>(apart))};
    }
    return sums;
  }
};

}  // namespace
}  // namespace cuda

namespace {

std::unique_ptr<Codec<Space::cuda>> make_gpu_nvfp4(const Params& params, const Layout& /*layout*/) {
  using Format = format::Nvfp4Format<false>;
  if (params.is("rounding", "eden"))
    return make_gpu_block_codec("nvfp4", params, Format::kBlock,
                                cuda::EdenWindows{format::Nvfp4Format<true>::of(params)});
  return make_gpu_block_codec("nvfp4", params, Format::kBlock, Format::of(params));
}

}  // namespace

extern constinit const GpuFactories nvfp4_gpu{.codec = make_gpu_nvfp4};

}  // namespace gradtool
