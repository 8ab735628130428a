// DynamiQ's quantiser on the CPU.
#include <algorithm>
#include <cstring>

#include "kernels/pack_codes.hpp"
#include "lib/codecs/payload.hpp"
#include "lib/methods/dynamiq/quantiser.hpp"

namespace gradtool {
namespace {

using format::kDynamiqGroup;
using format::kDynamiqSuper;

constexpr std::size_t kGroups = kDynamiqSuper / kDynamiqGroup;  ///< of a whole super-group
constexpr std::size_t kGrain = 32;                              ///< super-groups that are worth a thread

/// A super-group, padded with zeros to a whole one.
struct Tile {
  alignas(64) float x[kDynamiqSuper];
  alignas(64) float u[kDynamiqSuper];
  alignas(64) std::uint32_t own[kDynamiqSuper];
  alignas(64) std::uint32_t shared[kDynamiqSuper];
  alignas(64) std::uint8_t codes[kDynamiqSuper];
  alignas(64) std::uint32_t of_groups[host::kDrawGroup];
  float largest[kGroups];
};
/// Super-groups whose groups' draws are made together.
constexpr std::size_t kDrawnAhead = host::kDrawGroup / kGroups;

/// Lane k adds up elements k, k + 16, ..., of x or of its squares; then lanes are added by halves.
template <bool Squares>
GT_SIMD_CLONES float sum_of(const float* x) {
  float lane[kDynamiqGroup] = {};
  for (std::size_t i = 0; i < kDynamiqSuper; i += kDynamiqGroup) {
    for (std::size_t k = 0; k < kDynamiqGroup; ++k) lane[k] += Squares ? x[i + k] * x[i + k] : x[i + k];
  }
  for (std::size_t half = kDynamiqGroup / 2; half > 0; half /= 2) {
    for (std::size_t k = 0; k < half; ++k) lane[k] += lane[k + half];
  }
  return lane[0];
}

GT_SIMD_CLONES void largest_of_groups(Tile& tile) {
  for (std::size_t g = 0; g < kGroups; ++g) {
    std::uint32_t largest = 0;  // patterns without the sign bit are ordered as magnitudes are, NaN above all
    for (std::size_t i = 0; i < kDynamiqGroup; ++i)
      largest = std::max(largest, format::bits_of(tile.x[kDynamiqGroup * g + i]) & 0x7fffffffU);
    tile.largest[g] = format::float_of(largest);
  }
}

GT_SIMD_CLONES void uniforms(Tile& tile, std::uint32_t place, std::uint32_t ranks) {
  for (std::size_t i = 0; i < kDynamiqSuper; ++i)
    tile.u[i] = format::dynamiq_uniform(tile.shared[i], tile.own[i], place, ranks);
}

// Each step of a quantiser works on a whole group before the next one begins, so that the compiler makes vectors of all
// of them; it guesses branches wrong otherwise, and takes stores of codes for changes of the tables.
struct Lanes {
  float share[kDynamiqGroup];
  float low[kDynamiqGroup];
  float high[kDynamiqGroup];
  std::uint32_t r[kDynamiqGroup];
};

[[gnu::always_inline]] inline void shares_of(const Tile& tile, std::size_t g, Lanes& lanes) {
  const float largest = tile.largest[g] > 0.0F ? tile.largest[g] : 1.0F;
  for (std::size_t i = 0; i < kDynamiqGroup; ++i)
    lanes.share[i] = format::float_of(format::bits_of(tile.x[kDynamiqGroup * g + i]) & 0x7fffffffU) / largest;
}
template <std::uint32_t Bits>
[[gnu::always_inline]] inline void codes_of(Tile& tile, std::size_t g, const Lanes& lanes) {
  std::uint32_t codes[kDynamiqGroup];
  for (std::size_t i = 0; i < kDynamiqGroup; ++i) {
    const std::size_t k = kDynamiqGroup * g + i;
    codes[i] =
        format::dynamiq_code<Bits>(tile.x[k], lanes.share[i], tile.u[k], lanes.r[i], lanes.low[i], lanes.high[i]);
  }
  for (std::size_t i = 0; i < kDynamiqGroup; ++i)
    tile.codes[kDynamiqGroup * g + i] = static_cast<std::uint8_t>(codes[i]);
}

/// Level by level.
template <std::uint32_t Bits>
GT_SIMD_CLONES void quantise(Tile& tile, const format::DynamiqLevels<Bits>& levels) {
  Lanes lanes;
  for (std::size_t g = 0; g < kGroups; ++g) {
    shares_of(tile, g, lanes);
    for (std::size_t i = 0; i < kDynamiqGroup; ++i) {
      lanes.low[i] = 0.0F;
      lanes.high[i] = levels.magnitude[1];
      lanes.r[i] = 0;
    }
    for (std::uint32_t k = 1; k < levels.kTop; ++k) {
      const float level = levels.magnitude[k];
      const float next = levels.magnitude[k + 1];
      for (std::size_t i = 0; i < kDynamiqGroup; ++i) {
        const bool above = lanes.share[i] >= level;
        lanes.r[i] = above ? k : lanes.r[i];
        lanes.low[i] = above ? level : lanes.low[i];
        lanes.high[i] = above ? next : lanes.high[i];
      }
    }
    codes_of<Bits>(tile, g, lanes);
  }
}

/// With a guide to levels of 8 bits.
GT_SIMD_CLONES void quantise_8(Tile& tile, const format::DynamiqLevels<8>& levels, const std::uint32_t* guide) {
  Lanes lanes;
  for (std::size_t g = 0; g < kGroups; ++g) {
    shares_of(tile, g, lanes);
    for (std::size_t i = 0; i < kDynamiqGroup; ++i) {
      const std::uint32_t r = guide[static_cast<std::int32_t>(lanes.share[i] * 256.0F)];
      const auto above = static_cast<std::uint32_t>(lanes.share[i] >= levels.magnitude[r + 1]);
      lanes.r[i] = r + (above & static_cast<std::uint32_t>(r + 2 <= levels.kTop));
    }
    for (std::size_t i = 0; i < kDynamiqGroup; ++i) {
      lanes.low[i] = levels.magnitude[lanes.r[i]];
      lanes.high[i] = levels.magnitude[lanes.r[i] + 1];
    }
    codes_of<8>(tile, g, lanes);
  }
}

/// out[i] := base + weight times element i, or out[i] += it.
template <bool Add>
GT_SIMD_CLONES void put_values(const std::uint8_t* codes, std::size_t count, const float* value, const float* units,
                               float base, float weight, float* out) {
  for (std::size_t i = 0; i < count; ++i)
    out[i] = (Add ? out[i] : base) + weight * (value[codes[i]] * units[i / kDynamiqGroup]);
}

}  // namespace

HostDynamiq::HostDynamiq(std::size_t n, double bits, bool uniform, std::size_t ranks, Queue<Space::host> /*queue*/)
    : DynamiqRing{n, bits, ranks},
      tables_{format::DynamiqTables::make(uniform)},
      widths_(super_groups(), std::uint8_t{2}),
      offsets_(widths_.size() + 1) {
  const auto& eight = tables_.eight;
  for (std::uint32_t i = 0, r = 0; i <= 256; ++i) {
    while (r + 1 < eight.kTop && eight.magnitude[r + 1] <= static_cast<float>(i) / 256.0F) ++r;
    guide_.push_back(r);
  }
}

void HostDynamiq::statistics(Queue<Space::host> queue, HostView<const float> values, HostView<std::uint16_t> means,
                             HostView<std::uint16_t> squares) const {
  parallel_for(queue, super_groups(), 1, kGrain, [&](std::size_t begin, std::size_t end) {
    Tile tile;
    for (std::size_t j = begin; j < end; ++j) {
      const std::size_t first = kDynamiqSuper * j;
      const std::size_t count = shape_.elements_of(j);
      std::memcpy(tile.x, values.data() + first, 4 * count);
      std::memset(tile.x + count, 0, 4 * (kDynamiqSuper - count));
      means[j] = format::bf16_from_f32(format::one_nan(sum_of<false>(tile.x) / static_cast<float>(count)));
      squares[j] = format::bf16_from_f32(format::one_nan(sum_of<true>(tile.x)));
    }
  });
}

void HostDynamiq::set_widths(Queue<Space::host> /*queue*/, HostView<const std::uint16_t> squares) {
  const auto cost = [&](format::DynamiqWidths widths) {
    std::uint64_t words = 0;
    for (std::size_t j = 0; j < super_groups(); ++j) words += widths.of(squares[j]) * shape_.packs(j);
    return static_cast<std::int64_t>(words);
  };
  std::uint32_t low = 0;  // the least choice that the budget has room for lies in [low, high], if there is one
  std::uint32_t high = format::DynamiqWidths::kChoices - 1;
  while (low < high) {
    const std::uint32_t middle = (low + high) / 2;
    if (cost(format::DynamiqWidths::choice(middle)) <= shape_.budget)
      high = middle;
    else
      low = middle + 1;
  }
  const auto widths = format::DynamiqWidths::choice(low);
  for (std::size_t j = 0; j < super_groups(); ++j) {
    widths_[j] = static_cast<std::uint8_t>(widths.of(squares[j]));
    offsets_[j + 1] = offsets_[j] + widths_[j] * shape_.packs(j);
  }
  for (std::size_t i = 0; i <= ranks_; ++i) starts_[i] = offsets_[i < ranks_ ? part(i).first : super_groups()];
}

void HostDynamiq::remove_means(Queue<Space::host> queue, HostView<const std::uint16_t> means,
                               HostView<float> values) const {
  parallel_for(queue, means.size(), 1, kGrain, [&](std::size_t begin, std::size_t end) {
    for (std::size_t j = begin; j < end; ++j) {
      const float mean = format::f32_from_bf16(means[j]) * share();
      const std::size_t last = shape_.elements_before(j + 1);
      for (std::size_t i = kDynamiqSuper * j; i < last; ++i) values[i] -= mean;
    }
  });
}

void HostDynamiq::encode(Queue<Space::host> queue, HostView<const float> values, std::size_t i,
                         const DynamiqRounding& rounding, HostView<std::byte> payload) const {
  const DynamiqPart part = this->part(i);
  auto* scales = section<std::uint16_t>(payload);
  auto* group_codes = section<std::uint8_t>(payload, part.group_codes);
  auto* words = section<std::uint32_t>(payload, part.codes);
  std::memset(scales + part.count, 0, part.group_codes - 2 * part.count);
  std::memset(group_codes + part.groups, 0, part.codes - part.group_codes - part.groups);
  const format::DrawKey shared = format::shared_by_ranks(rounding.key);
  const std::uint64_t behind = super_groups() * kDynamiqSuper;  // draws of groups follow those of elements
  parallel_for(queue, part.count, 1, kGrain, [&](std::size_t begin, std::size_t end) {
    Tile tile;
    std::memset(tile.shared, 0, sizeof tile.shared);
    for (std::size_t s = begin; s < end; ++s) {
      const std::size_t j = part.first + s;
      const std::size_t first = kDynamiqSuper * j;
      const std::size_t count = shape_.elements_of(j);
      std::memcpy(tile.x, values.data() + first, 4 * count);
      std::memset(tile.x + count, 0, 4 * (kDynamiqSuper - count));
      largest_of_groups(tile);
      std::uint32_t largest = 0;
      for (const float group : tile.largest) largest = std::max(largest, format::bits_of(group));
      scales[s] = format::dynamiq_scale(format::float_of(largest));
      const float scale = format::f32_from_bf16(scales[s]);
      const std::size_t groups = (count + kDynamiqGroup - 1) / kDynamiqGroup;
      if ((s - begin) % kDrawnAhead == 0)
        host::draw_tile(rounding.key, behind + kGroups * j, kGroups * kDrawnAhead, tile.of_groups);
      const std::uint32_t* draws = tile.of_groups + kGroups * ((s - begin) % kDrawnAhead);
      for (std::size_t g = 0; g < groups; ++g)
        group_codes[kGroups * s + g] = format::dynamiq_group_code(tile.largest[g], scale, draws[g]);
      std::uint32_t* out = words + (offsets_[j] - starts_[i]);
      if (!(scale >= 0.0F)) {  // not a number: so is all that is decoded
        std::memset(out, 0, 4 * (offsets_[j + 1] - offsets_[j]));
        continue;
      }
      host::draw_tile(rounding.key, first, kDynamiqSuper, tile.own);
      if (rounding.ranks > 1) host::draw_tile(shared, first, kDynamiqSuper, tile.shared);
      uniforms(tile, rounding.place, rounding.ranks);
      const std::size_t packs = shape_.packs(j);  // codes behind the last element are zero
      switch (widths_[j]) {
        case 2:
          quantise<2>(tile, tables_.two);
          host::pack_codes<2>(tile.codes, packs, out);
          break;
        case 4:
          quantise<4>(tile, tables_.four);
          host::pack_codes<4>(tile.codes, packs, out);
          break;
        default:
          quantise_8(tile, tables_.eight, guide_.data());
          host::pack_codes<8>(tile.codes, packs, out);
      }
    }
  });
}

template <class Put>
void HostDynamiq::decode(Queue<Space::host> queue, HostView<const std::byte> payload, std::size_t i,
                         const Put& put) const {
  expect_length("dynamiq", payload.size(), payload_bytes(i));
  const DynamiqPart part = this->part(i);
  const auto* scales = section<std::uint16_t>(payload);
  const auto* group_codes = section<std::uint8_t>(payload, part.group_codes);
  const auto* words = section<std::uint32_t>(payload, part.codes);
  parallel_for(queue, part.count, 1, kGrain, [&](std::size_t begin, std::size_t end) {
    alignas(64) std::uint8_t codes[kDynamiqSuper];
    float units[kGroups];
    for (std::size_t s = begin; s < end; ++s) {
      const std::size_t j = part.first + s;
      const std::size_t count = shape_.elements_of(j);
      const float scale = format::f32_from_bf16(scales[s]);
      for (std::size_t g = 0; kDynamiqGroup * g < count; ++g)
        units[g] = format::dynamiq_group_scale(group_codes[kGroups * s + g], scale);
      const std::uint32_t* in = words + (offsets_[j] - starts_[i]);
      switch (widths_[j]) {
        case 2:
          host::read_codes<2>(in, count, codes);
          put(j, codes, count, tables_.two.value, units);
          break;
        case 4:
          host::read_codes<4>(in, count, codes);
          put(j, codes, count, tables_.four.value, units);
          break;
        default:
          host::read_codes<8>(in, count, codes);
          put(j, codes, count, tables_.eight.value, units);
      }
    }
  });
}

void HostDynamiq::add(Queue<Space::host> queue, HostView<const std::byte> payload, std::size_t i,
                      HostView<float> values) const {
  decode(queue, payload, i,
         [&](std::size_t j, const std::uint8_t* codes, std::size_t count, const float* value, const float* units) {
           put_values<true>(codes, count, value, units, 0.0F, 1.0F, values.data() + kDynamiqSuper * j);
         });
}

void HostDynamiq::finish(Queue<Space::host> queue, HostView<const std::byte> payload, std::size_t i,
                         HostView<const std::uint16_t> means, HostView<float> values) const {
  decode(queue, payload, i,
         [&](std::size_t j, const std::uint8_t* codes, std::size_t count, const float* value, const float* units) {
           put_values<false>(codes, count, value, units, format::f32_from_bf16(means[j]) * share(), share(),
                             values.data() + kDynamiqSuper * j);
         });
}

}  // namespace gradtool
