#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/law/vgc.hpp"
#include "lib/core/view.hpp"

/// A step of vgc on the GPU, the bytes of lib/codecs/vgc.cpp. Enqueued; nothing allocates.
namespace gradtool::cuda {

/// What a warp takes at a time: at most kVgcTile elements of one group.
struct VgcTile {
  std::size_t first = 0;
  std::uint32_t count = 0;
  std::uint32_t group = 0;
  std::uint32_t first_index = 0;  ///< of the tile, in its group
};
inline constexpr std::size_t kVgcTile = 2048;

/// Groups in a row, and one behind the last.
struct VgcGroup {
  std::size_t first = 0, elements = 0;
  std::size_t first_tile = 0;
};

/// How a unit is cut, on the device, and where a payload has what.
struct VgcCut {
  const VgcTile* tiles = nullptr;
  const VgcGroup* groups = nullptr;  ///< group_count + 1
  std::size_t tile_count = 0, group_count = 0;
  std::size_t counts_offset = 0, exponents_offset = 0, words_offset = 0;
};

/// Scratch of a step and of decoding. Asks the current GPU, so call it before the clock starts.
[[nodiscard]] std::size_t vgc_scratch_bytes(std::size_t tiles, std::size_t groups);

/// r and v of a rank take up the gradient and its squares, or `moment` where that is not null.
struct VgcStep {
  law::Vgc law;
  bool over_all = false;  ///< the largest of a group is that of all, not of those that are sent
  bool keeps_dropped = false;
  const float* gradient = nullptr;
  const float* moment = nullptr;
  float *r = nullptr, *v = nullptr;
  const float* values = nullptr;  ///< what words are made from: r, or the gradient at the first step
};
void vgc_encode(Queue<Space::cuda> queue, const VgcCut& cut, const VgcStep& step, std::byte* payload,
                View<std::byte, Space::cuda> scratch);

/// out += weight * decoded, for a payload of at least cut.words_offset bytes, which may be shorter than its view. One
/// that contradicts itself makes all of `out` NaN; words that reach too far are skipped. `elements`: of all groups.
void vgc_decode_add(Queue<Space::cuda> queue, const VgcCut& cut, const law::Vgc& law,
                    View<const std::byte, Space::cuda> payload, float weight, std::size_t elements, float* out,
                    View<std::byte, Space::cuda> scratch);

}  // namespace gradtool::cuda
