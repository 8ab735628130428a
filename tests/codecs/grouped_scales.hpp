#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "lib/codecs/registry.hpp"

namespace gradtool::test {

/// A bucket of 128 pieces for a method that scales by a sum over pieces, in which the order of that sum decides about
/// the last bit of the scale. The first piece, or the first two, give a sum whose scale is halfway between two float32
/// numbers. The last 64 pieces give 2^-54 of it each: too little for one addition in float64, but not for one of all 64
/// together, which moves the scale to the other side.
struct GroupedScale {
  std::string spec;
  std::vector<float> gradient;
  std::size_t offset;  ///< of a float32 of the payload that shows the scale
  float expected;      ///< that float32, where pieces are added 64 at a time
};

/// The name of a case in lists of tests.
inline void PrintTo(const GroupedScale& scale, std::ostream* out) {
  *out << scale.spec;
}

/// Leaves out what is of a method that this build lacks.
inline std::vector<GroupedScale> grouped_scales() {
  constexpr std::size_t kPieces = 128;
  const auto gradient = [](std::size_t piece, std::size_t filled, float first, float others) {
    std::vector<float> x(kPieces * piece);
    std::fill_n(x.data(), filled, first);
    for (std::size_t p = kPieces / 2; p < kPieces; ++p) std::fill_n(x.data() + p * piece, filled, others);
    return x;
  };
  // The largest of the bins of 64 elements: 1 and 2^-24 in the first piece; the mean is over 2^14 bins.
  auto bins = gradient(8192, 1, 1.0F, 0x1p-54F);
  bins[64] = 0x1p-24F;
  // A chunk of equal elements has one coefficient of 64 times their size; the mean is over 2^7 of them.
  auto chunks = gradient(4096, 4096, 0x1p-6F, 0x1p-60F);
  std::fill_n(chunks.data() + 4096, 4096, 0x1p-30F);
  // The norm of 1 is limited to a number in the middle of 0.5 + 2^-24 and 0.5 + 2^-23; that of a little more than 1
  // makes the factor the lower one. Element 0 is sent behind the header of a sparse payload.
  std::vector<GroupedScale> all{
      {"adacomp:other=64", std::move(bins), 8, 0x1.000002p-14F},
      {"demo:k=1,values=sign", std::move(chunks), 0, 0x1.000002p-7F},
      {"dgc:clip=0.500000089406967163", gradient(8192, 1, 1.0F, 0x1p-27F), 16, 0.5F + 0x1p-24F}};
  std::erase_if(all, [](const GroupedScale& scale) {
    return std::none_of(codecs().begin(), codecs().end(),
                        [&](const auto* codec) { return scale.spec.substr(0, scale.spec.find(':')) == codec->name; });
  });
  return all;
}

inline float shown_scale(const std::vector<std::byte>& payload, const GroupedScale& scale) {
  float found = 0.0F;
  if (payload.size() >= scale.offset + sizeof found) std::memcpy(&found, payload.data() + scale.offset, sizeof found);
  return found;
}

}  // namespace gradtool::test
