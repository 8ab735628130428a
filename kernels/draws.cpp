#include "kernels/draws.hpp"

#include <array>

#include "kernels/float_bits.hpp"

#if defined(__GNUC__) && !defined(__clang__) && defined(__x86_64__) && !defined(GRADTOOL_SANITIZED)
#define GT_DRAW_VECTORS 1
// GCC bug 105593: the undefined registers inside AVX-512 intrinsics are reported as uninitialised.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#include <immintrin.h>
#else
#define GT_DRAW_VECTORS 0
#endif

namespace gradtool::host {
namespace {

void fill_plainly(const format::DrawKey& key, std::uint64_t first, std::size_t count, std::uint32_t* out) {
  const std::size_t counters = (count + kDrawGroup - 1) / kDrawGroup * (kDrawGroup / 4);
  for (std::size_t c = 0; c < counters; ++c) {
    const format::Draws draws = format::draw4(key, first / 4 + c);
    for (std::size_t l = 0; l < 4; ++l) out[4 * c + l] = draws.bits[l];
  }
}

#if GT_DRAW_VECTORS
// format::philox with one counter in each 64-bit lane: a 32 x 32 multiplication gives both halves of a product where
// the next round wants them, and reads only the low half of a lane, so what lies above need not be cleared. Plain loops
// over arrays are no substitute: compilers multiply 64 x 64 there, or transpose between rounds. `Chains` vectors
// advance together, because a round waits for its multiplications.

constexpr std::uint32_t kMultiplier0 = 0xD2511F53u;
constexpr std::uint32_t kMultiplier1 = 0xCD9E8D57u;
constexpr std::uint32_t kWeyl0 = 0x9E3779B9u;
constexpr std::uint32_t kWeyl1 = 0xBB67AE85u;
constexpr int kRounds = 10;

/// Whether the counters of a tile differ in their lower 32 bits alone. A tile of which this is not so, one of 2^34
/// elements, is drawn plainly.
bool same_upper_half(std::uint64_t first, std::size_t count) {
  return first >> 34 == (first + count + kDrawGroup) >> 34;
}

/// The first two rounds of such counters, of which `index` is one: each has a product that all counters share.
struct FirstRounds {
  std::uint32_t k0[kRounds], k1[kRounds];  ///< the keys of all rounds
  /// Counters after a round, without the half of the round's product that is not shared.
  std::uint32_t first_c2, second_c0, second_c2, second_c3;

  FirstRounds(const format::DrawKey& key, std::uint64_t index) {
    for (std::uint32_t r = 0; r < kRounds; ++r) {
      k0[r] = static_cast<std::uint32_t>(key.seed) + r * kWeyl0;
      k1[r] = static_cast<std::uint32_t>(key.seed >> 32) + r * kWeyl1;
    }
    const format::Product first = format::product(kMultiplier1, key.step);
    const std::uint32_t c1 = static_cast<std::uint32_t>(index >> 32) ^ (key.tensor << 8);
    const format::Product second = format::product(kMultiplier0, first.high ^ c1 ^ k0[0]);
    first_c2 = key.rank ^ k1[0];
    second_c0 = first.low ^ k0[1];
    second_c2 = second.high ^ k1[1];
    second_c3 = second.low;
  }
};

__attribute__((target("avx512f,avx512dq"))) void fill_avx512(const format::DrawKey& key, std::uint64_t first,
                                                             std::size_t count, std::uint32_t* out) {
  if (!same_upper_half(first, count)) return fill_plainly(key, first, count, out);
  constexpr std::size_t kLanes = 8;
  constexpr std::size_t kChains = kDrawGroup / (4 * kLanes);
  const __m512i low_half = _mm512_set1_epi64(0xffffffff);
  const __m512i lane = _mm512_set_epi64(7, 6, 5, 4, 3, 2, 1, 0);
  const __m512i m0 = _mm512_set1_epi64(kMultiplier0);
  const __m512i m1 = _mm512_set1_epi64(kMultiplier1);
  const FirstRounds rounds{key, first / 4};
  __m512i key0[kRounds], key1[kRounds];
  for (int round = 0; round < kRounds; ++round) {
    key0[round] = _mm512_set1_epi64(rounds.k0[round]);
    key1[round] = _mm512_set1_epi64(rounds.k1[round]);
  }
  const __m512i front = _mm512_set_epi64(11, 3, 10, 2, 9, 1, 8, 0);
  const __m512i back = _mm512_set_epi64(15, 7, 14, 6, 13, 5, 12, 4);
  for (std::size_t done = 0; done < count; done += kDrawGroup) {
    __m512i c0[kChains], c1[kChains], c2[kChains], c3[kChains];
    for (std::size_t j = 0; j < kChains; ++j) {
      const __m512i index =
          _mm512_add_epi64(_mm512_set1_epi64(static_cast<long long>((first + done) / 4 + kLanes * j)), lane);
      const __m512i p0 = _mm512_mul_epu32(index, m0);
      const __m512i p1 =
          _mm512_mul_epu32(_mm512_xor_epi64(_mm512_srli_epi64(p0, 32), _mm512_set1_epi64(rounds.first_c2)), m1);
      c0[j] = _mm512_xor_epi64(_mm512_srli_epi64(p1, 32), _mm512_set1_epi64(rounds.second_c0));
      c1[j] = p1;
      c2[j] = _mm512_xor_epi64(p0, _mm512_set1_epi64(rounds.second_c2));
      c3[j] = _mm512_set1_epi64(rounds.second_c3);
    }
    for (int round = 2; round < kRounds; ++round) {
      for (std::size_t j = 0; j < kChains; ++j) {
        const __m512i p0 = _mm512_mul_epu32(c0[j], m0);
        const __m512i p1 = _mm512_mul_epu32(c2[j], m1);
        c0[j] = _mm512_xor_epi64(_mm512_xor_epi64(_mm512_srli_epi64(p1, 32), c1[j]), key0[round]);
        c2[j] = _mm512_xor_epi64(_mm512_xor_epi64(_mm512_srli_epi64(p0, 32), c3[j]), key1[round]);
        c1[j] = p1;
        c3[j] = p0;
      }
    }
    for (std::size_t j = 0; j < kChains; ++j) {
      const __m512i x = _mm512_or_epi64(_mm512_and_epi64(c0[j], low_half), _mm512_slli_epi64(c1[j], 32));
      const __m512i y = _mm512_or_epi64(_mm512_and_epi64(c2[j], low_half), _mm512_slli_epi64(c3[j], 32));
      std::uint32_t* at = out + done + 4 * kLanes * j;
      _mm512_storeu_si512(at, _mm512_permutex2var_epi64(x, front, y));
      _mm512_storeu_si512(at + 16, _mm512_permutex2var_epi64(x, back, y));
    }
  }
}

__attribute__((target("avx2"))) void fill_avx2(const format::DrawKey& key, std::uint64_t first, std::size_t count,
                                               std::uint32_t* out) {
  if (!same_upper_half(first, count)) return fill_plainly(key, first, count, out);
  constexpr std::size_t kLanes = 4;
  constexpr std::size_t kChains = 2;  // sixteen registers hold no more
  const __m256i low_half = _mm256_set1_epi64x(0xffffffff);
  const __m256i lane = _mm256_set_epi64x(3, 2, 1, 0);
  const __m256i m0 = _mm256_set1_epi64x(kMultiplier0);
  const __m256i m1 = _mm256_set1_epi64x(kMultiplier1);
  const FirstRounds rounds{key, first / 4};
  __m256i key0[kRounds], key1[kRounds];
  for (int round = 0; round < kRounds; ++round) {
    key0[round] = _mm256_set1_epi64x(rounds.k0[round]);
    key1[round] = _mm256_set1_epi64x(rounds.k1[round]);
  }
  const std::size_t padded = (count + kDrawGroup - 1) / kDrawGroup * kDrawGroup;
  for (std::size_t done = 0; done < padded; done += 4 * kLanes * kChains) {
    __m256i c0[kChains], c1[kChains], c2[kChains], c3[kChains];
    for (std::size_t j = 0; j < kChains; ++j) {
      const __m256i index =
          _mm256_add_epi64(_mm256_set1_epi64x(static_cast<long long>((first + done) / 4 + kLanes * j)), lane);
      const __m256i p0 = _mm256_mul_epu32(index, m0);
      const __m256i p1 =
          _mm256_mul_epu32(_mm256_xor_si256(_mm256_srli_epi64(p0, 32), _mm256_set1_epi64x(rounds.first_c2)), m1);
      c0[j] = _mm256_xor_si256(_mm256_srli_epi64(p1, 32), _mm256_set1_epi64x(rounds.second_c0));
      c1[j] = p1;
      c2[j] = _mm256_xor_si256(p0, _mm256_set1_epi64x(rounds.second_c2));
      c3[j] = _mm256_set1_epi64x(rounds.second_c3);
    }
    for (int round = 2; round < kRounds; ++round) {
      for (std::size_t j = 0; j < kChains; ++j) {
        const __m256i p0 = _mm256_mul_epu32(c0[j], m0);
        const __m256i p1 = _mm256_mul_epu32(c2[j], m1);
        c0[j] = _mm256_xor_si256(_mm256_xor_si256(_mm256_srli_epi64(p1, 32), c1[j]), key0[round]);
        c2[j] = _mm256_xor_si256(_mm256_xor_si256(_mm256_srli_epi64(p0, 32), c3[j]), key1[round]);
        c1[j] = p1;
        c3[j] = p0;
      }
    }
    for (std::size_t j = 0; j < kChains; ++j) {
      const __m256i x = _mm256_or_si256(_mm256_and_si256(c0[j], low_half), _mm256_slli_epi64(c1[j], 32));
      const __m256i y = _mm256_or_si256(_mm256_and_si256(c2[j], low_half), _mm256_slli_epi64(c3[j], 32));
      const __m256i even = _mm256_unpacklo_epi64(x, y);  // counters 0 and 2
      const __m256i odd = _mm256_unpackhi_epi64(x, y);   // counters 1 and 3
      auto* at = reinterpret_cast<__m256i*>(out + done + 4 * kLanes * j);
      _mm256_storeu_si256(at, _mm256_permute2x128_si256(even, odd, 0x20));
      _mm256_storeu_si256(at + 1, _mm256_permute2x128_si256(even, odd, 0x31));
    }
  }
}
#endif

struct Fills {
  std::array<DrawFill, 3> fill{};
  std::size_t count = 0;
};

Fills usable_fills() {
  Fills fills;
#if GT_DRAW_VECTORS
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq")) fills.fill[fills.count++] = fill_avx512;
  if (__builtin_cpu_supports("avx2")) fills.fill[fills.count++] = fill_avx2;
#endif
  fills.fill[fills.count++] = fill_plainly;
  return fills;
}

}  // namespace

std::span<const DrawFill> draw_fills() {
  static const Fills fills = usable_fills();
  return {fills.fill.data(), fills.count};
}

void draw_tile(const format::DrawKey& key, std::uint64_t first, std::size_t count, std::uint32_t* out) {
  static const DrawFill fill = draw_fills().front();
  fill(key, first, count, out);
}

}  // namespace gradtool::host
