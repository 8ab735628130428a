#pragma once

#include <cstdint>

#include "kernels/law/hd.hpp"
#include "kernels/law/philox.hpp"

namespace gradtool::law {

/// Turn i of Floyd's method (Bentley and Floyd, CACM 1987) draws t from 0 .. j: floor(u (j + 1) / 2^64) with
/// u = low + 2^32 high, so that no t is likelier than another by more than 2^-32. j + 1 <= 2^32.
GT_HD inline std::uint64_t subset_place(std::uint32_t low, std::uint32_t high, std::uint64_t j) {
  return (high * (j + 1) + (low * (j + 1) >> 32)) >> 32;  // without a number of 128 bits
}

/// The same with the draws of elements 2i and 2i + 1 of a key.
GT_HD inline std::uint64_t subset_place(const DrawKey& key, std::uint64_t i, std::uint64_t j) {
  const Draws draws = draw4(key, i / 2);
  return i % 2 == 0 ? subset_place(draws.bits[0], draws.bits[1], j) : subset_place(draws.bits[2], draws.bits[3], j);
}

}  // namespace gradtool::law
