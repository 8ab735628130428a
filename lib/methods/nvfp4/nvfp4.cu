#include <cuda_runtime.h>

#include "kernels/cuda/code_windows.hpp"
#include "kernels/cuda/unit_launch.hpp"
#include "lib/codecs/gpu_codec.hpp"
#include "lib/methods/nvfp4/format.hpp"

namespace gradtool {
namespace cuda {
namespace {

using format::EdenSums;
using format::Nvfp4;
using format::Nvfp4Layout;
using format::Nvfp4Rounding;
using format::Nvfp4Unit;
using format::Rotation128;
using format::Rotation16;

/// How blocks of 16 are rotated, where they are.
struct Turn16 {
  Rotation16 rotation;
  bool on;

  /// Block b of n elements, in place. Threads without a block have zeros.
  __device__ void forward(float (&block)[Nvfp4::kBlock], std::size_t b, std::size_t n) const {
    if (on && (b + 1) * Nvfp4::kBlock <= n) rotation.forward(block);
  }
  __device__ void inverse(float (&block)[Nvfp4::kBlock], std::size_t b, std::size_t n) const {
    if (on && (b + 1) * Nvfp4::kBlock <= n) rotation.inverse(block);
  }
};

/// How the groups of MS-EDEN are rotated: every thread has a block, and eight neighbours share a group. Whole warps
/// call these functions together, for 32 blocks the first of which begins a group.
struct Turn128 {
  static constexpr std::uint32_t kBlocks = Nvfp4::kGroup / Nvfp4::kBlock;
  Rotation128 rotation;

  __device__ static bool whole(std::size_t b, std::size_t n) { return (b / kBlocks + 1) * Nvfp4::kGroup <= n; }

  __device__ void forward(float (&block)[Nvfp4::kBlock], std::size_t b, std::size_t n) const {
    float turned[Nvfp4::kBlock];
    turn(block, b, turned);
    hadamard(turned, b);
    if (whole(b, n)) copy(turned, block);
  }
  __device__ void inverse(float (&block)[Nvfp4::kBlock], std::size_t b, std::size_t n) const {
    float turned[Nvfp4::kBlock];
    copy(block, turned);
    hadamard(turned, b);
    if (whole(b, n)) turn(turned, b, block);
  }

 private:
  __device__ static void copy(const float (&from)[Nvfp4::kBlock], float (&to)[Nvfp4::kBlock]) {
#pragma unroll
    for (unsigned i = 0; i < Nvfp4::kBlock; ++i) to[i] = from[i];
  }
  __device__ void turn(const float (&from)[Nvfp4::kBlock], std::size_t b, float (&to)[Nvfp4::kBlock]) const {
    const auto first = static_cast<std::uint32_t>(b % kBlocks * Nvfp4::kBlock);
    const std::uint32_t signs = rotation.signs(first / 32) >> first % 32;
#pragma unroll
    for (unsigned i = 0; i < Nvfp4::kBlock; ++i) to[i] = from[i] * ((signs >> i & 1u) != 0 ? -1.0f : 1.0f);
  }
  /// The first four stages are among a thread's elements, the others between threads 1, 2 and 4 apart.
  __device__ static void hadamard(float (&x)[Nvfp4::kBlock], std::size_t b) {
    format::add_pairs<1>(x);
    format::add_pairs<2>(x);
    format::add_pairs<4>(x);
    format::add_pairs<8>(x);
#pragma unroll
    for (unsigned apart = 1; apart < kBlocks; apart *= 2) {
      const bool upper = (b & apart) != 0;
#pragma unroll
      for (float& value : x) {
        const float other = __shfl_xor_sync(kAllLanes, value, static_cast<int>(apart));
        value = upper ? other - value : value + other;
      }
    }
#pragma unroll
    for (float& value : x) value = value * Rotation128::kNorm;
  }
};

/// Elements of block b of x[0 .. n), zeros behind the end.
__device__ std::size_t load_block(const float* x, std::size_t n, std::size_t b, bool aligned,
                                  float (&block)[Nvfp4::kBlock]) {
  const std::size_t first = b * Nvfp4::kBlock;
  const std::size_t left = first < n ? n - first : 0;
  const std::size_t count = left < Nvfp4::kBlock ? left : Nvfp4::kBlock;
#pragma unroll
  for (unsigned q = 0; q < Nvfp4::kBlock / 4; ++q) {
    const Four<float> four = four_at(x + first, 4 * q, count, aligned);
#pragma unroll
    for (unsigned i = 0; i < 4; ++i) block[4 * q + i] = four.value[i];
  }
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

/// The key of the draws of unit `index`.
__device__ format::DrawKey key_of(format::DrawKey key, std::uint32_t index) {
  key.tensor += index;
  return key;
}

/// Calls body(b) for the blocks of n elements, and for as many behind them as whole warps need.
template <class Body>
__device__ void each_block(const Place& place, std::size_t n, const Body& body) {
  const std::size_t blocks = (Nvfp4::blocks(n) + kWarpSize - 1) / kWarpSize * kWarpSize;
  for (std::size_t b = place.thread(); b < blocks; b += place.threads()) body(b);
}

/// The first word of the payload, which is 0 before, := the pattern of the unit's largest magnitude. MS-EDEN writes its
/// seed behind it.
template <bool Eden>
struct MeasureNvfp4 {
  Turn16 turn16;
  format::DrawKey key;

  static std::size_t blocks(std::size_t n) { return blocks_of_threads(n); }
  __device__ void run(const Unit& unit, std::uint32_t index, const Place& place) const {
    auto* payload = static_cast<std::uint32_t*>(unit.to);
    if constexpr (Eden) {
      const std::uint32_t seed = format::eden_seed(key_of(key, index), unit.n);
      if (place.thread() == 0) payload[1] = seed;
      measure(unit, place, Turn128{Rotation128{seed}});
    } else {
      measure(unit, place, turn16);
    }
  }

 private:
  template <class Turn>
  __device__ void measure(const Unit& unit, const Place& place, const Turn& turn) const {
    const auto* x = static_cast<const float*>(unit.from);
    const bool aligned = aligned_to(x, 16);
    std::uint32_t largest = 0;
    each_block(place, unit.n, [&](std::size_t b) {
      float block[Nvfp4::kBlock];
      load_block(x, unit.n, b, aligned, block);
      turn.forward(block, b, unit.n);
      const std::uint32_t own = largest_of_block(block);
      largest = own > largest ? own : largest;
    });
    largest = __reduce_max_sync(kAllLanes, largest);
    if (lane_in_warp() == 0) atomicMax(static_cast<std::uint32_t*>(unit.to), largest);
  }
};

/// Scales and codes, a thread for each block.
template <Nvfp4Rounding Rounding>
struct EncodeNvfp4 {
  static constexpr bool kEden = Rounding == Nvfp4Rounding::eden;
  Turn16 turn16;
  format::DrawKey key;

  static std::size_t blocks(std::size_t n) { return blocks_of_threads(n); }
  __device__ void run(const Unit& unit, std::uint32_t index, const Place& place) const {
    const std::size_t n = unit.n;
    const Nvfp4Layout places{n, kEden};
    auto* payload = static_cast<std::byte*>(unit.to);
    const auto* head = reinterpret_cast<const std::uint32_t*>(payload);
    const Nvfp4Unit scale = Nvfp4Unit::of(format::float_of(head[0]), Rounding);
    if constexpr (kEden)
      encode(unit, place, scale, key_of(key, index), Turn128{Rotation128{head[1]}});
    else
      encode(unit, place, scale, key_of(key, index), turn16);
    const std::size_t padding = places.scales_offset() + Nvfp4::blocks(n) + place.thread();
    if (padding < places.codes_offset()) payload[padding] = std::byte{0};
  }

 private:
  template <class Turn>
  __device__ static void encode(const Unit& unit, const Place& place, const Nvfp4Unit& scale,
                                const format::DrawKey& key, const Turn& turn) {
    const std::size_t n = unit.n;
    const Nvfp4Layout places{n, kEden};
    const auto* x = static_cast<const float*>(unit.from);
    auto* payload = static_cast<std::byte*>(unit.to);
    auto* scales = reinterpret_cast<std::uint8_t*>(payload + places.scales_offset());
    auto* words = reinterpret_cast<std::uint32_t*>(payload + places.codes_offset());
    const bool aligned = aligned_to(x, 16);
    each_block(place, n, [&](std::size_t b) {
      float block[Nvfp4::kBlock];
      const std::size_t count = load_block(x, n, b, aligned, block);
      turn.forward(block, b, n);
      const float largest = format::float_of(largest_of_block(block));
      const bool corrects = kEden && Turn128::whole(b, n);
      const bool draws_elements = Rounding == Nvfp4Rounding::stochastic || (kEden && !corrects);
      auto scaled = kEden && !corrects ? scale.scaled_up(largest) : scale.scaled(largest);
      std::uint32_t codes[2]{};
      float rounded[Nvfp4::kBlock]{};
#pragma unroll
      for (unsigned q = 0; q < Nvfp4::kBlock / 4; ++q) {
        format::Draws draws{};
        if (draws_elements && 4 * q < count) draws = format::draw4(key, b * (Nvfp4::kBlock / 4) + q);
#pragma unroll
        for (unsigned i = 0; i < 4; ++i) {
          if (4 * q + i >= count || scale.encode == 0.0f) continue;
          const float value = block[4 * q + i];
          const std::uint32_t code = draws_elements ? Nvfp4::Element::encode(scaled.factor, value, draws.bits[i])
                                                    : Nvfp4::Element::encode(scaled.factor, value);
          codes[q / 2] |= code << (4 * (4 * q + i) % 32);
          if constexpr (kEden) rounded[4 * q + i] = Nvfp4::Element::decode(code);
        }
      }
      if constexpr (kEden) {
#pragma unroll
        for (float& value : block) value = value * scaled.factor;
        const float own = Nvfp4::BlockScale::decode(scaled.stored);
        EdenSums sums = format::eden_sums(block, rounded).times(own * own);
        for (unsigned apart = Turn128::kBlocks / 2; apart > 0; apart /= 2) {
          sums = sums + EdenSums{__shfl_xor_sync(kAllLanes, sums.squares, static_cast<int>(apart)),
                                 __shfl_xor_sync(kAllLanes, sums.products, static_cast<int>(apart))};
        }
        if (corrects && scale.encode != 0.0f) {
          scaled.stored = format::corrected_scale(scaled.stored, sums.correction(), format::draw_of(key, b));
        }
      }
      if (count == 0) return;
      scales[b] = scaled.stored;
      words[2 * b] = codes[0];
      if (count > 8) words[2 * b + 1] = codes[1];
    });
  }
};

/// Turns the largest magnitude that MeasureNvfp4 found into the unit's scale.
struct StoreNvfp4Unit {
  Nvfp4Rounding rounding;

  static std::size_t blocks(std::size_t /*n*/) { return 1; }
  __device__ void run(const Unit& unit, std::uint32_t /*index*/, const Place& place) const {
    auto* word = static_cast<std::uint32_t*>(unit.to);
    if (place.thread() == 0) *word = format::bits_of(Nvfp4Unit::of(format::float_of(*word), rounding).decode);
  }
};

template <bool Eden>
struct DecodeNvfp4 {
  Turn16 turn16;
  float weight;

  static std::size_t blocks(std::size_t n) { return blocks_of_threads(n); }
  __device__ void run(const Unit& unit, std::uint32_t /*index*/, const Place& place) const {
    if constexpr (Eden)
      decode(unit, place, Turn128{Rotation128{static_cast<const std::uint32_t*>(unit.from)[1]}});
    else
      decode(unit, place, turn16);
  }

 private:
  template <class Turn>
  __device__ void decode(const Unit& unit, const Place& place, const Turn& turn) const {
    const std::size_t n = unit.n;
    const Nvfp4Layout places{n, Eden};
    const auto* payload = static_cast<const std::byte*>(unit.from);
    auto* out = static_cast<float*>(unit.to);
    const auto* scales = reinterpret_cast<const std::uint8_t*>(payload + places.scales_offset());
    const auto* words = reinterpret_cast<const std::uint32_t*>(payload + places.codes_offset());
    const bool aligned = aligned_to(out, 16);
    const float unit_scale = *reinterpret_cast<const float*>(payload);
    each_block(place, n, [&](std::size_t b) {
      const std::size_t first = b * Nvfp4::kBlock;
      const std::size_t left = first < n ? n - first : 0;
      const std::size_t count = left < Nvfp4::kBlock ? left : Nvfp4::kBlock;
      const float block_unit = count > 0 ? Nvfp4Unit::block_unit(scales[b], unit_scale) : 0.0f;
      const std::uint32_t codes[2]{count > 0 ? words[2 * b] : 0u, count > 8 ? words[2 * b + 1] : 0u};
      float block[Nvfp4::kBlock];
#pragma unroll
      for (unsigned i = 0; i < Nvfp4::kBlock; ++i)
        block[i] = Nvfp4::Element::decode(codes[i / 8] >> (4 * i % 32) & 0xfu) * block_unit;
      turn.inverse(block, b, n);
#pragma unroll
      for (unsigned q = 0; q < Nvfp4::kBlock / 4; ++q) {
        Four<float> four;
#pragma unroll
        for (unsigned i = 0; i < 4; ++i) four.value[i] = weight * block[4 * q + i];
        add_four(four, 4 * q, count, out + first, aligned);
      }
    });
  }
};

}  // namespace
}  // namespace cuda

namespace {

template <format::Nvfp4Rounding Rounding>
class GpuNvfp4 final : public BatchedGpuCodec {
 public:
  explicit GpuNvfp4(const Params& params)
      : BatchedGpuCodec{"nvfp4", params},
        turn_{format::Rotation16{static_cast<std::uint64_t>(params.integer("seed"))}, params.is("hadamard", "on")} {}

 private:
  static constexpr bool kEden = Rounding == format::Nvfp4Rounding::eden;

  [[nodiscard]] std::size_t payload_bytes(std::size_t n) const override {
    return format::Nvfp4Layout{n, kEden}.bytes();
  }
  void encode_units(Queue<Space::cuda> queue, std::span<const cuda::Unit> units,
                    const EncodeContext& context) const override {
    for (const cuda::Unit& unit : units) {
      if (unit.n > 0) cuda::fill(queue, {static_cast<std::byte*>(unit.to), sizeof(std::uint32_t)}, 0);
    }
    cuda::launch_units(queue, "nvfp4 largest", cuda::MeasureNvfp4<kEden>{turn_, context.key}, units);
    cuda::launch_units(queue, "nvfp4 encode", cuda::EncodeNvfp4<Rounding>{turn_, context.key}, units);
    cuda::launch_units(queue, "nvfp4 unit", cuda::StoreNvfp4Unit{Rounding}, units);
  }
  void decode_units(Queue<Space::cuda> queue, std::span<const cuda::Unit> units, float weight) const override {
    cuda::launch_units(queue, "nvfp4 decode", cuda::DecodeNvfp4<kEden>{turn_, weight}, units);
  }

  cuda::Turn16 turn_;
};

std::unique_ptr<Codec<Space::cuda>> make_gpu_nvfp4(const Params& params, const Layout& /*layout*/) {
  using format::Nvfp4Rounding;
  switch (format::nvfp4_rounding(params)) {
    case Nvfp4Rounding::nearest:
      return std::make_unique<GpuNvfp4<Nvfp4Rounding::nearest>>(params);
    case Nvfp4Rounding::stochastic:
      return std::make_unique<GpuNvfp4<Nvfp4Rounding::stochastic>>(params);
    case Nvfp4Rounding::eden:
      break;
  }
  return std::make_unique<GpuNvfp4<Nvfp4Rounding::eden>>(params);
}

}  // namespace

extern constinit const GpuFactories nvfp4_gpu{.codec = make_gpu_nvfp4};

}  // namespace gradtool
