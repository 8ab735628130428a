// The GPU's schedules, replayed on the CPU against the host codecs: the bytes must be the same for every order of
// lanes, buckets and tiles. Runs in every build; the sanitizers watch the indices.
#include <gtest/gtest.h>

#include <fmt/format.h>
#include <cmath>
#include <utility>

#include "lib/core/error.hpp"
#include "tests/codecs/codec_run.hpp"
#include "tests/codecs/fft_case.hpp"
#include "tests/codecs/inputs.hpp"
#include "tests/codecs/replay.hpp"

namespace gradtool::test {
namespace {

constexpr std::uint32_t kOrders = 4;
const EncodeContext kContext{.key = {.seed = 42, .step = 3, .rank = 1, .tensor = 9}};

template <std::uint32_t Bits>
void check_qsgd(std::size_t n, std::size_t bucket, bool l2, std::span<const float> x) {
  const std::string spec = fmt::format("qsgd:bits={},bucket={},norm={}", Bits, bucket, l2 ? "l2" : "max");
  CodecRun host{spec, n};
  const auto payload = host.encode(x, kContext);
  std::vector<float> start = gradient_like(n, 8);
  std::vector<float> expected = start;
  host.decode_add(payload, -0.3F, expected);
  for (std::uint32_t order = 0; order < kOrders; ++order) {
    const std::string what = fmt::format("{} n {} order {}", spec, n, order);
    ASSERT_EQ(replay_qsgd_encode<Bits>(x, bucket, l2, kContext.key, order), payload) << what;
    std::vector<float> out = start;
    replay_qsgd_decode<Bits>(payload, bucket, -0.3F, out, order);
    expect_same(out, expected, what);
    std::vector<float> shifted(n + 1, 0.0F);  // from one float behind a 16-byte border
    std::copy(start.begin(), start.end(), shifted.begin() + 1);
    replay_qsgd_decode<Bits>(payload, bucket, -0.3F, std::span{shifted}.subspan(1), order);
    expect_same(std::span{shifted}.subspan(1), expected, what);
  }
}

template <std::uint32_t Bits>
void check_qsgd_sizes() {
  for (const std::size_t bucket : {std::size_t{32}, std::size_t{96}, std::size_t{512}, std::size_t{8224}}) {
    for (const std::size_t n : {1, 3, 31, 33, 127, 129, 500, 1025, 8224, 20'003}) {
      const auto x = gradient_like(n);
      check_qsgd<Bits>(n, bucket, n % 2 == 0, x);
    }
  }
}

TEST(QsgdSchedule, GivesTheHostsBytesInAnyOrder) {
  [&]<std::uint32_t... I>(std::integer_sequence<std::uint32_t, I...>) {
    (check_qsgd_sizes<I + 2>(), ...);
  }
  (std::make_integer_sequence<std::uint32_t, 7>{});
}

TEST(QsgdSchedule, GivesTheHostsBytesFromAnyAddress) {
  const auto x = gradient_like(3001);
  for (std::size_t shift = 0; shift < 4; ++shift) check_qsgd<4>(3001 - shift, 512, false, std::span{x}.subspan(shift));
}

TEST(QsgdSchedule, GivesTheHostsBytesForDegenerateInput) {
  for (const bool l2 : {false, true}) {
    for (const float bad : {0.0F, -0.0F, 1e-40F, 3e38F, INFINITY, -INFINITY, NAN, -NAN}) {
      auto x = gradient_like(1500);
      x[700] = bad;
      check_qsgd<3>(x.size(), 512, l2, x);
      check_qsgd<8>(x.size(), 512, l2, std::vector<float>(x.size(), bad));
    }
  }
}

void check_fft(const FftCase& test, const std::vector<float>& spectrum) {
  const auto payload = test.pack(spectrum);
  const auto other = test.pack(gradient_like(spectrum.size(), 5));
  const auto expected = test.unpack({payload, other, payload});
  for (std::uint32_t order = 0; order < kOrders; ++order) {
    const std::string what = fmt::format("{} order {}", test.name(), order);
    ASSERT_EQ(replay_fft_pack(spectrum, test.header, test.format, test.unit, test.scaled, order), payload) << what;
    for (const std::size_t rows : {1, 3})
      expect_same(replay_fft_unpack({payload, other, payload}, test.header, test.format, test.shape, order, rows),
                  expected, what);
  }
}

TEST(FftSchedule, GivesTheHostsBytesInAnyOrder) {
  for (const law::FftShape shape :
       {law::FftShape{4, 1}, law::FftShape{63, 1}, law::FftShape{65, 1}, law::FftShape{2046, 1}, law::FftShape{2048, 1},
        law::FftShape{256, 20}, law::FftShape{4099, 3}, law::FftShape{256, 3, 100}, law::FftShape{65, 2, 64},
        law::FftShape{4099, 1, 7}}) {
    const std::size_t bins = shape.bins();
    for (const std::size_t kept : {std::size_t{0}, std::size_t{1}, bins / 7, bins / 2, bins - 1, bins}) {
      for (const std::uint32_t bits : {4u, 9u, 10u, 16u, 32u}) {
        check_fft(FftCase{shape, kept, bits, bits % 2 == 0}, gradient_like(2 * bins));
      }
    }
  }
}

TEST(FftSchedule, BreaksTiesInIndexOrder) {
  const law::FftShape shape{1000, 9};
  std::vector<float> spectrum = gradient_like(2 * shape.bins());
  for (std::size_t i = 0; i < spectrum.size(); ++i) spectrum[i] = i / 2 % 3 == 0 ? 0.5F : spectrum[i];
  for (const std::size_t kept : {std::size_t{1}, shape.bins() / 5, shape.bins() / 3, shape.bins() / 2}) {
    check_fft(FftCase{shape, kept, 10, true}, spectrum);
    check_fft(FftCase{shape, kept, 10, true}, std::vector<float>(spectrum.size(), 0.25F));
  }
}

TEST(FftSchedule, GivesTheHostsBytesForDegenerateSpectra) {
  const law::FftShape shape{3000, 1};
  const std::size_t bins = shape.bins();
  for (const float value : {0.0F, -0.0F, 1e-40F, 0x1p-101F, 1e30F, INFINITY, NAN, -NAN}) {
    for (const std::uint32_t bits : {7u, 32u}) {
      for (const std::size_t kept : {std::size_t{0}, bins / 4, bins}) {
        for (const bool scaled : {false, true}) {
          const FftCase test{shape, kept, bits, scaled};
          check_fft(test, std::vector<float>(2 * bins, value));
          auto spectrum = gradient_like(2 * bins);
          spectrum[700] = value;
          spectrum[1401] = value;
          check_fft(test, spectrum);
        }
      }
    }
  }
}

/// The host refuses a damaged payload; a GPU cannot throw, so it answers with NaN, for the same payloads.
TEST(FftSchedule, DamagedPayloadsAreNaNWhereTheHostRefuses) {
  const law::FftShape shape{260, 5};
  for (const std::size_t kept : {std::size_t{0}, shape.bins() / 3, shape.bins()}) {
    const FftCase test{shape, kept, 10, true};
    const auto good = test.pack(gradient_like(2 * shape.bins()));
    int refused = 0;
    int taken = 0;
    const auto check = [&](std::vector<std::byte> bytes, const std::string& what) {
      bytes.shrink_to_fit();
      const auto replayed = replay_fft_unpack({good, bytes}, test.header, test.format, test.shape, 2);
      try {
        expect_same(replayed, test.unpack({good, bytes}), what);
        ++taken;
      } catch (const Error& error) {
        ASSERT_EQ(error.fault(), Fault::data);
        for (std::size_t i = 0; i < replayed.size(); i += 2)
          ASSERT_TRUE(std::isnan(replayed[i])) << what << " bin " << i / 2;
        ++refused;
      }
    };
    for (std::size_t flip = 0; flip < good.size() * 8; flip += flip < 2000 ? 1 : 37) {
      auto damaged = good;
      damaged[flip / 8] ^= static_cast<std::byte>(1U << flip % 8);
      check(damaged, fmt::format("kept {} flip {}", kept, flip));
    }
    for (std::size_t length = sizeof(law::FftHeader); length < good.size(); length += 4) {
      check({good.begin(), good.begin() + static_cast<std::ptrdiff_t>(length)},
            fmt::format("kept {} cut to {}", kept, length));
    }
    EXPECT_GT(refused, 100);
    EXPECT_GT(taken, 20);
  }
}

}  // namespace
}  // namespace gradtool::test
