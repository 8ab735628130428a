#pragma once

#include <fmt/format.h>

#include <cmath>

#include "tests/comm/sum_paths.hpp"

/// The ring's order of rounding, and values that are not finite.
namespace gradtool::test {

/// all_reduce_sum of floats that are representable in `dtype`.
template <Space S>
std::vector<float> reduce_as(Rank<S>& rank, const std::vector<float>& values, Dtype dtype) {
  return unpacked(sum_by(rank, Path::ring, packed(values, dtype), dtype), dtype);
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
        if (std::fabs(sums[i] - expected) <= allowed) continue;
        require(false,
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
