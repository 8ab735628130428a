#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/law/elias.hpp"
#include "kernels/law/hd.hpp"

namespace gradtool::law {

/// Where things lie in a qsgd payload with code=elias: its size (8 bytes), ceil(n/bucket) float32 norms, the bits of
/// each part's stream (4 bytes), and the streams, each padded to whole words. A part is some whole buckets.
struct QsgdStreams {
  std::size_t n;
  std::size_t bucket;    ///< a multiple of 32
  std::uint32_t levels;  ///< the largest level

  [[nodiscard]] GT_HD std::size_t part() const {
    constexpr std::size_t kPart = 1 << 14;
    return bucket > kPart ? bucket : kPart / bucket * bucket;
  }
  [[nodiscard]] GT_HD std::size_t parts() const { return (n + part() - 1) / part(); }
  [[nodiscard]] GT_HD std::size_t buckets() const { return (n + bucket - 1) / bucket; }
  [[nodiscard]] GT_HD static std::size_t norms_offset() { return sizeof(std::uint64_t); }
  [[nodiscard]] GT_HD std::size_t bits_offset() const { return norms_offset() + 4 * buckets(); }
  [[nodiscard]] GT_HD std::size_t streams_offset() const { return bits_offset() + 4 * parts(); }
  [[nodiscard]] GT_HD static std::size_t stream_bytes(std::uint32_t bits) { return (std::size_t{bits} + 31) / 32 * 4; }
  /// Every element sent: a bit for its gap, its sign, the largest level. No stream is longer, since a gap of g > 1
  /// costs at most g times what a gap of one and the elements that it skips would.
  [[nodiscard]] GT_HD std::size_t slot_bytes() const {
    return stream_bytes(static_cast<std::uint32_t>(part() * (2 + elias_delta_bits(levels))));
  }
  [[nodiscard]] GT_HD std::size_t most_bytes() const { return streams_offset() + parts() * slot_bytes(); }
};

}  // namespace gradtool::law
