// Tests NaNs after arithmetic, which differ from processor to processor: x86 keeps their bits, a GPU drops them. So
// where arithmetic comes before a payload, what ranks send to each other must not depend on which NaN went in.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>

#include "kernels/float_bits.hpp"
#include "tests/codecs/codec_run.hpp"
#include "tests/reduce/model_run.hpp"

namespace gradtool::test {
namespace {

class OneNan : public testing::TestWithParam<std::string> {};

/// NaNs next to each other and far apart, and numbers behind them in later steps.
ModelOutcome run_with(const std::string& spec, const std::array<std::uint32_t, 3>& nans) {
  const auto gradient = [&nans](int rank, int step) {
    const std::size_t n = small_model().elements;
    auto x = model_gradient(n, rank, step);
    if (step == 2 || rank != 0) return x;
    std::size_t i = 0;
    for (const std::size_t at : {std::size_t{7}, std::size_t{8}, std::size_t{450}, n / 2, n / 2 + 40, n - 3})
      x[at] = format::float_of(nans[(i++ + static_cast<std::size_t>(step)) % nans.size()]);
    return x;
  };
  return run_model({.codec = spec, .ranks = 2, .steps = 3, .gradient = gradient});
}

TEST_P(OneNan, IsSentForAll) {
  const auto expected = run_with(GetParam(), {0x7fc00000U, 0x7fc00000U, 0x7fc00000U});
  // The NaNs are that of a GPU, one with a sign and a payload, and a signalling one.
  const auto all = run_with(GetParam(), {0x7fffffffU, 0xffc00001U, 0x7fa12345U});
  for (std::size_t rank = 0; rank < all.messages.size(); ++rank) {
    for (std::size_t step = 0; step < all.messages[rank].size(); ++step) {
      const auto& is = all.messages[rank][step];
      const auto& should = expected.messages[rank][step];
      ASSERT_EQ(is.size(), should.size());
      for (std::size_t m = 0; m < is.size(); ++m)
        EXPECT_TRUE(is[m].bytes == should[m].bytes)
            << is[m].call << " is message " << m << " of rank " << rank << " in step " << step;
    }
  }
}

/// Codecs with a memory, with error feedback or without where they take both, and reducers that compute before they
/// send.
std::vector<std::string> specs_with_arithmetic() {
  std::vector<std::string> specs;
  const auto take = [&](const std::string& text) {
    const CodecSpec spec = parse_codec(text);
    if (spec.descriptor->determinism != Determinism::cross_backend) return;
    if (has_trait(text, "as-is")) return;
    if (spec.descriptor->memory || spec.error_feedback || spec.ef21) specs.push_back(text);
  };
  for (const auto& text : specs_to_test()) {
    const CodecDescriptor& codec = *parse_codec(text).descriptor;
    if (codec.aggregation == Aggregation::own) continue;
    take(text);
    if (text != codec.name || codec.memory || codec.aggregation == Aggregation::none) continue;
    take(text + ":ef=on");
    try {
      take(text + ":ef=ef21");
      take(text + ":ef=ef21m");
    } catch (const Error&) {  // it does not contract
    }
  }
  for (const auto& text : own_specs()) take(text);
  std::sort(specs.begin(), specs.end());
  specs.erase(std::unique(specs.begin(), specs.end()), specs.end());
  return specs;
}
INSTANTIATE_TEST_SUITE_P(Registry, OneNan, testing::ValuesIn(specs_with_arithmetic()),
                         [](const auto& info) { return test_name(info.param); });

/// The first step of what is sent as float32: the NaN itself is the promised one.
TEST(OneNanPayload, HoldsTheOneNan) {
  for (const char* spec : {"topk:ratio=0.3", "dct:ratio=0.3", "dgc:ratio=0.3", "dgc:ratio=0.3,nesterov=on"}) {
    const Layout layout = std::string_view{spec}.starts_with("dgc") ? small_model() : Layout::flat(3000);
    CodecRun run{spec, layout};
    auto x = gradient_like(layout.elements, 1);
    // The first two lie in a vector of small_model, which dgc sends whole.
    x[440] = format::float_of(0x7fffffffU);
    x[441] = format::float_of(0xffc00001U);
    x[600] = format::float_of(0x7fa12345U);
    x[601] = format::float_of(0xffa12345U);
    const auto payload = run.encode(x);
    std::size_t found = 0;
    for (std::size_t at = 0; at + 4 <= payload.size(); at += 4) {
      std::uint32_t word = 0;
      std::memcpy(&word, payload.data() + at, sizeof word);
      found += word == 0x7fc00000U ? 1 : 0;
    }
    EXPECT_EQ(found, 4U) << spec;
  }
}

}  // namespace
}  // namespace gradtool::test
