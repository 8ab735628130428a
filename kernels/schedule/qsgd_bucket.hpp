#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>

#include "kernels/law/qsgd.hpp"
#include "kernels/law/qsgd_layout.hpp"
#include "kernels/schedule/blocks.hpp"

/// qsgd by one warp: a norm over a bucket, then codes (kernels/schedule/block_codes.hpp). The bytes are those of
/// lib/codecs/qsgd.cpp.
namespace gradtool::schedule {

/// Elements [first, first + count) of one bucket, whose codes start at word `first_word`. Pieces are numbered bucket by
/// bucket; of the last bucket's, those behind the end are empty.
struct QsgdPiece {
  std::size_t bucket, first, count, first_word;

  GT_HD static std::size_t per_bucket(const law::QsgdLayout& layout) { return (layout.bucket + kPiece - 1) / kPiece; }
  GT_HD static std::size_t pieces(const law::QsgdLayout& layout) { return layout.buckets() * per_bucket(layout); }
  GT_HD QsgdPiece(const law::QsgdLayout& layout, std::size_t piece) : bucket{piece} {
    std::size_t offset = 0;
    if (layout.bucket > kPiece) {
      bucket = piece / per_bucket(layout);
      offset = piece % per_bucket(layout) * kPiece;
    }
    const std::size_t border = (bucket + 1) * layout.bucket;
    const std::size_t end = border < layout.n ? border : layout.n;
    first = bucket * layout.bucket + offset;
    const std::size_t left = first < end ? end - first : 0;
    count = left < kPiece ? left : kPiece;
    first_word = layout.first_word(bucket) + offset / law::kPackGroup * layout.bits;  // offsets are whole groups
  }
};

/// What is stored as the norm of x[0 .. count), the same in all lanes. `aligned`: x is 16-byte aligned.
template <class Warp>
GT_SCHEDULE float bucket_norm(const Warp& warp, const float* x, std::size_t count, bool l2, bool aligned) {
  if (l2) {
    typename Warp::template Own<float> squares;
    warp.each([&](std::uint32_t lane) {
      float sum = 0.0f;
      for (std::size_t i = lane; i < count; i += kLanes) sum += x[i] * x[i];
      squares[lane] = sum;
    });
    return law::Qsgd::stored_norm(sqrtf(warp.tree_sum(squares)));
  }
  return law::Qsgd::stored_norm(law::float_of(largest_pattern(warp, x, count, aligned)));
}

/// Whole buckets of this size, the usual one, are held in registers.
inline constexpr std::size_t kHeldBucket = 512;

/// The same of a held bucket. `room`: kWindow words, 16-byte aligned, shared by the lanes.
template <std::uint32_t Windows, class Warp>
GT_SCHEDULE float bucket_norm(const Warp& warp, const Held<Windows, Warp>& held, bool l2, std::uint32_t* room) {
  if (!l2) return law::Qsgd::stored_norm(law::float_of(largest_pattern(warp, held)));
  typename Warp::template Own<float> squares;
  warp.each([&](std::uint32_t lane) { squares[lane] = 0.0f; });
  GT_UNROLL
  for (std::uint32_t w = 0; w < Windows; ++w) {  // a lane adds every 32nd element: through the room
    warp.each([&](std::uint32_t lane) {
      Four<std::uint32_t> bits;
      for (std::uint32_t i = 0; i < 4; ++i) bits.value[i] = law::bits_of(held.window[w][lane].value[i]);
      *reinterpret_cast<Four<std::uint32_t>*>(room + 4 * lane) = bits;
    });
    warp.each([&](std::uint32_t lane) {
      GT_UNROLL
      for (std::uint32_t i = lane; i < kWindow; i += kLanes) {
        const float x = law::float_of(room[i]);
        squares[lane] += x * x;
      }
    });
  }
  return law::Qsgd::stored_norm(sqrtf(warp.tree_sum(squares)));
}

}  // namespace gradtool::schedule
