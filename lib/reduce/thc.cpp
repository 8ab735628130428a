#include "lib/reduce/thc.hpp"

#include <array>
#include <cmath>
#include <cstring>

#include "kernels/host/chunk_sums.hpp"
#include "kernels/host/draws.hpp"
#include "kernels/host/hadamard.hpp"
#include "kernels/host/pack_codes.hpp"
#include "kernels/law/keep_nan.hpp"
#include "lib/codecs/payload.hpp"
#include "lib/core/task_pool.hpp"
#include "lib/reduce/cuda_reducers.hpp"

namespace gradtool {
namespace {

constexpr std::size_t kBlock = law::kThcBlock;
constexpr std::size_t kGroup = law::kPackGroup;
constexpr std::size_t kTile = 32;  // groups that are unpacked at once
static_assert(kBlock == host::kHadamardBlock);

/// to := factor from, with the signs changed whose bit is set.
GT_SIMD_CLONES void turn(const float* __restrict from, float factor, const std::uint32_t* __restrict signs,
                         std::size_t count, float* __restrict to) {
  const auto one = [&](std::size_t i, std::uint32_t j) {
    to[i + j] = law::thc_turned(from[i + j], factor, *signs >> j);
  };
  std::size_t i = 0;
  for (; i + 32 <= count; i += 32, ++signs) {
    for (std::uint32_t j = 0; j < 32; ++j) one(i, j);
  }
  for (std::uint32_t j = 0; i + j < count; ++j) one(i, j);
}

/// Codes of x, and in x, still in steps of the table, what they do not say. Works on whole chunks of 128 elements:
/// codes are narrowed in a loop of their own, as the first would not be vectorised with them.
template <std::uint32_t Bits>
GT_SIMD_CLONES void quantise(const law::ThcTable<Bits>& shared, float* __restrict x, float factor,
                             const std::uint32_t* __restrict draws, std::size_t count, std::uint8_t* __restrict codes) {
  const law::ThcTable<Bits> table = shared;  // no store can change it
  const float middle = 0.5F * table.top;
  constexpr std::size_t kChunk = host::kDrawGroup;
  std::array<std::uint32_t, kChunk> code;
  for (std::size_t at = 0; at < count; at += kChunk) {
    for (std::size_t i = 0; i < kChunk; ++i) {
      const float place = x[at + i] * factor + middle;
      const law::ThcCode c = law::thc_encode(table, law::thc_clamp(place, table.top), law::uniform(draws[at + i]));
      code[i] = c.code;
      x[at + i] = place - c.value;
    }
    for (std::size_t i = 0; i < kChunk; ++i) codes[at + i] = static_cast<std::uint8_t>(code[i]);
  }
}

template <class Lane>
GT_SIMD_CLONES void widen(const Lane* lanes, float middle, float factor, std::size_t count, float* x) {
  for (std::size_t i = 0; i < count; ++i) x[i] = (static_cast<float>(lanes[i]) - middle) * factor;
}

/// A block rotates to and fro with the same transform, up to a factor of its size.
void rotate(float* x, std::size_t size) {
  if (size == kBlock) {
    host::hadamard_block(x);
  } else {
    host::hadamard(x, size);
  }
}

}  // namespace

template <>
std::size_t ThcSteps<Space::host>::scratch_bytes(std::size_t n) {
  return sizeof(double) * ((n + law::kSumChunk - 1) / law::kSumChunk);
}

template <>
void ThcSteps<Space::host>::signs(Queue<Space::host> /*queue*/, const law::DrawKey& key,
                                  HostView<std::uint32_t> signs) {
  for (std::size_t w = 0; w < signs.size(); ++w) signs[w] = law::draw4(key, w / 4).bits[w % 4];
}

template <>
void ThcSteps<Space::host>::norm(Queue<Space::host> queue, HostView<const float> u, float* norm,
                                 HostView<std::byte> scratch) {
  auto* squares = section<double>(scratch);
  const std::size_t chunks = scratch.size() / sizeof(double);
  parallel_for(queue, chunks, 1, 4, [&](std::size_t from, std::size_t to) {
    for (std::size_t c = from; c < to; ++c) {
      const std::size_t first = c * law::kSumChunk;
      squares[c] = host::moments_of(u.data() + first, std::min(law::kSumChunk, u.size() - first)).squares;
    }
  });
  law::GroupedSum sum;
  for (std::size_t c = 0; c < chunks; ++c) sum.add(squares[c]);
  *norm = law::one_nan(static_cast<float>(std::sqrt(sum.value())));
}

template <>
template <std::uint32_t Bits>
void ThcSteps<Space::host>::encode(Queue<Space::host> queue, const law::ThcShape& shape,
                                   const law::ThcTable<Bits>& table, HostView<const float> u, const float* norms,
                                   const std::uint32_t* signs, const law::DrawKey& key, HostView<std::byte> codes,
                                   HostView<float> residual) {
  const double steps = law::thc_steps_per_unit(shape, table, law::thc_agreed_norm(norms, shape.ranks));
  auto* words = section<std::uint32_t>(codes);
  parallel_for(queue, shape.blocks(), 1, 16, [&](std::size_t from, std::size_t to) {
    alignas(64) std::array<float, kBlock> x{};
    alignas(64) std::array<std::uint32_t, kBlock + host::kDrawGroup> draws;
    alignas(64) std::array<std::uint8_t, kBlock + kGroup> code;
    for (std::size_t block = from; block < to; ++block) {
      const std::size_t first = kBlock * block;
      const std::size_t size = shape.block_size(block);
      const std::size_t here = std::min(size, shape.n - first);
      const law::ThcFactors factors = law::thc_factors(steps, size);
      turn(u.data() + first, 1.0F, signs + first / 32, here, x.data());
      std::fill(x.data() + here, x.data() + size, 0.0F);
      rotate(x.data(), size);
      host::draw_tile(key, first, size, draws.data());
      quantise(table, x.data(), factors.encode, draws.data(), size, code.data());
      std::fill(code.data() + size, code.data() + (size + kGroup - 1) / kGroup * kGroup, std::uint8_t{0});
      host::write_codes<Bits>(code.data(), (size + kGroup - 1) / kGroup * kGroup, words + Bits * (first / kGroup));
      if (residual.empty()) continue;
      rotate(x.data(), size);
      turn(x.data(), factors.decode, signs + first / 32, here, residual.data() + first);
    }
  });
}

template <>
template <std::uint32_t Bits, class Sum>
void ThcSteps<Space::host>::add_codes(Queue<Space::host> queue, const law::ThcTable<Bits>& table,
                                      HostView<const std::byte> codes, std::size_t groups, bool add, Sum* sums) {
  std::array<Sum, law::ThcTable<Bits>::kLevels> values;
  for (std::size_t q = 0; q < values.size(); ++q) values[q] = static_cast<Sum>(table.value[q]);
  parallel_for(queue, groups, kTile, 1 << 9, [&](std::size_t group, std::size_t last) {
    alignas(64) std::array<std::uint8_t, kGroup * kTile> code;
    for (; group < last; group += kTile) {
      const std::size_t count = kGroup * std::min(kTile, last - group);
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

template <>
template <std::uint32_t Bits, class Sum>
void ThcSteps<Space::host>::decode(Queue<Space::host> queue, const law::ThcShape& shape,
                                   const law::ThcTable<Bits>& table, const Sum* sums, const float* norms,
                                   const std::uint32_t* signs, HostView<float> gradient) {
  const double steps = law::thc_steps_per_unit(shape, table, law::thc_agreed_norm(norms, shape.ranks));
  parallel_for(queue, shape.blocks(), 1, 16, [&](std::size_t from, std::size_t to) {
    alignas(64) std::array<float, kBlock> x;
    for (std::size_t block = from; block < to; ++block) {
      const std::size_t first = kBlock * block;
      const std::size_t size = shape.block_size(block);
      const law::ThcMean mean = law::thc_mean(shape, table, steps, size);
      widen(sums + first, mean.middle, mean.factor, size, x.data());
      rotate(x.data(), size);
      turn(x.data(), 1.0F, signs + first / 32, std::min(size, shape.n - first), gradient.data() + first);
    }
  });
}

extern constinit const OwnReducer thc_reducer{
    .codec = "thc", .make_host = make_thc_reducer<Space::host>, .make_cuda = GT_MAKE_CUDA(make_cuda_thc_reducer)};

}  // namespace gradtool
