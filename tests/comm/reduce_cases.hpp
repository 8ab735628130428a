#pragma once

#include <fmt/format.h>

#include <cmath>
#include <cstdint>

#include "kernels/law/half.hpp"
#include "kernels/law/philox.hpp"
#include "tests/comm/rank_memory.hpp"

/// All-reduce: exact sums, the same bits everywhere, the ring's order of rounding.
namespace gradtool::test {

inline constexpr Dtype kDtypes[] = {Dtype::f32, Dtype::f16, Dtype::bf16};

/// Round to `dtype` and back.
inline float rounded(float x, Dtype dtype) {
  if (dtype == Dtype::f16) return law::f32_from_f16(law::f16_from_f32(x));
  if (dtype == Dtype::bf16) return law::f32_from_bf16(law::bf16_from_f32(x));
  return x;
}

/// all_reduce_sum of floats that are representable in `dtype`.
template <Space S>
std::vector<float> reduce_as(Rank<S>& rank, const std::vector<float>& values, Dtype dtype) {
  if (dtype == Dtype::f32) return rank.all_reduce(values, dtype);
  std::vector<std::uint16_t> halves(values.size());
  for (std::size_t i = 0; i < values.size(); ++i) {
    halves[i] = dtype == Dtype::f16 ? law::f16_from_f32(values[i]) : law::bf16_from_f32(values[i]);
  }
  halves = rank.all_reduce(halves, dtype);
  std::vector<float> sums(values.size());
  for (std::size_t i = 0; i < sums.size(); ++i) {
    sums[i] = dtype == Dtype::f16 ? law::f32_from_f16(halves[i]) : law::f32_from_bf16(halves[i]);
  }
  return sums;
}

/// Small integers: every partial sum of up to 16 ranks is exact in every dtype.
inline float small_integer(std::size_t i, int rank) {
  return static_cast<float>(static_cast<int>((i * 7 + static_cast<std::size_t>(rank) * 5) % 15) - 7);
}

template <Space S>
void sums_integers_exactly(Communicator<S>& comm, Queue<S> queue) {
  Rank<S> rank{comm, queue};
  const auto p = static_cast<std::size_t>(rank.size());
  for (const Dtype dtype : kDtypes) {
    for (const std::size_t n :
         {std::size_t{0}, std::size_t{1}, p - 1, p, p + 1, std::size_t{64}, std::size_t{1009}, std::size_t{100'003}}) {
      std::vector<float> values(n);
      for (std::size_t i = 0; i < n; ++i) values[i] = small_integer(i, rank.rank());
      const auto sums = reduce_as(rank, values, dtype);
      for (std::size_t i = 0; i < n; ++i) {
        float expected = 0;
        for (int r = 0; r < rank.size(); ++r) expected += small_integer(i, r);
        require(sums[i] == expected, fmt::format("{} elements of {}: element {} is {}, expected {}", n, name_of(dtype),
                                                 i, sums[i], expected));
      }
    }
  }
}

/// A value whose sums round: uniform on [-1, 1) times a power of two from 2^-8 to 2^7.
inline float rough_value(std::size_t i, int rank) {
  const law::Draws draws =
      law::draw4({.seed = 11, .step = 0, .rank = static_cast<std::uint32_t>(rank), .tensor = 0}, i);
  return std::ldexp(2 * law::uniform(draws.bits[0]) - 1, static_cast<int>(draws.bits[1] % 16) - 8);
}

template <Space S>
void gives_every_rank_the_same_bits(Communicator<S>& comm, Queue<S> queue) {
  Rank<S> rank{comm, queue};
  for (const Dtype dtype : kDtypes) {
    std::vector<float> values(4099);
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = rounded(rough_value(i, rank.rank()), dtype);
    const auto sums = reduce_as(rank, values, dtype);
    const auto all = rank.all_gather(sums);
    for (std::size_t i = 0; i < all.size(); ++i) {
      require(law::bits_of(all[i]) == law::bits_of(sums[i % sums.size()]),
              fmt::format("{}: element {} differs between ranks {} and {}", name_of(dtype), i % sums.size(),
                          rank.rank(), i / sums.size()));
    }
  }
}

/// Segment s starts at rank s + 1 and is added to, and rounded, rank by rank around the ring, up to rank s. NCCL
/// chooses its own order, so it is held to the error bound of p - 1 roundings instead.
template <Space S>
void rounds_at_every_hop(Communicator<S>& comm, Queue<S> queue) {
  Rank<S> rank{comm, queue};
  constexpr std::size_t kElements = 2053;
  const int p = rank.size();
  for (const Dtype dtype : kDtypes) {
    const float epsilon = dtype == Dtype::f32 ? 0x1p-24f : dtype == Dtype::f16 ? 0x1p-11f : 0x1p-8f;
    std::vector<float> values(kElements);
    for (std::size_t i = 0; i < kElements; ++i) values[i] = rounded(rough_value(i, rank.rank()), dtype);
    const auto sums = reduce_as(rank, values, dtype);
    for (int s = 0; s < p; ++s) {
      const Segment segment = ring_segment(kElements, s, p);
      for (std::size_t i = segment.first; i < segment.first + segment.count; ++i) {
        float expected = rounded(rough_value(i, (s + 1) % p), dtype);
        float magnitude = std::fabs(expected);
        for (int hop = 1; hop < p; ++hop) {
          const float next = rounded(rough_value(i, (s + 1 + hop) % p), dtype);
          expected = rounded(expected + next, dtype);
          magnitude += std::fabs(next);
        }
        const float allowed = comm.name() == "nccl" ? 4 * static_cast<float>(p) * epsilon * magnitude : 0;
        require(std::fabs(sums[i] - expected) <= allowed,
                fmt::format("{}: element {} is {:.9g}, the ring gives {:.9g}", name_of(dtype), i, sums[i], expected));
      }
    }
  }
}

template <Space S>
void lets_infinities_and_nans_through(Communicator<S>& comm, Queue<S> queue) {
  Rank<S> rank{comm, queue};
  for (const Dtype dtype : kDtypes) {
    std::vector<float> values(40, 1.0f);
    if (rank.rank() == 0) values[3] = INFINITY;
    if (rank.rank() == rank.size() - 1) values[37] = NAN;
    const auto sums = reduce_as(rank, values, dtype);
    require(std::isinf(sums[3]) && std::isnan(sums[37]), "a non-finite input did not stay non-finite");
    require(sums[4] == static_cast<float>(rank.size()), "a non-finite input spoiled another element");
  }
}

}  // namespace gradtool::test
