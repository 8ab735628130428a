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
    body(first, n - first < kPiece ? n - first : kPiece);
}

/// Encodes a window of 128 elements, of which a lane has four and the first `present` are there. The window's first
/// element has index `first` in the gradient.
__device__ void encode_window(const Four<float>& x, std::size_t first, std::uint32_t present,
                              const format::DrawKey& key, std::uint32_t* exponents, std::uint32_t* signs) {
  const std::uint32_t at = 4 * lane_in_warp();
  const format::Draws draws = format::draw4(key, (first + at) / 4);
  Four<std::uint32_t> exponent{};
  Four<std::uint32_t> sign{};
  for (std::uint32_t i = 0; i < 4; ++i) {
    if (at + i >= present) continue;
    exponent.value[i] = Natural::exponent(x.value[i], draws.bits[i]);
    sign.value[i] = format::bits_of(x.value[i]) >> 31;
  }
  store_window<8>(exponent, present, nullptr, exponents + first / 4);
  store_window<1>(sign, present, nullptr, signs + first / 32);
}

struct Encode {
  format::DrawKey key;

  static std::size_t blocks(std::size_t n) { return blocks_for(n, kWarps * kPiece); }
  __device__ void run(const Unit& unit, std::uint32_t index, const Place& place) const {
    const auto* gradient = static_cast<const float*>(unit.from);
    auto* exponents = static_cast<std::uint32_t*>(unit.to);
    auto* signs = exponents + Natural::signs_offset(unit.n) / 4;
    const bool aligned = aligned_to(gradient, 16);
    format::DrawKey own_key = key;
    own_key.tensor += index;
    each_piece(unit.n, place, [&](std::size_t first, std::size_t count) {
      const float* x = gradient + first;
      std::size_t window = 0;
      for (; aligned && window + kAheadElements <= count; window += kAheadElements) {
        const auto held = load_windows<kAhead>(x + window);
#pragma unroll
        for (std::uint32_t w = 0; w < kAhead; ++w)
          encode_window(held.window[w], first + window + w * kWindow, kWindow, own_key, exponents, signs);
      }
      for (; window < count; window += kWindow) {
        const auto present = static_cast<std::uint32_t>(count - window < kWindow ? count - window : kWindow);
        const Four<float> four = four_at(x + window, 4 * lane_in_warp(), present, aligned);
        encode_window(four, first + window, present, own_key, exponents, signs);
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
