#include <cuda_runtime.h>

#include "kernels/cuda/code_windows.hpp"
#include "kernels/cuda/unit_launch.hpp"
#include "lib/codecs/gpu_codec.hpp"
#include "lib/methods/nvfp4/format.hpp"

namespace gradtool {
namespace cuda {
namespace {

using format::Nvfp4;
using format::Nvfp4Unit;
using format::Rotation16;

/// How blocks are rotated, where they are.
struct MaybeRotated {
  Rotation16 rotation;
  bool on;
};

/// Elements of block b of x[0 .. n), zeros behind the end.
__device__ std::size_t load_block(const float* x, std::size_t n, std::size_t b, bool aligned, const MaybeRotated& turn,
                                  float (&block)[Nvfp4::kBlock]) {
  const std::size_t first = b * Nvfp4::kBlock;
  const std::size_t count = n - first < Nvfp4::kBlock ? n - first : Nvfp4::kBlock;
#pragma unroll
  for (unsigned q = 0; q < Nvfp4::kBlock / 4; ++q) {
    const Four<float> four = four_at(x + first, 4 * q, count, aligned);
#pragma unroll
    for (unsigned i = 0; i < 4; ++i) block[4 * q + i] = four.value[i];
  }
  if (turn.on && count == Nvfp4::kBlock) turn.rotation.forward(block);
  return count;
}

__device__ std::uint32_t largest_of_block(const float (&block)[Nvfp4::kBlock]) {
  std::uint32_t largest = 0;
#pragma unroll
  for (const float value : block) {
    const std::uint32_t pattern = format::bits_of(value) & 0x7fffffffu;
    largest = pattern > largest ? pattern : largest;
  }
  return largest;
}

/// Thread blocks for kernels whose threads take a block of elements each.
std::size_t blocks_of_threads(std::size_t n) {
  return blocks_for(Nvfp4::blocks(n), kThreads);
}

/// The first word of the payload, which is 0 before, := the pattern of the unit's largest magnitude.
struct MeasureNvfp4 {
  MaybeRotated turn;

  static std::size_t blocks(std::size_t n) { return blocks_of_threads(n); }
  __device__ void run(const Unit& unit, std::uint32_t /*index*/, const Place& place) const {
    const auto* x = static_cast<const float*>(unit.from);
    const bool aligned = aligned_to(x, 16);
    std::uint32_t largest = 0;
    for (std::size_t b = place.thread(); b < Nvfp4::blocks(unit.n); b += place.threads()) {
      float block[Nvfp4::kBlock];
      load_block(x, unit.n, b, aligned, turn, block);
      const std::uint32_t own = largest_of_block(block);
      largest = own > largest ? own : largest;
    }
    largest = __reduce_max_sync(kAllLanes, largest);
    if (lane_in_warp() == 0) atomicMax(static_cast<std::uint32_t*>(unit.to), largest);
  }
};

/// Scales and codes, a thread for each block.
template <bool Stochastic>
struct EncodeNvfp4 {
  MaybeRotated turn;
  format::DrawKey key;

  static std::size_t blocks(std::size_t n) { return blocks_of_threads(n); }
  __device__ void run(const Unit& unit, std::uint32_t index, const Place& place) const {
    using Element = Nvfp4::Element;
    const std::size_t n = unit.n;
    const auto* x = static_cast<const float*>(unit.from);
    auto* payload = static_cast<std::byte*>(unit.to);
    auto* scales = reinterpret_cast<std::uint8_t*>(payload + Nvfp4::kScalesOffset);
    auto* words = reinterpret_cast<std::uint32_t*>(payload + Nvfp4::codes_offset(n));
    const bool aligned = aligned_to(x, 16);
    const Nvfp4Unit scale = Nvfp4Unit::of(format::float_of(*reinterpret_cast<const std::uint32_t*>(payload)));
    format::DrawKey own_key = key;
    own_key.tensor += index;
    for (std::size_t b = place.thread(); b < Nvfp4::blocks(n); b += place.threads()) {
      float block[Nvfp4::kBlock];
      const std::size_t count = load_block(x, n, b, aligned, turn, block);
      const auto scaled = scale.scaled(format::float_of(largest_of_block(block)));
      scales[b] = scaled.stored;
      std::uint32_t codes[2]{};
#pragma unroll
      for (unsigned q = 0; q < Nvfp4::kBlock / 4; ++q) {
        format::Draws draws{};
        if (Stochastic && 4 * q < count) draws = format::draw4(own_key, b * (Nvfp4::kBlock / 4) + q);
#pragma unroll
        for (unsigned i = 0; i < 4; ++i) {
          if (4 * q + i >= count || scale.encode == 0.0f) continue;
          const float value = block[4 * q + i];
          const std::uint32_t code =
              Stochastic ? Element::encode(scaled.factor, value, draws.bits[i]) : Element::encode(scaled.factor, value);
          codes[q / 2] |= code << (4 * (4 * q + i) % 32);
        }
      }
      words[2 * b] = codes[0];
      if (count > 8) words[2 * b + 1] = codes[1];
    }
    const std::size_t padding = Nvfp4::kScalesOffset + Nvfp4::blocks(n) + place.thread();
    if (padding < Nvfp4::codes_offset(n)) payload[padding] = std::byte{0};
  }
};

/// Turns the largest magnitude that MeasureNvfp4 found into the unit's scale.
struct StoreNvfp4Unit {
  static std::size_t blocks(std::size_t /*n*/) { return 1; }
  __device__ void run(const Unit& unit, std::uint32_t /*index*/, const Place& place) const {
    auto* word = static_cast<std::uint32_t*>(unit.to);
    if (place.thread() == 0) *word = format::bits_of(Nvfp4Unit::of(format::float_of(*word)).decode);
  }
};

struct DecodeNvfp4 {
  MaybeRotated turn;
  float weight;

  static std::size_t blocks(std::size_t n) { return blocks_of_threads(n); }
  __device__ void run(const Unit& unit, std::uint32_t /*index*/, const Place& place) const {
    const std::size_t n = unit.n;
    const auto* payload = static_cast<const std::byte*>(unit.from);
    auto* out = static_cast<float*>(unit.to);
    const auto* scales = reinterpret_cast<const std::uint8_t*>(payload + Nvfp4::kScalesOffset);
    const auto* words = reinterpret_cast<const std::uint32_t*>(payload + Nvfp4::codes_offset(n));
    const bool aligned = aligned_to(out, 16);
    const float decode = *reinterpret_cast<const float*>(payload);
    for (std::size_t b = place.thread(); b < Nvfp4::blocks(n); b += place.threads()) {
      const std::size_t first = b * Nvfp4::kBlock;
      const std::size_t count = n - first < Nvfp4::kBlock ? n - first : Nvfp4::kBlock;
      const float block_unit = Nvfp4Unit::block_unit(scales[b], decode);
      const std::uint32_t codes[2]{words[2 * b], count > 8 ? words[2 * b + 1] : 0u};
      float block[Nvfp4::kBlock];
#pragma unroll
      for (unsigned i = 0; i < Nvfp4::kBlock; ++i)
        block[i] = Nvfp4::Element::decode(codes[i / 8] >> (4 * i % 32) & 0xfu) * block_unit;
      if (turn.on && count == Nvfp4::kBlock) turn.rotation.inverse(block);
#pragma unroll
      for (unsigned q = 0; q < Nvfp4::kBlock / 4; ++q) {
        Four<float> four;
#pragma unroll
        for (unsigned i = 0; i < 4; ++i) four.value[i] = weight * block[4 * q + i];
        add_four(four, 4 * q, count, out + first, aligned);
      }
    }
  }
};

}  // namespace
}  // namespace cuda

namespace {

class GpuNvfp4 final : public BatchedGpuCodec {
 public:
  explicit GpuNvfp4(const Params& params)
      : BatchedGpuCodec{"nvfp4", params},
        turn_{format::Rotation16{static_cast<std::uint64_t>(params.integer("seed"))}, params.is("hadamard", "on")},
        stochastic_{params.is("rounding", "stochastic")} {}

 private:
  [[nodiscard]] std::size_t payload_bytes(std::size_t n) const override { return format::Nvfp4::bytes(n); }
  void encode_units(Queue<Space::cuda> queue, std::span<const cuda::Unit> units,
                    const EncodeContext& context) const override {
    for (const cuda::Unit& unit : units) {
      if (unit.n > 0) cuda::fill(queue, {static_cast<std::byte*>(unit.to), sizeof(std::uint32_t)}, 0);
    }
    cuda::launch_units(queue, "nvfp4 largest", cuda::MeasureNvfp4{turn_}, units);
    if (stochastic_)
      cuda::launch_units(queue, "nvfp4 encode", cuda::EncodeNvfp4<true>{turn_, context.key}, units);
    else
      cuda::launch_units(queue, "nvfp4 encode", cuda::EncodeNvfp4<false>{turn_, context.key}, units);
    cuda::launch_units(queue, "nvfp4 unit", cuda::StoreNvfp4Unit{}, units);
  }
  void decode_units(Queue<Space::cuda> queue, std::span<const cuda::Unit> units, float weight) const override {
    cuda::launch_units(queue, "nvfp4 decode", cuda::DecodeNvfp4{turn_, weight}, units);
  }

  cuda::MaybeRotated turn_;
  bool stochastic_;
};

std::unique_ptr<Codec<Space::cuda>> make_gpu_nvfp4(const Params& params, const Layout& /*layout*/) {
  return std::make_unique<GpuNvfp4>(params);
}

}  // namespace

extern constinit const GpuFactories nvfp4_gpu{.codec = make_gpu_nvfp4};

}  // namespace gradtool
