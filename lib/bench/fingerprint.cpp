#include "lib/bench/fingerprint.hpp"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>

#include "kernels/float_bits.hpp"

namespace gradtool {

GT_SIMD_CLONES std::array<double, 2> fingerprint(std::span<const std::byte> bytes) {
  constexpr std::size_t kLanes = 8;
  const auto round = [](std::uint64_t hash, std::uint64_t word) {
    return std::rotl(hash ^ word, 33) * 0x9e3779b97f4a7c15ULL;
  };
  std::array<std::uint64_t, kLanes> lanes{1, 2, 3, 4, 5, 6, 7, 8};
  constexpr std::size_t kBlock = sizeof lanes;
  std::size_t offset = 0;
  for (; offset + kBlock <= bytes.size(); offset += kBlock) {
    std::array<std::uint64_t, kLanes> words;
    std::memcpy(words.data(), bytes.data() + offset, kBlock);
    for (std::size_t lane = 0; lane < kLanes; ++lane) lanes[lane] = round(lanes[lane], words[lane]);
  }
  std::uint64_t hash = bytes.size();
  for (; offset < bytes.size(); offset += sizeof(std::uint32_t)) {
    std::uint32_t word = 0;
    std::memcpy(&word, bytes.data() + offset, std::min(sizeof word, bytes.size() - offset));
    hash = round(hash, word);
  }
  for (const std::uint64_t lane : lanes) hash = round(round(round(hash, lane), lane >> 32), lane >> 16);
  return {static_cast<double>(hash >> 32), static_cast<double>(hash & 0xffffffffU)};
}

}  // namespace gradtool
