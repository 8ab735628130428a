#include "lib/core/sha256.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <fstream>
#include <vector>

#include "lib/core/error.hpp"
#if defined(__x86_64__) && defined(__GNUC__)
#include <cpuid.h>
#include <immintrin.h>
#endif

namespace gradtool {
namespace {

// First 32 bits of the fractional parts of the cube roots of the first 64 primes (FIPS 180-4, 4.2.2).
constexpr std::array<std::uint32_t, 64> kRound{
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

std::uint32_t big_endian(const std::byte* p) {
  return std::to_integer<std::uint32_t>(p[0]) << 24 | std::to_integer<std::uint32_t>(p[1]) << 16 |
         std::to_integer<std::uint32_t>(p[2]) << 8 | std::to_integer<std::uint32_t>(p[3]);
}

using State = std::array<std::uint32_t, 8>;

void add_block(State& state, const std::byte* bytes) {
  std::array<std::uint32_t, 64> w;
  for (std::size_t i = 0; i < 16; ++i) w[i] = big_endian(bytes + 4 * i);
  for (std::size_t i = 16; i < 64; ++i) {
    const std::uint32_t s0 = std::rotr(w[i - 15], 7) ^ std::rotr(w[i - 15], 18) ^ (w[i - 15] >> 3);
    const std::uint32_t s1 = std::rotr(w[i - 2], 17) ^ std::rotr(w[i - 2], 19) ^ (w[i - 2] >> 10);
    w[i] = w[i - 16] + s0 + w[i - 7] + s1;
  }
  auto [a, b, c, d, e, f, g, h] = state;
  for (std::size_t i = 0; i < 64; ++i) {
    const std::uint32_t s1 = std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25);
    const std::uint32_t t1 = h + s1 + ((e & f) ^ (~e & g)) + kRound[i] + w[i];
    const std::uint32_t s0 = std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22);
    const std::uint32_t t2 = s0 + ((a & b) ^ (a & c) ^ (b & c));
    h = g, g = f, f = e, e = d + t1, d = c, c = b, b = a, a = t1 + t2;
  }
  const std::array<std::uint32_t, 8> add{a, b, c, d, e, f, g, h};
  for (std::size_t i = 0; i < 8; ++i) state[i] += add[i];
}

#if defined(__x86_64__) && defined(__GNUC__)

bool has_sha_instructions() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (b >> 29 & 1) != 0;
}

__m128i add_words(__m128i x, __m128i y) {
  using Words = std::uint32_t __attribute__((vector_size(16)));
  return std::bit_cast<__m128i>(std::bit_cast<Words>(x) + std::bit_cast<Words>(y));
}

/// Does as add_block() by the processor's instructions for SHA-256, six times as fast. Each works on the words a, b,
/// e, f and c, d, g, h of the state, for two rounds.
__attribute__((target("sha,sse4.1"))) void add_blocks_by_instructions(State& state, std::span<const std::byte> blocks) {
  const auto at = [](const auto* place) { return reinterpret_cast<const __m128i*>(place); };
  const auto [a, b, c, d, e, f, g, h] = state;
  const auto word = [](std::uint32_t value) { return static_cast<int>(value); };
  __m128i abef = _mm_set_epi32(word(a), word(b), word(e), word(f));
  __m128i cdgh = _mm_set_epi32(word(c), word(d), word(g), word(h));
  const __m128i swap = _mm_set_epi64x(0x0c0d0e0f08090a0b, 0x0405060700010203);  // the bytes of each word
  for (; !blocks.empty(); blocks = blocks.subspan(64)) {
    const __m128i abef_before = abef, cdgh_before = cdgh;
    __m128i w[4];
    for (std::size_t i = 0; i < 16; ++i) {
      __m128i& now = w[i % 4];
      if (i < 4) {
        now = _mm_shuffle_epi8(_mm_loadu_si128(at(blocks.data() + 16 * i)), swap);
      } else {
        const __m128i last = w[(i + 3) % 4];
        const __m128i seventh = _mm_alignr_epi8(last, w[(i + 2) % 4], 4);
        now = _mm_sha256msg2_epu32(add_words(_mm_sha256msg1_epu32(now, w[(i + 1) % 4]), seventh), last);
      }
      const __m128i rounds = add_words(now, _mm_loadu_si128(at(&kRound[4 * i])));
      cdgh = _mm_sha256rnds2_epu32(cdgh, abef, rounds);
      abef = _mm_sha256rnds2_epu32(abef, cdgh, _mm_shuffle_epi32(rounds, 0x0e));
    }
    abef = add_words(abef, abef_before);
    cdgh = add_words(cdgh, cdgh_before);
  }
  alignas(16) std::array<std::uint32_t, 4> feba, hgdc;
  _mm_store_si128(reinterpret_cast<__m128i*>(feba.data()), abef);
  _mm_store_si128(reinterpret_cast<__m128i*>(hgdc.data()), cdgh);
  state = {feba[3], feba[2], hgdc[3], hgdc[2], feba[1], feba[0], hgdc[1], hgdc[0]};
}

#endif

}  // namespace

void Sha256::add_blocks(std::span<const std::byte> blocks) {
#if defined(__x86_64__) && defined(__GNUC__)
  static const bool by_instructions = has_sha_instructions();
  if (by_instructions && !portable_) return add_blocks_by_instructions(state_, blocks);
#endif
  for (; !blocks.empty(); blocks = blocks.subspan(64)) add_block(state_, blocks.data());
}

void Sha256::update(std::span<const std::byte> bytes) {
  if (bytes.empty()) return;  // whose address may be null, which memcpy must not be given
  std::size_t held = length_ % 64;
  length_ += bytes.size();
  if (held != 0) {
    const std::size_t take = std::min(bytes.size(), 64 - held);
    std::memcpy(buffer_.data() + held, bytes.data(), take);
    bytes = bytes.subspan(take);
    if (held + take < 64) return;
    add_blocks(buffer_);
  }
  const std::size_t whole = bytes.size() / 64 * 64;
  add_blocks(bytes.first(whole));
  bytes = bytes.subspan(whole);
  if (!bytes.empty()) std::memcpy(buffer_.data(), bytes.data(), bytes.size());
}

std::string Sha256::hex() {
  const std::uint64_t bits = length_ * 8;
  std::array<std::byte, 72> tail{std::byte{0x80}};
  const std::size_t pad = (length_ % 64 < 56 ? 56 : 120) - length_ % 64;
  for (std::size_t i = 0; i < 8; ++i) tail[pad + i] = static_cast<std::byte>(bits >> (56 - 8 * i));
  update({tail.data(), pad + 8});
  std::string out;
  for (const std::uint32_t word : state_) {
    for (int shift = 28; shift >= 0; shift -= 4) out += "0123456789abcdef"[word >> shift & 15];
  }
  return out;
}

std::string sha256_of_file(const std::string& path) {
  std::ifstream file{path, std::ios::binary};
  if (!file) throw Error{Fault::data, path + ": cannot be opened"};
  Sha256 hash;
  std::vector<std::byte> buffer(1 << 20);
  while (file.read(reinterpret_cast<char*>(buffer.data()), static_cast<std::streamsize>(buffer.size())),
         file.gcount() > 0) {
    hash.update({buffer.data(), static_cast<std::size_t>(file.gcount())});
  }
  return hash.hex();
}

}  // namespace gradtool
