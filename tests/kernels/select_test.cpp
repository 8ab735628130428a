// Selection of the largest magnitudes, in its three forms, against a sort.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "kernels/float_bits.hpp"
#include "kernels/marks.hpp"
#include "kernels/select.hpp"
#include "lib/core/arena.hpp"
#include "tests/codecs/inputs.hpp"

namespace gradtool::test {
namespace {

std::uint32_t pattern(float x) {
  return format::bits_of(x) & 0x7fffffffU;
}

struct Selected {
  std::vector<std::uint32_t> positions;
  std::vector<float> values;
};

/// One selection, with `threads` threads.
template <class CutOf>
Selected select(const std::vector<float>& x, int threads, const CutOf& cut_of) {
  TaskPool pool{threads};
  const host::Pieces pieces{x.size()};
  std::vector<std::uint32_t> maxima((x.size() + 31) / 32, 0xA5A5A5A5U);
  for (std::size_t i = 0; i < pieces.size(); ++i)
    host::block_maxima(x.data() + pieces[i].first, pieces[i].count, maxima.data() + pieces[i].word);
  std::vector<std::uint32_t> scratch(host::BlockSelect::scratch_bytes(pieces.size()) / 4, 0xA5A5A5A5U);
  host::BlockSelect by_block{{&pool}, pieces, x.data(), maxima.data(), reinterpret_cast<std::byte*>(scratch.data())};
  const auto cut = cut_of(by_block);
  Selected out{std::vector<std::uint32_t>(cut.count), std::vector<float>(cut.count)};
  by_block.collect(cut, out.positions.data(), out.values.data());
  return out;
}

TEST(BlockSelect, IsWhatASortSays) {
  for (const std::size_t n : {std::size_t{1}, std::size_t{33}, std::size_t{8192}, std::size_t{50'000}}) {
    auto x = gradient_like(n, 6);
    for (std::size_t i = 0; i < n; i += 7) x[i] = 0.002F;  // ties
    if (n > 100) x[77] = NAN;
    if (n > 100) x[78] = -INFINITY;
    std::vector<std::uint32_t> order(n);
    std::iota(order.begin(), order.end(), 0U);
    std::stable_sort(order.begin(), order.end(),
                     [&](std::uint32_t a, std::uint32_t b) { return pattern(x[a]) > pattern(x[b]); });
    for (const std::size_t k : {std::size_t{1}, n / 100 + 1, n / 3 + 1, n}) {
      std::vector<std::uint32_t> expected(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(k));
      std::sort(expected.begin(), expected.end());
      for (const int threads : {1, 3}) {
        const auto got = select(x, threads, [&](host::BlockSelect& by) { return by.largest(k, 0); });
        ASSERT_EQ(got.positions, expected) << n << " " << k;
        for (std::size_t i = 0; i < k; ++i)
          ASSERT_EQ(format::bits_of(got.values[i]), format::bits_of(x[got.positions[i]]));
        const std::uint32_t floor = pattern(x[order[k - 1]]);
        EXPECT_EQ(select(x, threads, [&](host::BlockSelect& by) { return by.largest(k, floor); }).positions, expected);
      }
    }
  }
}

TEST(BlockSelect, AtLeast) {
  const auto x = gradient_like(30'001, 7);
  for (const float threshold : {0.0001F, 0.01F, 0.02F, 1.0F}) {
    const auto got = select(x, 2, [&](host::BlockSelect& by) { return by.at_least(pattern(threshold)); });
    std::vector<std::uint32_t> expected;
    for (std::uint32_t i = 0; i < x.size(); ++i) {
      if (std::abs(x[i]) >= threshold) expected.push_back(i);
    }
    EXPECT_EQ(got.positions, expected) << threshold;
  }
}

TEST(Largest, TakesWhatSortingTakes) {
  TaskPool pool{3};
  for (const std::size_t n : {1U, 2U, 33U, 5000U, 200'003U}) {
    std::vector<float> x(n);
    for (std::size_t i = 0; i < n; ++i) {  // signs, ties inside a bin and across, subnormals, infinities and NaN
      const std::uint32_t bits = format::draw4({.seed = n}, i).bits[0];
      x[i] = format::float_of(i % 5 == 0 ? bits & 0x80700000U : i % 5 == 1 ? bits & 0xbfffffffU : bits & 0xbf000fffU);
      if (i % 997 == 3) x[i] = i % 2 == 0 ? INFINITY : NAN;
    }
    const auto magnitude = [&](std::size_t i) { return format::bits_of(x[i]) & 0x7fffffffU; };
    std::vector<std::uint32_t> order(n);
    std::iota(order.begin(), order.end(), 0U);
    std::stable_sort(order.begin(), order.end(), [&](auto a, auto b) { return magnitude(a) > magnitude(b); });
    Arena<Space::host> arena{host::Largest::scratch_bytes(n, n) + 256};
    const auto all_room = arena.take_bytes(host::Largest::scratch_bytes(n, n));
    for (const std::size_t k : {std::size_t{0}, std::size_t{1}, n / 100, n / 3 + 1, n}) {
      std::vector<std::uint32_t> expected(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(k));
      std::sort(expected.begin(), expected.end());
      for (const Queue<Space::host> queue : {Queue<Space::host>{}, Queue<Space::host>{&pool}}) {
        // Every candidate fits into the first. Into the second they do for some k alone.
        for (const std::size_t room : {all_room.size(), host::Largest::scratch_bytes(n, k)}) {
          std::vector<std::uint32_t> positions(k);
          std::vector<float> values(k);
          host::Largest{queue, {x.data(), n}, all_room.first(room)}.select({positions.data(), k}, values.data());
          ASSERT_EQ(positions, expected) << k << " of " << n;
          for (std::size_t i = 0; i < k; ++i) ASSERT_EQ(format::bits_of(values[i]), format::bits_of(x[positions[i]]));
        }
        if (k == 0) continue;
        for (const std::size_t room : {all_room.size(), host::Largest::scratch_bytes(n, 0)}) {
          const float found = host::Largest{queue, {x.data(), n}, all_room.first(room)}.threshold(k);
          ASSERT_EQ(format::bits_of(found), magnitude(order[k - 1])) << k << " of " << n;
        }
      }
    }
  }
}

/// More candidates than there is room for: all magnitudes lie in one bin, or are equal.
TEST(Largest, NeedsNoRoomForAllNumbers) {
  TaskPool pool{3};
  constexpr std::size_t kMany = 100'001;
  for (const std::uint32_t varied : {0U, 0x0000ffffU, 0x000003ffU}) {
    std::vector<float> x(kMany);
    for (std::size_t i = 0; i < kMany; ++i)
      x[i] = format::float_of(0x3f800000U | (format::draw4({.seed = varied}, i).bits[0] & (0x80000000U | varied)));
    std::vector<std::uint32_t> order(kMany);
    std::iota(order.begin(), order.end(), 0U);
    std::stable_sort(order.begin(), order.end(), [&](auto a, auto b) { return std::abs(x[a]) > std::abs(x[b]); });
    for (const std::size_t k : {std::size_t{1}, kMany / 100, kMany / 4}) {
      const std::size_t bytes = host::Largest::scratch_bytes(kMany, k);
      ASSERT_LT(bytes, host::Largest::scratch_bytes(kMany, kMany));
      Arena<Space::host> arena{bytes};
      const auto scratch = arena.take_bytes(bytes);
      std::vector<std::uint32_t> expected(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(k));
      std::sort(expected.begin(), expected.end());
      for (const Queue<Space::host> queue : {Queue<Space::host>{}, Queue<Space::host>{&pool}}) {
        std::vector<std::uint32_t> positions(k);
        host::Largest{queue, {x.data(), kMany}, scratch}.select({positions.data(), k}, nullptr);
        ASSERT_EQ(positions, expected) << k;
      }
    }
  }
}

/// A sample may be typical (0), lack the large numbers (1), or have nothing else (2). Nearly all numbers may be 0 (3).
TEST(Largest, TakesTheSameWhateverItsSampleSays) {
  constexpr std::size_t kMany = host::Largest::kFewestBySample + 4321;
  std::vector<bool> in_sample(kMany);
  for (std::size_t i = 0; i < host::Largest::kSampled; ++i) in_sample[host::Largest::sampled_place(i, kMany)] = true;
  for (const int kind : {0, 1, 2, 3}) {
    std::vector<float> x(kMany);
    for (std::size_t i = 0; i < kMany; ++i) {
      x[i] = static_cast<float>(static_cast<std::int32_t>(format::draw4({.seed = 7}, i).bits[0])) * 0x1p-31F;
      if (kind == 1 && in_sample[i]) x[i] *= 1e-3F;
      if (kind == 2 && in_sample[i]) x[i] *= 1e3F;
      if (kind == 3 && i % 50 != 7) x[i] = 0.0F;
    }
    std::vector<std::uint32_t> order(kMany);
    std::iota(order.begin(), order.end(), 0U);
    std::stable_sort(order.begin(), order.end(), [&](auto a, auto b) { return std::abs(x[a]) > std::abs(x[b]); });
    for (const std::size_t k : {kMany / 1000, kMany / 100, kMany / 4}) {
      Arena<Space::host> arena{host::Largest::scratch_bytes(kMany, k)};
      std::vector<std::uint32_t> expected(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(k)), found(k);
      std::sort(expected.begin(), expected.end());
      host::Largest{{}, {x.data(), kMany}, arena.take_bytes(host::Largest::scratch_bytes(kMany, k))}.select(
          {found.data(), k}, nullptr);
      ASSERT_EQ(found, expected) << kind << " " << k;
    }
  }
}

}  // namespace
}  // namespace gradtool::test
