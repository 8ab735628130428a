#include <cuda_runtime.h>

#include "kernels/cuda/code_windows.hpp"
#include "kernels/cuda/unit_launch.hpp"
#include "lib/codecs/gpu_codec.hpp"
#include "lib/methods/sdp4bit/format.hpp"

namespace gradtool {
namespace cuda {
namespace {

/// How groups of 32 are rotated, where they are.
struct MaybeRotated {
  format::RotationSigns signs;
  bool on;
};
enum class Way : bool { forward, inverse };

/// Rotates the groups of 32 of a window, each in eight lanes. A group that is not all among the `present` elements
/// stays as it is. The additions are those of the CPU, in their order.
template <Way Direction>
__device__ Four<float> rotated_window(const MaybeRotated& turn, const Four<float>& x, std::uint32_t present) {
  if (!turn.on) return x;
  constexpr auto kSize = static_cast<std::uint32_t>(format::kRotated);
  const std::uint32_t lane = lane_in_warp();
  Four<float> y;
  for (std::uint32_t i = 0; i < 4; ++i) {
    const float sign = Direction == Way::forward ? turn.signs.of(4 * lane + i) : 1.0f;
    y.value[i] = x.value[i] * (sign * format::kRotationNorm);
  }
  for (std::uint32_t apart = 1; apart < 4; apart *= 2) {
    for (std::uint32_t i = 0; i < 4; ++i) {
      if ((i & apart) != 0) continue;
      const float sum = y.value[i] + y.value[i + apart];
      y.value[i + apart] = y.value[i] - y.value[i + apart];
      y.value[i] = sum;
    }
  }
  for (std::uint32_t lanes = 1; lanes < kSize / 4; lanes *= 2) {
    for (float& own : y.value) {
      const float other = __shfl_xor_sync(kAllLanes, own, static_cast<int>(lanes));
      own = (lane & lanes) != 0 ? other - own : own + other;
    }
  }
  if (Direction == Way::inverse) {
    for (std::uint32_t i = 0; i < 4; ++i) y.value[i] = y.value[i] * turn.signs.of(4 * lane + i);
  }
  return (4 * lane / kSize + 1) * kSize <= present ? y : x;
}

/// Blocks of a unit, a warp for each.
template <class Body>
__device__ void each_block(const format::BlockLayout& layout, const Place& place, const Body& body) {
  for (std::size_t b = place.warp(); b < layout.blocks(); b += place.warps()) {
    const std::size_t first = b * layout.block;
    const std::size_t left = layout.n - first;
    body(b, first, left < layout.block ? left : layout.block);
  }
}

/// Thread blocks for kernels whose warps take a block of elements each.
std::size_t blocks_of_warps(format::BlockLayout layout, std::size_t n) {
  layout.n = n;
  return blocks_for(layout.blocks(), kThreads / kWarpSize);
}

__device__ std::uint32_t present_in_window(std::size_t window, std::size_t count) {
  return static_cast<std::uint32_t>(count - window < kWindow ? count - window : kWindow);
}

/// Scales and codes. Elements are read, and rotated, twice: for the block's largest magnitude and for the codes.
template <std::uint32_t Bits, bool Stochastic>
struct EncodeSdp4bit {
  format::BlockLayout like;
  MaybeRotated turn;
  format::DrawKey key;

  std::size_t blocks(std::size_t n) const { return blocks_of_warps(like, n); }
  __device__ void run(const Unit& unit, std::uint32_t index, const Place& place) const {
    using Format = format::Sdp4bitFormat<Bits>;
    format::BlockLayout layout = like;
    layout.n = unit.n;
    const auto* gradient = static_cast<const float*>(unit.from);
    auto* payload = static_cast<std::byte*>(unit.to);
    auto* scales = reinterpret_cast<float*>(payload);
    auto* words = reinterpret_cast<std::uint32_t*>(payload + layout.codes_offset());
    const bool aligned = aligned_to(gradient, 16);
    format::DrawKey own_key = key;
    own_key.tensor += index;
    each_block(layout, place, [&](std::size_t b, std::size_t first, std::size_t count) {
      const auto load = [&](std::size_t window) {
        const auto four = four_at(gradient + first, window + 4 * lane_in_warp(), count, aligned);
        return rotated_window<Way::forward>(turn, four, present_in_window(window, count));
      };
      std::uint32_t largest = 0;
      for (std::size_t window = 0; window < count; window += kWindow) {
        const std::uint32_t of_four = largest_of_four(load(window));
        largest = of_four > largest ? of_four : largest;
      }
      const auto scaled = Format::scaled(format::float_of(__reduce_max_sync(kAllLanes, largest)));
      if (lane_in_warp() == 0) scales[b] = scaled.stored;
      for (std::size_t window = 0; window < count; window += kWindow) {
        encode_window<typename Format::Element, Stochastic>(load(window), scaled.factor, first + window,
                                                            present_in_window(window, count), own_key, nullptr,
                                                            words + (first + window) * Bits / 32);
      }
    });
  }
};

template <std::uint32_t Bits>
struct DecodeSdp4bit {
  format::BlockLayout like;
  MaybeRotated turn;
  float weight;

  std::size_t blocks(std::size_t n) const { return blocks_of_warps(like, n); }
  __device__ void run(const Unit& unit, std::uint32_t /*index*/, const Place& place) const {
    using Format = format::Sdp4bitFormat<Bits>;
    format::BlockLayout layout = like;
    layout.n = unit.n;
    const auto* payload = static_cast<const std::byte*>(unit.from);
    auto* out = static_cast<float*>(unit.to);
    const auto* scales = reinterpret_cast<const float*>(payload);
    const auto* words = reinterpret_cast<const std::uint32_t*>(payload + layout.codes_offset());
    const bool aligned = aligned_to(out, 16);
    each_block(layout, place, [&](std::size_t b, std::size_t first, std::size_t count) {
      const float scale = Format::decode_factor(scales[b]);
      for (std::size_t window = 0; window < count; window += kWindow) {
        const std::size_t at = window + 4 * lane_in_warp();
        Four<float> four{};
        if (at < count) {
          const auto codes = load_codes<Bits>(words + first * Bits / 32, at, count);
          for (std::uint32_t i = 0; i < 4; ++i) four.value[i] = Format::Element::decode(codes.value[i]) * scale;
        }
        four = rotated_window<Way::inverse>(turn, four, present_in_window(window, count));
        for (float& value : four.value) value = weight * value;
        add_four(four, at, count, out + first, aligned);
      }
    });
  }
};

}  // namespace
}  // namespace cuda

namespace {

template <std::uint32_t Bits>
class GpuSdp4bit final : public BatchedGpuCodec {
 public:
  explicit GpuSdp4bit(const Params& params)
      : BatchedGpuCodec{"sdp4bit", params},
        block_{static_cast<std::size_t>(params.integer("block"))},
        turn_{format::RotationSigns{static_cast<std::uint64_t>(params.integer("seed"))}, params.is("hadamard", "on")},
        stochastic_{params.is("rounding", "stochastic")} {}

 private:
  [[nodiscard]] std::size_t payload_bytes(std::size_t n) const override { return layout(n).bytes(); }
  void encode_units(Queue<Space::cuda> queue, std::span<const cuda::Unit> units,
                    const EncodeContext& context) const override {
    if (stochastic_)
      cuda::launch_units(queue, "sdp4bit encode", cuda::EncodeSdp4bit<Bits, true>{layout(0), turn_, context.key},
                         units);
    else
      cuda::launch_units(queue, "sdp4bit encode", cuda::EncodeSdp4bit<Bits, false>{layout(0), turn_, context.key},
                         units);
  }
  void decode_units(Queue<Space::cuda> queue, std::span<const cuda::Unit> units, float weight) const override {
    cuda::launch_units(queue, "sdp4bit decode", cuda::DecodeSdp4bit<Bits>{layout(0), turn_, weight}, units);
  }
  [[nodiscard]] format::BlockLayout layout(std::size_t n) const { return {n, block_, sizeof(float), Bits}; }

  std::size_t block_;
  cuda::MaybeRotated turn_;
  bool stochastic_;
};

std::unique_ptr<Codec<Space::cuda>> make_gpu_sdp4bit(const Params& params, const Layout& /*layout*/) {
  if (params.is("bits", "8")) return std::make_unique<GpuSdp4bit<8>>(params);
  return std::make_unique<GpuSdp4bit<4>>(params);
}

}  // namespace

extern constinit const GpuFactories sdp4bit_gpu{.codec = make_gpu_sdp4bit};

}  // namespace gradtool
