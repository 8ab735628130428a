#include "kernels/cuda/natural.hpp"

#include <cuda_runtime.h>

#include "kernels/cuda/device_warp.hpp"
#include "kernels/cuda/grid.hpp"
#include "kernels/cuda/launch.hpp"
#include "kernels/cuda/runtime.hpp"
#include "kernels/schedule/natural.hpp"

namespace gradtool::cuda {
namespace {

constexpr unsigned kWarps = kThreads / schedule::kLanes;
constexpr std::size_t kPiece = 4096;  // elements that a warp takes at a time

/// Calls body(first, count) for the pieces of n elements that fall to this warp.
template <class Body>
__device__ void each_piece(std::size_t n, const Body& body) {
  for (std::size_t first = warp_in_grid() * kPiece; first < n; first += warps_in_grid() * kPiece)
    body(first, n - first < kPiece ? n - first : kPiece);
}

__global__ void encode_kernel(const float* x, std::size_t n, bool aligned, law::DrawKey key, std::byte* payload) {
  auto* exponents = reinterpret_cast<std::uint32_t*>(payload);
  each_piece(n, [&](std::size_t first, std::size_t count) {
    schedule::natural_encode(DeviceWarp{}, x + first, first, count, aligned, key, exponents, exponents + (n + 3) / 4);
  });
}

/// Elements are their lane's for every payload, so nobody waits in between.
__global__ void decode_kernel(const __grid_constant__ Payloads payloads, std::size_t n, float weight, float* out,
                              bool aligned) {
  each_piece(n, [&](std::size_t first, std::size_t count) {
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

unsigned blocks_for_elements(std::size_t n) {
  return blocks_for(n, kWarps * kPiece);
}

}  // namespace

void natural_encode(Queue<Space::cuda> queue, View<const float, Space::cuda> gradient, const law::DrawKey& key,
                    std::byte* payload) {
  if (gradient.empty()) return;
  launch(queue, "natural encode", encode_kernel, blocks_for_elements(gradient.size()), gradient.data(), gradient.size(),
         aligned_to(gradient.data(), 16), key, payload);
}

void natural_decode_add(Queue<Space::cuda> queue, const Payloads& payloads, float weight,
                        View<float, Space::cuda> out) {
  if (out.empty()) return;
  launch(queue, "natural decode", decode_kernel, blocks_for_elements(out.size()), payloads, out.size(), weight,
         out.data(), aligned_to(out.data(), 16));
}

}  // namespace gradtool::cuda
