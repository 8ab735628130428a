// THC on the CPU: parameters, the Hadamard transform, and the steps of the reducer.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "kernels/draws.hpp"
#include "kernels/float_bits.hpp"
#include "kernels/pack_codes.hpp"
#include "kernels/sums.hpp"
#include "lib/codecs/payload.hpp"
#include "lib/codecs/registry.hpp"
#include "lib/core/task_pool.hpp"
#include "lib/methods/thc/format.hpp"
#include "lib/methods/thc/reducer.hpp"

namespace gradtool {
namespace {

constexpr std::size_t kBlock = format::kThcBlock;
constexpr std::size_t kSide = 32;  ///< of a block as a square matrix

/// Two stages of butterflies at once, between rows of a 32 by 32 matrix that are h, 2h and 3h apart.
inline void four_rows(float* x, std::size_t h) {
  for (std::size_t base = 0; base < kSide; base += 4 * h) {
    for (std::size_t row = base; row < base + h; ++row) {
      float* a = x + kSide * row;
      for (std::size_t l = 0; l < kSide; ++l) {
        float* column = a + l;
        const float s0 = column[0] + column[kSide * h];
        const float d0 = column[0] - column[kSide * h];
        const float s1 = column[2 * kSide * h] + column[3 * kSide * h];
        const float d1 = column[2 * kSide * h] - column[3 * kSide * h];
        column[0] = s0 + s1;
        column[kSide * h] = d0 + d1;
        column[2 * kSide * h] = s0 - s1;
        column[3 * kSide * h] = d0 - d1;
      }
    }
  }
}

/// out := H32 X for a 32 by 32 matrix X, which is overwritten.
inline void transform_columns(float* __restrict x, float* __restrict out) {
  four_rows(x, 1);
  four_rows(x, 4);
  constexpr std::size_t kHalf = kBlock / 2;
  for (std::size_t i = 0; i < kHalf; ++i) {
    out[i] = x[i] + x[kHalf + i];
    out[kHalf + i] = x[i] - x[kHalf + i];
  }
}

/// to := the transpose of a 32 by 32 matrix. Written with shuffles of 4 by 4 corners, because compilers would otherwise
/// move one number at a time.
inline void transpose(const float* __restrict from, float* __restrict to) {
#if defined(__GNUC__) && __has_builtin(__builtin_shufflevector)
  using Four = float __attribute__((vector_size(16)));
  for (std::size_t r = 0; r < kSide; r += 4) {
    for (std::size_t c = 0; c < kSide; c += 4) {
      std::array<Four, 4> in;
      for (std::size_t i = 0; i < 4; ++i) std::memcpy(&in[i], from + kSide * (r + i) + c, sizeof(Four));
      const Four low01 = __builtin_shufflevector(in[0], in[1], 0, 4, 1, 5);
      const Four high01 = __builtin_shufflevector(in[0], in[1], 2, 6, 3, 7);
      const Four low23 = __builtin_shufflevector(in[2], in[3], 0, 4, 1, 5);
      const Four high23 = __builtin_shufflevector(in[2], in[3], 2, 6, 3, 7);
      const std::array<Four, 4> out{
          __builtin_shufflevector(low01, low23, 0, 1, 4, 5), __builtin_shufflevector(low01, low23, 2, 3, 6, 7),
          __builtin_shufflevector(high01, high23, 0, 1, 4, 5), __builtin_shufflevector(high01, high23, 2, 3, 6, 7)};
      for (std::size_t i = 0; i < 4; ++i) std::memcpy(to + kSide * (c + i) + r, &out[i], sizeof(Four));
    }
  }
#else
  for (std::size_t r = 0; r < kSide; ++r) {
    for (std::size_t c = 0; c < kSide; ++c) to[kSide * c + r] = from[kSide * r + c];
  }
#endif
}

}  // namespace

namespace host {

GT_SIMD_CLONES void hadamard_block(float* x) {
  alignas(64) std::array<float, kBlock> half;
  alignas(64) std::array<float, kBlock> transposed;
  transform_columns(x, half.data());
  transpose(half.data(), transposed.data());
  transform_columns(transposed.data(), x);
}

void hadamard(float* x, std::size_t size) {
  for (std::size_t h = 1; h < size; h *= 2) {
    for (std::size_t base = 0; base < size; base += 2 * h) {
      for (std::size_t i = base; i < base + h; ++i) {
        const float sum = x[i] + x[i + h];
        const float difference = x[i] - x[i + h];
        x[i] = sum;
        x[i + h] = difference;
      }
    }
  }
}

}  // namespace host

namespace {

constexpr std::size_t kGroup = format::kPackGroup;
constexpr std::size_t kGroupsAtOnce = 32;  ///< groups whose codes are unpacked together

/// to := factor * from, with the sign of element i changed where bit i of `signs` is set.
GT_SIMD_CLONES void turn_signs(const float* __restrict from, float factor, const std::uint32_t* __restrict signs,
                               std::size_t count, float* __restrict to) {
  const auto turn = [&](std::size_t i, std::uint32_t j) {
    to[i + j] = format::thc_turned(from[i + j], factor, *signs >> j);
  };
  std::size_t i = 0;
  for (; i + 32 <= count; i += 32, ++signs) {
    for (std::uint32_t j = 0; j < 32; ++j) turn(i, j);
  }
  for (std::uint32_t j = 0; i + j < count; ++j) turn(i, j);
}

/// codes := those of x * factor; x := what they do not represent, in steps of the scale. Works on whole chunks of 128
/// elements. Codes are narrowed to bytes in a loop of their own, because the first loop would not be vectorised with
/// it.
template <std::uint32_t Bits>
GT_SIMD_CLONES void quantise(const format::ThcTable<Bits>& original, float* __restrict x, float factor,
                             const std::uint32_t* __restrict draws, std::size_t count, std::uint8_t* __restrict codes) {
  const format::ThcTable<Bits> table = original;  // a copy, which no store can change
  const float middle = 0.5F * table.top;
  constexpr std::size_t kChunk = host::kDrawGroup;
  std::array<std::uint32_t, kChunk> code;
  for (std::size_t first = 0; first < count; first += kChunk) {
    for (std::size_t i = 0; i < kChunk; ++i) {
      const float place = x[first + i] * factor + middle;
      const format::ThcCode c =
          format::thc_encode(table, format::thc_clamp(place, table.top), format::uniform(draws[first + i]));
      code[i] = c.code;
      x[first + i] = place - c.value;
    }
    for (std::size_t i = 0; i < kChunk; ++i) codes[first + i] = static_cast<std::uint8_t>(code[i]);
  }
}

/// x := (lanes - middle) * factor.
template <class Lane>
GT_SIMD_CLONES void widen(const Lane* lanes, float middle, float factor, std::size_t count, float* x) {
  for (std::size_t i = 0; i < count; ++i) x[i] = (static_cast<float>(lanes[i]) - middle) * factor;
}

/// Transforms a block. Applied twice it gives size * x, so the same function rotates to and fro.
void rotate(float* x, std::size_t size) {
  if (size == kBlock)
    host::hadamard_block(x);
  else
    host::hadamard(x, size);
}

/// The steps of ThcReducer on the CPU.
struct HostSteps {
  static void signs(Queue<Space::host> /*queue*/, const format::DrawKey& key, HostView<std::uint32_t> signs) {
    for (std::size_t w = 0; w < signs.size(); ++w) signs[w] = format::draw4(key, w / 4).bits[w % 4];
  }

  static void norm(Queue<Space::host> queue, HostView<const float> u, float* norm, HostView<double> squares) {
    parallel_for(queue, squares.size(), 1, 4, [&](std::size_t from, std::size_t to) {
      for (std::size_t c = from; c < to; ++c) {
        const std::size_t first = c * format::kSumChunk;
        squares[c] = host::moments_of(u.data() + first, std::min(format::kSumChunk, u.size() - first)).squares;
      }
    });
    format::GroupedSum sum;
    for (const double square : squares.span()) sum.add(square);
    *norm = format::one_nan(static_cast<float>(std::sqrt(sum.value())));
  }

  template <std::uint32_t Bits>
  static void encode(Queue<Space::host> queue, const format::ThcShape& shape, const format::ThcTable<Bits>& table,
                     HostView<const float> u, const float* norms, const std::uint32_t* signs,
                     const format::DrawKey& key, HostView<std::byte> codes, HostView<float> residual) {
    const double steps = format::thc_steps_per_unit(shape, table, format::thc_agreed_norm(norms, shape.ranks));
    auto* words = section<std::uint32_t>(codes);
    parallel_for(queue, shape.blocks(), 1, 16, [&](std::size_t from, std::size_t to) {
      alignas(64) std::array<float, kBlock> x{};
      alignas(64) std::array<std::uint32_t, kBlock + host::kDrawGroup> draws;
      alignas(64) std::array<std::uint8_t, kBlock + kGroup> code;
      for (std::size_t block = from; block < to; ++block) {
        const std::size_t first = kBlock * block;
        const std::size_t size = shape.block_size(block);
        const std::size_t present = std::min(size, shape.n - first);
        const format::ThcFactors factors = format::thc_factors(steps, size);
        turn_signs(u.data() + first, 1.0F, signs + first / 32, present, x.data());
        std::fill(x.data() + present, x.data() + size, 0.0F);
        rotate(x.data(), size);
        host::draw_tile(key, first, size, draws.data());
        quantise(table, x.data(), factors.encode, draws.data(), size, code.data());
        std::fill(code.data() + size, code.data() + (size + kGroup - 1) / kGroup * kGroup, std::uint8_t{0});
        host::write_codes<Bits>(code.data(), (size + kGroup - 1) / kGroup * kGroup, words + Bits * (first / kGroup));
        if (residual.empty()) continue;
        rotate(x.data(), size);
        turn_signs(x.data(), factors.decode, signs + first / 32, present, residual.data() + first);
      }
    });
  }

  template <std::uint32_t Bits, class Sum>
  static void add_codes(Queue<Space::host> queue, const format::ThcTable<Bits>& table, HostView<const std::byte> codes,
                        std::size_t groups, bool add, Sum* sums) {
    std::array<Sum, format::ThcTable<Bits>::kLevels> values;
    for (std::size_t q = 0; q < values.size(); ++q) values[q] = static_cast<Sum>(table.value[q]);
    parallel_for(queue, groups, kGroupsAtOnce, 1 << 9, [&](std::size_t group, std::size_t last) {
      alignas(64) std::array<std::uint8_t, kGroup * kGroupsAtOnce> code;
      for (; group < last; group += kGroupsAtOnce) {
        const std::size_t count = kGroup * std::min(kGroupsAtOnce, last - group);
        host::read_codes<Bits>(section<std::uint32_t>(codes) + Bits * group, count, code.data());
        Sum* sum = sums + kGroup * group;
        if (add) {
          for (std::size_t i = 0; i < count; ++i) sum[i] = static_cast<Sum>(sum[i] + values[code[i]]);
        } else {
          for (std::size_t i = 0; i < count; ++i) sum[i] = values[code[i]];
        }
      }
    });
  }

  template <std::uint32_t Bits, class Sum>
  static void decode(Queue<Space::host> queue, const format::ThcShape& shape, const format::ThcTable<Bits>& table,
                     const Sum* sums, const float* norms, const std::uint32_t* signs, HostView<float> gradient) {
    const double steps = format::thc_steps_per_unit(shape, table, format::thc_agreed_norm(norms, shape.ranks));
    parallel_for(queue, shape.blocks(), 1, 16, [&](std::size_t from, std::size_t to) {
      alignas(64) std::array<float, kBlock> x;
      for (std::size_t block = from; block < to; ++block) {
        const std::size_t first = kBlock * block;
        const std::size_t size = shape.block_size(block);
        const format::ThcMean mean = format::thc_mean(shape, table, steps, size);
        widen(sums + first, mean.middle, mean.factor, size, x.data());
        rotate(x.data(), size);
        turn_signs(x.data(), 1.0F, signs + first / 32, std::min(size, shape.n - first), gradient.data() + first);
      }
    });
  }
};

constexpr ParamInfo kParams[] = {
    choice_param("bits", "3", "3|4", "bits of a code on its way to the owner of its part").searched("3|4"),
    choice_param("table", "optimal", "optimal|uniform",
                 "values of the codes: with the least expected error for normal numbers, or evenly spaced"),
    integer_param("seed", "42", {0, 9007199254740992.0}, "seed of the rotation's random signs, the same on all ranks")};

}  // namespace

extern constinit const CodecDescriptor thc_codec{
    .name = "thc",
    .summary = "sends rotated values rounded to a shared table of whole numbers, which are added without decoding",
    .reference = "Li et al., THC, NSDI 2024, arXiv 2302.08545",
    .params = kParams,
    .aggregation = Aggregation::own,
    .error_feedback = true,
    .payload = "bits d + 8 d/p + 32 bits, d = n with its last block padded to a power of two; 16 d/p for p top > 255",
    .passes =
        [](const Params&) {
          return MemoryPasses{.again = ReadAgain::unit, .why = "codes need the largest norm of all ranks first"};
        },
    .make_host_reducer = make_thc_reducer<Space::host, HostSteps>,
};

}  // namespace gradtool
