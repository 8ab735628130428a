#include <cuda_runtime.h>

#include "kernels/cuda/code_windows.hpp"
#include "kernels/cuda/unit_launch.hpp"
#include "lib/codecs/gpu_codec.hpp"
#include "lib/methods/natural/format.hpp"

namespace gradtool {
namespace cuda {
namespace {

using format::Natural;

constexpr unsigned kWarps = kThreads / kWarpSize;
/// Elements that a warp takes at a time. There are many times more of these pieces than warps run at once, so that the
/// last of them leave little of a GPU idle.
constexpr std::size_t kPiece = 1024;

/// Calls body(first, count) for the pieces of n elements that fall to this warp.
template <class Body>
__device__ void each_piece(std::size_t n, const Place& place, const Body& body) {
  for (std::size_t first = place.warp() * kPiece; first < n; first += place.warps() * kPiece)
    body(first, static_cast<std::uint32_t>(n - first < kPiece ? n - first : kPiece));
}

/// The packed exponents and signs of a lane's four elements.
struct Codes {
  std::uint32_t exponents, signs;
};
__device__ Codes encode_four(const Four<float>& x, const format::Draws& draws, std::uint32_t there = 4) {
  Four<std::uint32_t> exponent{};
  Four<std::uint32_t> sign{};
  for (std::uint32_t i = 0; i < 4; ++i) {
    if (i >= there) continue;
    exponent.value[i] = Natural::exponent(x.value[i], draws.bits[i]);
    sign.value[i] = format::bits_of(x.value[i]) >> 31;
  }
  return {packed_four<8>(exponent), packed_four<1>(sign)};
}

struct Encode {
  static constexpr unsigned kResident = 3;
  format::DrawKey key;

  static std::size_t blocks(std::size_t n) { return blocks_for(n, kWarps * kPiece); }
  __device__ void run(const Unit& unit, std::uint32_t index, const Place& place) const {
    const auto* gradient = static_cast<const float*>(unit.from);
    auto* payload = static_cast<std::uint32_t*>(unit.to);
    const std::uint32_t own = 4 * lane_in_warp();
    // Windows are held together where they are aligned and their draws have low counters.
    const bool aligned = aligned_to(gradient, 16);
    const bool together = aligned && unit.n <= format::kLowElements;
    format::DrawKey own_key = key;
    own_key.tensor += index;
    each_piece(unit.n, place, [&](std::size_t first, std::uint32_t count) {
      const float* x = gradient + first;
      std::uint32_t* exponents = payload + first / 4;
      std::uint32_t* signs = payload + Natural::signs_offset(unit.n) / 4 + first / 32;
      std::uint32_t window = 0;
      for (; together && window + kAheadElements <= count; window += kAheadElements) {
        const auto held = load_windows<kAhead>(x + window);
        std::uint32_t fours[kAhead];
#pragma unroll
        for (std::uint32_t w = 0; w < kAhead; ++w) {
          const std::uint32_t four = static_cast<std::uint32_t>(first / 4) + (window + w * kWindow + own) / 4;
          const Codes codes = encode_four(held.window[w], format::draw4_low(own_key, four));
          exponents[(window + w * kWindow + own) / 4] = codes.exponents;
          fours[w] = codes.signs;
        }
        store_ahead<1>(fours, nullptr, signs + window / 32);
      }
      for (; window < count; window += kWindow) {
        const std::uint32_t present = count - window < kWindow ? count - window : kWindow;
        const Codes codes =
            encode_four(four_at(x + window, own, present, aligned), format::draw4(own_key, (first + window + own) / 4),
                        own < present ? present - own : 0);
        store_window<8>(codes.exponents, present, nullptr, exponents + window / 4);
        store_window<1>(codes.signs, present, nullptr, signs + window / 32);
      }
    });
  }
};

/// out[first .. first + count) += weight * decoded, for a payload of n elements.
__device__ void decode(const std::byte* payload, std::size_t n, std::size_t first, std::size_t count, float weight,
                       float* out, bool aligned) {
  const auto* exponents = reinterpret_cast<const std::uint32_t*>(payload);
  const auto* signs = exponents + Natural::signs_offset(n) / 4;
  add_values(count, out + first, aligned, [&](std::size_t at) {
    const Four<std::uint32_t> exponent = load_codes<8>(exponents + first / 4, at, count);
    const Four<std::uint32_t> sign = load_codes<1>(signs + first / 32, at, count);
    Four<float> value;
    for (std::uint32_t i = 0; i < 4; ++i) value.value[i] = weight * Natural::value(exponent.value[i], sign.value[i]);
    return value;
  });
}

struct Decode {
  float weight;

  static std::size_t blocks(std::size_t n) { return blocks_for(n, kWarps * kPiece); }
  __device__ void run(const Unit& unit, std::uint32_t /*index*/, const Place& place) const {
    auto* out = static_cast<float*>(unit.to);
    each_piece(unit.n, place, [&](std::size_t first, std::size_t count) {
      decode(static_cast<const std::byte*>(unit.from), unit.n, first, count, weight, out, aligned_to(out, 16));
    });
  }
};

/// An element of `out` is its lane's for every payload, so no barrier stands between payloads.
__global__ void decode_kernel(const __grid_constant__ Payloads payloads, std::size_t n, float weight, float* out,
                              bool aligned) {
  each_piece(n, whole_grid(), [&](std::size_t first, std::size_t count) {
    for (std::size_t at = first; at < first + count; at += kAddedAtOnce) {
      const std::size_t left = first + count - at;
      for (unsigned i = 0; i < payloads.count; ++i)
        decode(payloads.at[i], n, at, left < kAddedAtOnce ? left : kAddedAtOnce, weight, out, aligned);
    }
  });
}

}  // namespace
}  // namespace cuda

namespace {

class GpuNatural final : public BatchedGpuCodec {
 public:
  explicit GpuNatural(const Params& params) : BatchedGpuCodec{"natural", params} {}

 private:
  [[nodiscard]] std::size_t payload_bytes(std::size_t n) const override { return format::Natural::bytes(n); }
  void encode_units(Queue<Space::cuda> queue, std::span<const cuda::Unit> units,
                    const EncodeContext& context) const override {
    cuda::launch_units(queue, "natural encode", cuda::Encode{context.key}, units);
  }
  void decode_units(Queue<Space::cuda> queue, std::span<const cuda::Unit> units, float weight) const override {
    cuda::launch_units(queue, "natural decode", cuda::Decode{weight}, units);
  }
  void decode_all(Queue<Space::cuda> queue, const cuda::Payloads& batch, float weight, Floats out) const override {
    if (out.empty()) return;
    cuda::launch(queue, "natural decode", cuda::decode_kernel, static_cast<unsigned>(cuda::Decode::blocks(out.size())),
                 batch, out.size(), weight, out.data(), cuda::aligned_to(out.data(), 16));
  }
};

}  // namespace

extern constinit const GpuFactories natural_gpu{.codec = make_method_codec<Space::cuda, GpuNatural>};

}  // namespace gradtool
