#include "kernels/cuda/natural.hpp"

#include <cuda_runtime.h>

#include "kernels/cuda/unit_launch.hpp"
#include "kernels/schedule/natural.hpp"

namespace gradtool::cuda {
namespace {

constexpr unsigned kWarps = kThreads / schedule::kLanes;
constexpr std::size_t kPiece = 1024;  // elements that a warp takes at a time: short, as schedule::kWindowPiece says

std::size_t blocks_for_elements(std::size_t n) {
  return blocks_for(n, kWarps * kPiece);
}

/// Calls body(first, count) for the pieces of n elements that fall to this warp.
template <class Body>
__device__ void each_piece(std::size_t n, const Place& place, const Body& body) {
  for (std::size_t first = place.warp() * kPiece; first < n; first += place.warps() * kPiece)
    body(first, n - first < kPiece ? n - first : kPiece);
}

struct Encode {
  law::DrawKey key;

  static std::size_t blocks(std::size_t n) { return blocks_for_elements(n); }
  __device__ void run(const Unit& unit, std::uint32_t index, const Place& place) const {
    const auto* x = static_cast<const float*>(unit.from);
    auto* exponents = static_cast<std::uint32_t*>(unit.to);
    law::DrawKey mine = key;
    mine.tensor += index;
    each_piece(unit.n, place, [&](std::size_t first, std::size_t count) {
      schedule::natural_encode(DeviceWarp{}, x + first, first, count, aligned_to(x, 16), mine, exponents,
                               exponents + (unit.n + 3) / 4);
    });
  }
};

struct Decode {
  float weight;

  static std::size_t blocks(std::size_t n) { return blocks_for_elements(n); }
  __device__ void run(const Unit& unit, std::uint32_t /*index*/, const Place& place) const {
    const auto* exponents = static_cast<const std::uint32_t*>(unit.from);
    auto* out = static_cast<float*>(unit.to);
    each_piece(unit.n, place, [&](std::size_t first, std::size_t count) {
      schedule::natural_decode(DeviceWarp{}, exponents, exponents + (unit.n + 3) / 4, first, count, weight, out + first,
                               aligned_to(out, 16));
    });
  }
};

/// Elements are their lane's for every payload, so nobody waits in between.
__global__ void decode_kernel(const __grid_constant__ Payloads payloads, std::size_t n, float weight, float* out,
                              bool aligned) {
  each_piece(n, whole_grid(), [&](std::size_t first, std::size_t count) {
    for (std::size_t at = first; at < first + count; at += kAddedAtOnce) {
      const std::size_t left = first + count - at;
      for (unsigned i = 0; i < payloads.count; ++i) {
        const auto* exponents = reinterpret_cast<const std::uint32_t*>(payloads.at[i]);
        schedule::natural_decode(DeviceWarp{}, exponents, exponents + (n + 3) / 4, at,
                                 left < kAddedAtOnce ? left : kAddedAtOnce, weight, out + at, aligned);
      }
    }
  });
}

}  // namespace

void natural_encode(Queue<Space::cuda> queue, std::span<const Unit> units, const law::DrawKey& key) {
  launch_units(queue, "natural encode", Encode{key}, units);
}

void natural_decode_add(Queue<Space::cuda> queue, std::span<const Unit> units, float weight) {
  launch_units(queue, "natural decode", Decode{weight}, units);
}

void natural_decode_add(Queue<Space::cuda> queue, const Payloads& payloads, float weight,
                        View<float, Space::cuda> out) {
  if (out.empty()) return;
  launch(queue, "natural decode", decode_kernel, static_cast<unsigned>(blocks_for_elements(out.size())), payloads,
         out.size(), weight, out.data(), aligned_to(out.data(), 16));
}

}  // namespace gradtool::cuda
