// The schedules of block formats and natural, replayed on the CPU against the host codecs: the bytes must be the same
// for every order of lanes and pieces, from any address, and for what is degenerate. Runs in every build.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>

#include "tests/codecs/codec_run.hpp"
#include "tests/codecs/fft_case.hpp"
#include "tests/codecs/inputs.hpp"
#include "tests/codecs/replay.hpp"

namespace gradtool::test {
namespace {

constexpr std::uint32_t kOrders = 3;
const EncodeContext kContext{.key = {.seed = 42, .step = 3, .rank = 1, .tensor = 9}};

/// `encode(order)` and `decode(payload, out, order)` play the schedule.
template <class Encode, class Decode>
void check(const std::string& spec, std::span<const float> x, const Encode& encode, const Decode& decode) {
  const std::size_t n = x.size();
  CodecRun host{spec, n};
  const auto payload = host.encode(x, kContext);
  const std::vector<float> start = gradient_like(n, 8);
  std::vector<float> expected = start;
  host.decode_add(payload, -0.3F, expected);
  for (std::uint32_t order = 0; order < kOrders; ++order) {
    const std::string what = fmt::format("{} n {} order {}", spec, n, order);
    ASSERT_EQ(encode(order), payload) << what;
    std::vector<float> shifted(n + 1, 0.0F);  // from one float behind a 16-byte border, and from the border
    for (const std::size_t shift : {std::size_t{0}, std::size_t{1}}) {
      const auto out = std::span{shifted}.subspan(shift, n);
      std::copy(start.begin(), start.end(), out.begin());
      decode(payload, out, order);
      expect_same(out, expected, what);
    }
  }
}

template <class Format>
void check_format(const std::string& name, std::size_t block, std::span<const float> x) {
  for (const bool stochastic : {false, true}) {
    std::string spec =
        fmt::format("{}{}rounding={}", name, name.back() == ':' ? "" : ",", stochastic ? "stochastic" : "nearest");
    if (Format::kBlock == 0) spec += fmt::format(",block={}", block);
    const law::BlockLayout layout{x.size(), block, sizeof(typename Format::Scale), Format::Element::kBits};
    check(
        spec, x,
        [&](std::uint32_t order) { return replay_encode_blocks<Format>(x, layout, stochastic, kContext.key, order); },
        [&](const std::vector<std::byte>& payload, std::span<float> out, std::uint32_t order) {
          replay_decode_blocks<Format>(payload, layout, -0.3F, out, order);
        });
  }
}

using Int8 = law::FloatScaled<law::SymmetricInt<8>>;
using E4M3 = law::Fp8Format<law::kE4M3>;
using E5M2 = law::Fp8Format<law::kE5M2>;

template <class Check>
void for_inputs(const Check& run) {
  for (const std::size_t n : {1, 3, 31, 33, 127, 129, 500, 4097, 20'003}) run(gradient_like(n));
  for (const float bad : {0.0F, -0.0F, 1e-40F, 0x1p-101F, 3e38F, INFINITY, -INFINITY, NAN, -NAN}) {
    auto x = gradient_like(1500);
    x[700] = bad;
    run(x);
    run(std::vector<float>(300, bad));
  }
}

TEST(BlockSchedule, GivesTheHostsBytesForBlocksOfAnySize) {
  for_inputs([](const std::vector<float>& x) {
    for (const std::size_t block : {32, 64, 96, 128, 2048, 8224}) check_format<Int8>("int8:", block, x);
    for (const std::size_t block : {4, 8, 12, 16, 128, 132, 512, 4100}) {
      check_format<E4M3>("fp8:format=e4m3", block, x);
      check_format<E5M2>("fp8:format=e5m2", block, x);
    }
  });
}

TEST(BlockSchedule, GivesTheHostsBytesForEveryMxFormat) {
  for_inputs([](const std::vector<float>& x) {
    check_format<law::MxFormat<law::kE4M3>>("mx:format=e4m3", 32, x);
    check_format<law::MxFormat<law::kE5M2>>("mx:format=e5m2", 32, x);
    check_format<law::MxFormat<law::kE3M2>>("mx:format=e3m2", 32, x);
    check_format<law::MxFormat<law::kE2M3>>("mx:format=e2m3", 32, x);
    check_format<law::MxFormat<law::kE2M1>>("mx:format=e2m1", 32, x);
    check_format<law::MxFormat<law::SmallFixed{}>>("mx:format=int8", 32, x);
  });
}

TEST(BlockSchedule, TakesAnyAddress) {
  const auto x = gradient_like(3001);
  for (std::size_t shift = 1; shift < 4; ++shift) {
    check_format<Int8>("int8:", 2048, std::span{x}.subspan(shift));
    check_format<law::MxFormat<law::kE2M3>>("mx:format=e2m3", 32, std::span{x}.subspan(shift));
  }
}

TEST(NaturalSchedule, GivesTheHostsBytesInAnyOrder) {
  const auto run = [](std::span<const float> x) {
    check(
        "natural", x, [&](std::uint32_t order) { return replay_natural_encode(x, kContext.key, order); },
        [](const std::vector<std::byte>& payload, std::span<float> out, std::uint32_t order) {
          replay_natural_decode(payload, -0.3F, out, order);
        });
  };
  for_inputs(run);
  const auto x = gradient_like(3001);
  for (std::size_t shift = 1; shift < 4; ++shift) run(std::span{x}.subspan(shift));
}

}  // namespace
}  // namespace gradtool::test
