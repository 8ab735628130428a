#include "kernels/sums.hpp"

#include <algorithm>
#include <array>

#include "kernels/float_bits.hpp"

namespace gradtool::host {
namespace {

using Lanes = std::array<double, kSumLanes>;

inline double folded(Lanes& lanes) {
  for (std::size_t half = kSumLanes / 2; half > 0; half /= 2) {
    for (std::size_t j = 0; j < half; ++j) lanes[j] += lanes[j + half];
  }
  return lanes[0];
}

}  // namespace

GT_SIMD_CLONES Moments moments_of(const float* x, std::size_t count) {
  Lanes sum{};
  Lanes squares{};
  std::array<std::uint32_t, kSumLanes> largest{};
  const auto add = [&](std::size_t i, std::size_t j) {
    const auto value = static_cast<double>(x[i + j]);
    sum[j] += value;
    squares[j] += value * value;
    largest[j] = std::max(largest[j], format::bits_of(x[i + j]) & 0x7fffffffu);
  };
  std::size_t i = 0;
  for (; i + kSumLanes <= count; i += kSumLanes) {
    for (std::size_t j = 0; j < kSumLanes; ++j) add(i, j);
  }
  for (std::size_t j = 0; i + j < count; ++j) add(i, j);
  return {folded(sum), folded(squares), *std::max_element(largest.begin(), largest.end())};
}

GT_SIMD_CLONES double magnitudes_of(const float* x, std::size_t count) {
  Lanes sum{};
  const auto add = [&](std::size_t i, std::size_t j) {
    sum[j] += static_cast<double>(format::float_of(format::bits_of(x[i + j]) & 0x7fffffffu));
  };
  std::size_t i = 0;
  for (; i + kSumLanes <= count; i += kSumLanes) {
    for (std::size_t j = 0; j < kSumLanes; ++j) add(i, j);
  }
  for (std::size_t j = 0; i + j < count; ++j) add(i, j);
  return folded(sum);
}

GT_SIMD_CLONES SignedSums signed_sums_of(const float* x, std::size_t count) {
  Lanes negative{};
  Lanes other{};
  const auto add = [&](std::size_t i, std::size_t j) {
    const std::uint32_t bits = format::bits_of(x[i + j]);  // masks vectorise, selects of doubles do not
    const std::uint32_t below = x[i + j] < 0.0F ? 0xffffffffU : 0U;
    negative[j] += static_cast<double>(format::float_of(bits & below));
    other[j] += static_cast<double>(format::float_of(bits & ~below));
  };
  std::size_t i = 0;
  for (; i + kSumLanes <= count; i += kSumLanes) {
    for (std::size_t j = 0; j < kSumLanes; ++j) add(i, j);
  }
  for (std::size_t j = 0; i + j < count; ++j) add(i, j);
  return {folded(negative), folded(other)};
}

namespace {

template <class Flag>
inline void write_flags(const float* x, std::size_t count, std::uint32_t* words, const Flag& flag) {
  for (; count >= 32; count -= 32, x += 32) {
    std::uint32_t word = 0;
    for (std::uint32_t j = 0; j < 32; ++j) word |= flag(x[j]) << j;
    *words++ = word;
  }
  if (count == 0) return;
  std::uint32_t word = 0;
  for (std::uint32_t j = 0; j < count; ++j) word |= flag(x[j]) << j;
  *words = word;
}

}  // namespace

GT_SIMD_CLONES void write_signs(const float* x, std::size_t count, std::uint32_t* words) {
  write_flags(x, count, words, [](float value) { return format::bits_of(value) >> 31; });
}

GT_SIMD_CLONES void write_negatives(const float* x, std::size_t count, std::uint32_t* words) {
  write_flags(x, count, words, [](float value) { return value < 0.0F ? 1U : 0U; });
}

}  // namespace gradtool::host
