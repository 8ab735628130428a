#include <cuda_runtime.h>

#include "kernels/cuda/atomo.hpp"
#include "kernels/cuda/grid.hpp"
#include "kernels/cuda/launch.hpp"

namespace gradtool::cuda {
namespace {

/// One thread. places[table.count + 1] := whether the payload is one: its counts, its size and the view agree.
__global__ void locate_kernel(AtomoTable table, const std::byte* payload, std::size_t bytes, std::uint64_t* places) {
  if (threadIdx.x != 0) return;
  const auto* counts = reinterpret_cast<const std::uint32_t*>(payload + 8);
  std::uint64_t at = 0;
  bool sound = true;
  for (std::size_t p = 0; p < table.count; ++p) {
    const AtomoPart& part = table.parts[p];
    places[p] = at;
    if (part.rows == 0) {
      at += part.elements;
      continue;
    }
    const std::uint32_t count = counts[part.factored];
    sound = sound && count <= part.order();
    at += sound ? count * part.triplet() : 0;
  }
  const std::uint64_t expected = table.header_bytes() + 4 * at;
  places[table.count] = at;
  places[table.count + 1] =
      sound && expected <= bytes && *reinterpret_cast<const std::uint64_t*>(payload) == expected ? 1 : 0;
}

__global__ void add_kernel(AtomoTable table, const std::byte* payload, float weight, float* out,
                           const std::uint64_t* places) {
  const AtomoTile tile = table.tiles[blockIdx.x];
  const AtomoPart part = table.parts[tile.part];
  float* to = out + part.first + tile.first;
  const bool sound = places[table.count + 1] != 0;
  const float* values = reinterpret_cast<const float*>(payload + table.header_bytes()) + places[tile.part];
  const std::uint32_t count =
      part.rows == 0 || !sound ? 0 : reinterpret_cast<const std::uint32_t*>(payload + 8)[part.factored];
  const auto columns = static_cast<std::uint32_t>(part.columns);
  for (std::uint32_t e = threadIdx.x; e < tile.count; e += kThreads) {
    if (!sound) {
      to[e] = __uint_as_float(0x7fc00000u);
      continue;
    }
    const std::uint64_t element = tile.first + e;
    if (part.rows == 0) {
      to[e] += weight * values[element];
      continue;
    }
    const auto i = static_cast<std::uint32_t>(static_cast<std::uint32_t>(element) / columns);
    const std::uint32_t k = static_cast<std::uint32_t>(element) - i * columns;
    float sum = to[e];
    const float* triplet = values;
    for (std::uint32_t t = 0; t < count; ++t, triplet += part.triplet()) {
      const float factor = weight * (triplet[0] * triplet[1 + i]);
      sum += factor * triplet[1 + part.rows + k];
    }
    to[e] = sum;
  }
}

}  // namespace

void add_atoms(Queue<Space::cuda> queue, const AtomoTable& table, View<const std::byte, Space::cuda> payload,
               float weight, float* out, std::uint64_t* places) {
  launch(queue, "atomo locate", locate_kernel, {1, 32}, table, payload.data(), payload.size(), places);
  launch(queue, "atomo add", add_kernel, static_cast<unsigned>(table.tiles_count), table, payload.data(), weight, out,
         places);
}

}  // namespace gradtool::cuda
