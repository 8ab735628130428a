// Tests the duties of every codec over the registry: a codec gets these tests by existing.
#include <gtest/gtest.h>

#include <cmath>

#include "lib/core/allocation_watch.hpp"
#include "lib/core/error.hpp"
#include "tests/codecs/codec_run.hpp"
#include "tests/codecs/inputs.hpp"

namespace gradtool::test {
namespace {

const std::vector<std::size_t> kSizes{0,   1,    7,    31,   32,    33,    511,   512,
                                      513, 1023, 1024, 1025, 65535, 65536, 65537, 100'003};
const EncodeContext kContext{
    .key = {.seed = 42, .step = 3, .rank = 1, .tensor = 9}, .iteration = 3, .learning_rate_ratio = 0.5};

class Conformance : public testing::TestWithParam<std::string> {};

TEST_P(Conformance, KeepsItsDeclaredBoundAtEverySize) {
  for (const std::size_t n : kSizes) {
    CodecRun run{GetParam(), n};
    const auto x = gradient_like(n);
    const auto y = run.decode(run.encode(x, kContext));
    const ErrorBound bound = run.codec().bound(n);
    double largest = 0.0;
    double worst = 0.0;
    for (std::size_t i = 0; i < n; ++i) {
      ASSERT_TRUE(std::isfinite(y[i])) << "n " << n << " i " << i;
      largest = std::max(largest, std::abs(static_cast<double>(x[i])));
      worst = std::max(worst, std::abs(static_cast<double>(x[i]) - static_cast<double>(y[i])));
    }
    // A schedule may keep more at this step than the bound assumes, never less.
    if (std::isfinite(bound.nmse)) EXPECT_LE(nmse(x, y), bound.nmse) << "n " << n;
    if (std::isfinite(bound.of_largest)) EXPECT_LE(worst, bound.of_largest * largest + bound.absolute) << "n " << n;
  }
}

TEST_P(Conformance, WritesEveryByteAndReadsNoneItDidNotWrite) {
  for (const std::size_t n : kSizes) {
    CodecRun run{GetParam(), n};
    const auto x = gradient_like(n);
    EXPECT_EQ(run.encode(x, kContext, 0xA5), run.encode(x, kContext, 0x00)) << "n " << n;
  }
}

TEST_P(Conformance, StaysInsideItsFootprint) {
  for (const std::size_t n : kSizes) {
    CodecRun run{GetParam(), n};
    const auto payload = run.encode(gradient_like(n), kContext);
    EXPECT_LE(payload.size(), run.footprint().payload_bytes) << "n " << n;
    if (run.footprint().exact) EXPECT_EQ(payload.size(), run.footprint().payload_bytes) << "n " << n;
  }
}

TEST_P(Conformance, SameKeySameBytesForAnyNumberOfThreads) {
  for (const std::size_t n : {std::size_t{7}, std::size_t{1025}, std::size_t{100'003}}) {
    CodecRun one{GetParam(), n};
    CodecRun three{GetParam(), n, 3};
    const auto x = gradient_like(n);
    const auto payload = one.encode(x, kContext);
    EXPECT_EQ(payload, three.encode(x, kContext)) << "n " << n;
    EXPECT_EQ(one.decode(payload), three.decode(payload)) << "n " << n;
  }
}

TEST_P(Conformance, DecodeAddsWithItsWeight) {
  const std::size_t n = 1025;
  CodecRun run{GetParam(), n};
  const auto payload = run.encode(gradient_like(n), kContext);
  const auto once = run.decode(payload);
  std::vector<float> out(n, 1.0F);
  run.decode_add(payload, -0.5F, out);
  for (std::size_t i = 0; i < n; ++i) ASSERT_NEAR(out[i], 1.0F - 0.5F * once[i], 1e-6F) << i;
}

TEST_P(Conformance, DecodingAllAtOnceIsDecodingOneByOne) {
  const std::size_t n = 5000;
  CodecRun run{GetParam(), n};
  std::vector<Arena<Space::host>> arenas;
  std::vector<HostView<const std::byte>> views;
  std::vector<float> expected(n, 0.0F);
  arenas.reserve(20);
  for (std::uint32_t rank = 0; rank < 20; ++rank) {  // more than a codec may sum in one batch
    EncodeContext context = kContext;
    context.key.rank = rank;
    const auto payload = run.encode(gradient_like(n, rank), context);
    run.decode_add(payload, 0.05F, expected);
    auto view = arenas.emplace_back(payload.size()).take_bytes(payload.size());
    if (!payload.empty()) std::memcpy(view.data(), payload.data(), payload.size());
    views.emplace_back(view);
  }
  std::vector<float> out(n, 0.0F);
  run.codec().decode_add_all(run.queue(), views, 0.05F, {out.data(), n}, run.scratch());
  for (std::size_t i = 0; i < n; ++i) ASSERT_NEAR(out[i], expected[i], 1e-7F) << i;
}

TEST_P(Conformance, AllocatesNothingInTheTimedRegion) {
  ASSERT_TRUE(AllocationWatch::active());
  for (const int threads : {1, 2}) {
    const std::size_t n = 100'003;
    CodecRun run{GetParam(), n, threads};
    const auto x = gradient_like(n);
    std::vector<float> out(n, 0.0F);
    const auto payload = run.encode(x, kContext);  // also leaves the payload in place
    const AllocationWatch watch;
    run.codec().encode(run.queue(), {x.data(), n}, kContext, run.payload(), run.scratch());
    run.codec().decode_add(run.queue(), run.payload().first(payload.size()), 1.0F, {out.data(), n}, run.scratch());
    EXPECT_EQ(watch.in_process(), 0U) << threads << " threads";
  }
}

class Unbiased : public testing::TestWithParam<std::string> {};

TEST_P(Unbiased, MeanOverSeedsIsTheInput) {
  const std::size_t n = 4096;
  CodecRun run{GetParam(), n};
  const auto x = gradient_like(n, 5);
  constexpr int kSeeds = 60;
  std::vector<std::vector<float>> results;
  for (int seed = 0; seed < kSeeds; ++seed) {
    EncodeContext context = kContext;
    context.key.seed = static_cast<std::uint64_t>(1000 + seed);
    results.push_back(run.decode(run.encode(x, context)));
  }
  // z-tests on sums of errors: blocks of 256 elements (plainly, and along the sign of x, where a bias of the magnitude
  // would show), 5 sigma each; and all of them along x, 4 sigma. Sigma comes from the sums of the seeds, because the
  // errors of one result need not be independent: a method that draws directions makes them all at once.
  const auto z_score = [&](std::size_t first, std::size_t last, auto direction) {
    double mean = 0.0;
    double square = 0.0;
    for (const auto& y : results) {
      double sum = 0.0;
      for (std::size_t i = first; i < last; ++i)
        sum += direction(static_cast<double>(x[i])) * (static_cast<double>(y[i]) - static_cast<double>(x[i]));
      mean += sum / kSeeds;
      square += sum * sum / kSeeds;
    }
    const double variance = std::max(square - mean * mean, 0.0) / (kSeeds - 1);
    if (variance == 0.0)
      return std::abs(mean) <= 1e-12 ? 0.0 : HUGE_VAL;  // the same for every seed: then it must be exact
    return std::abs(mean) / std::sqrt(variance);
  };
  for (std::size_t first = 0; first < n; first += 256) {
    EXPECT_LE(z_score(first, first + 256, [](double) { return 1.0; }), 5.0) << first;
    EXPECT_LE(z_score(first, first + 256, [](double v) { return v < 0 ? -1.0 : 1.0; }), 5.0) << first;
  }
  EXPECT_LE(z_score(0, n, [](double v) { return v; }), 4.0);
}

/// Cut, lengthened and flipped payloads of a codec for units of a layout.
void damage(const std::string& spec, const Layout& layout) {
  const std::size_t n = layout.elements;
  CodecRun run{spec, layout};
  const auto payload = run.encode(gradient_like(n), kContext);
  std::vector<float> out(n);
  const auto attempt = [&](std::span<const std::byte> bytes) {
    try {
      run.decode_add(bytes, 1.0F, out);
      return true;
    } catch (const Error& error) {
      EXPECT_EQ(error.fault(), Fault::data);
      EXPECT_FALSE(std::string{error.what()}.empty());
      return false;
    }
  };
  for (std::size_t length = 0; length < payload.size(); length += 1 + length / 16) {
    EXPECT_FALSE(attempt({payload.data(), length}))
        << "a payload cut to " << length << " of " << payload.size() << " was taken";
  }
  auto longer = payload;
  longer.resize(payload.size() + 4);
  EXPECT_FALSE(attempt(longer));
  for (std::size_t flip = 0; flip < payload.size() * 8; flip += 1 + flip / 97) {
    auto damaged = payload;
    damaged[flip / 8] ^= static_cast<std::byte>(1U << flip % 8);
    attempt(damaged);  // either way; the sanitizers watch
  }
}

TEST_P(Conformance, DamagedPayloadsThrowOrStayInBounds) {
  damage(GetParam(), Layout::flat(1025));
}

/// Codecs that look at the shapes of tensors, over units of several.
class ByLayout : public testing::TestWithParam<std::string> {};

TEST_P(ByLayout, UnitsOfSeveralTensors) {
  const Layout layout = several_tensors();
  const auto x = gradient_like(layout.elements, 3);
  CodecRun one{GetParam(), layout};
  CodecRun three{GetParam(), layout, 3};
  const auto payload = one.encode(x, kContext);
  EXPECT_EQ(payload, one.encode(x, kContext, 0x00)) << "a byte was not written, or read before it was";
  EXPECT_EQ(payload, three.encode(x, kContext));
  const auto y = one.decode(payload);
  EXPECT_EQ(y, three.decode(payload));
  for (const float value : y) ASSERT_TRUE(std::isfinite(value));
  damage(GetParam(), layout);
}

TEST_P(Conformance, NonFiniteInputComesOutNonFinite) {
  const std::size_t n = 4096;
  CodecRun run{GetParam(), n};
  for (const float bad : {NAN, INFINITY, -INFINITY}) {
    auto x = gradient_like(n);
    x[1000] = bad;
    if (has_trait(GetParam(), "draws")) std::fill(x.begin(), x.end(), bad);
    const auto y = run.decode(run.encode(x, kContext));
    bool seen = false;
    for (const float value : y) seen = seen || !std::isfinite(value);
    if (run.codec().values_sent(n) > 0) EXPECT_TRUE(seen) << bad;
  }
}

TEST_P(Conformance, DegenerateInputsGiveFiniteResults) {
  const std::size_t n = 3000;
  CodecRun run{GetParam(), n};
  const auto check = [&](std::vector<float> x, const char* what) {
    for (const float value : run.decode(run.encode(x, kContext))) ASSERT_TRUE(std::isfinite(value)) << what;
  };
  check(std::vector<float>(n, 0.0F), "zeros");
  check(std::vector<float>(n, -0.0F), "negative zeros");
  check(std::vector<float>(n, 0.25F), "constant");
  check(std::vector<float>(n, 1e-40F), "denormal");
  std::vector<float> outlier(n, 1e-6F);
  outlier[7] = 32.0F;  // fp16:scale_log2=10 overflows above 63
  check(outlier, "one outlier");
  for (const float value : run.decode(run.encode(std::vector<float>(n, 0.0F), kContext))) ASSERT_EQ(value, 0.0F);
}

/// The specs whose codec says that it is so.
std::vector<std::string> specs_that_are(bool CodecDescriptor::*property) {
  std::vector<std::string> specs;
  for (const auto& spec : specs_to_test()) {
    if (parse_codec(spec).descriptor->*property) specs.push_back(spec);
  }
  return specs;
}

INSTANTIATE_TEST_SUITE_P(Registry, Unbiased, testing::ValuesIn(specs_that_are(&CodecDescriptor::unbiased)),
                         [](const auto& info) { return test_name(info.param); });
INSTANTIATE_TEST_SUITE_P(Registry, ByLayout, testing::ValuesIn(specs_that_are(&CodecDescriptor::by_layout)),
                         [](const auto& info) { return test_name(info.param); });
INSTANTIATE_TEST_SUITE_P(Registry, Conformance, testing::ValuesIn(specs_to_test()),
                         [](const auto& info) { return test_name(info.param); });

}  // namespace
}  // namespace gradtool::test
