#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>

#include "kernels/law/bitpack.hpp"
#include "kernels/law/philox.hpp"
#include "kernels/law/qsgd.hpp"
#include "kernels/law/qsgd_layout.hpp"
#include "kernels/schedule/warp.hpp"

/// qsgd by one warp: a norm over a bucket, then windows of 128 elements, four neighbours for every lane because one
/// Philox counter draws for four. The bytes are those of lib/codecs/qsgd.cpp.
namespace gradtool::schedule {

inline constexpr std::uint32_t kWindow = 4 * kLanes;

/// A warp takes at most this many elements of a bucket at a time, so that a few large buckets fill a GPU too.
inline constexpr std::size_t kPiece = 4096;
static_assert(kPiece % kWindow == 0);

/// Elements [first, first + count) of one bucket, whose codes start at word `first_word`. Pieces are numbered bucket by
/// bucket; of the last bucket's, those behind the end are empty.
struct QsgdPiece {
  std::size_t bucket, first, count, first_word;

  GT_HD static std::size_t per_bucket(const law::QsgdLayout& layout) { return (layout.bucket + kPiece - 1) / kPiece; }
  GT_HD static std::size_t pieces(const law::QsgdLayout& layout) { return layout.buckets() * per_bucket(layout); }
  GT_HD QsgdPiece(const law::QsgdLayout& layout, std::size_t piece) : bucket{piece / per_bucket(layout)} {
    const std::size_t offset = piece % per_bucket(layout) * kPiece;
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
  typename Warp::template Own<std::uint32_t> largest;
  warp.each([&](std::uint32_t lane) {
    std::uint32_t most = 0;
    const auto see = [&](float value) {
      const std::uint32_t pattern = law::bits_of(value) & 0x7fffffffu;
      most = pattern > most ? pattern : most;
    };
    const std::size_t fours = aligned ? count / 4 : 0;
    for (std::size_t i = lane; i < fours; i += kLanes) {
      const auto four = reinterpret_cast<const Four<float>*>(x)[i];
      for (const float value : four.value) see(value);
    }
    for (std::size_t i = 4 * fours + lane; i < count; i += kLanes) see(x[i]);
    largest[lane] = most;
  });
  return law::Qsgd::stored_norm(law::float_of(warp.max(largest)));
}

/// Codes of x[0 .. count) into `words`. Element 0 has index `first` in the gradient (a multiple of 32). `codes` is room
/// for one window, 16-byte aligned, shared by the lanes.
template <std::uint32_t Bits, class Warp>
GT_SCHEDULE void encode_elements(const Warp& warp, const float* x, std::size_t first, std::size_t count, bool aligned,
                                 float factor, const law::DrawKey& key, std::uint32_t* codes, std::uint32_t* words) {
  const law::Qsgd qsgd = law::Qsgd::with_bits(Bits);
  for (std::size_t window = 0; window < count; window += kWindow) {
    const auto here = static_cast<std::uint32_t>(count - window < kWindow ? count - window : kWindow);
    warp.each([&](std::uint32_t lane) {
      const std::uint32_t at = 4 * lane;
      if (at >= here) return;
      const law::Draws draws = law::draw4(key, (first + window + at) / 4);
      const float* from = x + window + at;
      Four<float> four{};
      if (aligned && at + 4 <= here) {
        four = *reinterpret_cast<const Four<float>*>(from);
      } else {
        for (std::uint32_t i = 0; i < 4 && at + i < here; ++i) four.value[i] = from[i];
      }
      Four<std::uint32_t> code;
      for (std::uint32_t i = 0; i < 4; ++i) {
        code.value[i] = qsgd.encode(factor, four.value[i], law::uniform(draws.bits[i]));
      }
      *reinterpret_cast<Four<std::uint32_t>*>(codes + at) = code;
    });
    warp.each([&](std::uint32_t lane) {
      constexpr auto kGroup = static_cast<std::uint32_t>(law::kPackGroup);
      const auto out = static_cast<std::uint32_t>(law::packed_words(here, Bits));
      for (std::uint32_t w = lane; w < out; w += kLanes) {
        const std::uint32_t group = w / Bits * kGroup;
        const std::uint32_t in_group = here - group < kGroup ? here - group : kGroup;
        words[window / kGroup * Bits + w] = law::packed_word(codes + group, in_group, Bits, w % Bits);
      }
    });
  }
}

/// out[0 .. count) += weight * decoded. `words` starts at a group; `aligned`: out is 16-byte aligned.
template <std::uint32_t Bits, class Warp>
GT_SCHEDULE void decode_elements(const Warp& warp, const std::uint32_t* words, std::size_t count, float factor,
                                 float weight, float* out, bool aligned) {
  const law::Qsgd qsgd = law::Qsgd::with_bits(Bits);
  warp.each([&](std::uint32_t lane) {
    for (std::size_t at = 4 * std::size_t{lane}; at < count; at += kWindow) {
      // Four codes are at most 32 bits, so they lie in two neighbouring words of their group.
      const std::size_t group = at / law::kPackGroup;
      const std::size_t left = count - group * law::kPackGroup;
      const std::size_t available = law::packed_words(left < law::kPackGroup ? left : law::kPackGroup, Bits);
      const auto bit = static_cast<std::uint32_t>(at % law::kPackGroup) * Bits;
      const std::uint32_t* from = words + group * Bits;
      std::uint64_t two = from[bit / 32];
      if (bit / 32 + 1 < available) two |= static_cast<std::uint64_t>(from[bit / 32 + 1]) << 32;
      two >>= bit % 32;
      float value[4];
      for (std::uint32_t i = 0; i < 4; ++i) {
        value[i] = weight * qsgd.decode(factor, static_cast<std::uint32_t>(two >> (i * Bits)) & ((1u << Bits) - 1u));
      }
      if (aligned && at + 4 <= count) {
        auto& to = *reinterpret_cast<Four<float>*>(out + at);
        Four<float> four = to;
        for (std::uint32_t i = 0; i < 4; ++i) four.value[i] += value[i];
        to = four;
      } else {
        for (std::uint32_t i = 0; i < 4 && at + i < count; ++i) out[at + i] += value[i];
      }
    }
  });
}

}  // namespace gradtool::schedule
