// Tests that the state kept between steps can be saved and put into a new reducer, which then goes on as if nothing had
// happened.
#include <gtest/gtest.h>

#include "tests/codecs/codec_run.hpp"
#include "tests/reduce/model_run.hpp"

namespace gradtool::test {
namespace {

constexpr int kSteps = 8;

/// Every method with its defaults and its variants; plain codecs with error feedback too.
std::vector<std::string> all_specs() {
  std::vector<std::string> specs = own_specs();
  for (const auto& spec : specs_to_test()) {
    const CodecDescriptor& codec = *parse_codec(spec).descriptor;
    if (codec.aggregation == Aggregation::own) continue;
    specs.push_back(spec);
    if (spec == codec.name && !codec.error_feedback && !codec.memory && spec != "none" && spec != "noop")
      specs.push_back(spec + ":ef=on");
  }
  for (const char* spec : {"topk:ratio=0.1,ef=ef21", "fp16:ef=ef21", "randomk:ratio=0.1,ef=ef21",
                           "topk:ratio=0.1,ef=ef21m", "fp16:ef=ef21m,eta=0.5"})
    specs.emplace_back(spec);
  return specs;
}

bool same_tallies(const std::vector<Tally>& a, const std::vector<Tally>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const Tally& x, const Tally& y) {
    return x.what == y.what && x.part == y.part && x.whole == y.whole;
  });
}

class SavedState : public testing::TestWithParam<std::string> {};

TEST_P(SavedState, GoesOnBitForBit) {
  const auto whole = run_model({.codec = GetParam(), .steps = kSteps});
  // Once, and each time a state that was itself restored.
  for (const bool always : {false, true}) {
    SCOPED_TRACE(always ? "saved before every step" : "saved before step 4");
    const auto cut =
        run_model({.codec = GetParam(), .steps = kSteps, .saves_at = always ? -1 : kSteps / 2, .saves_always = always});
    ASSERT_EQ(cut.results, whole.results);
    ASSERT_EQ(cut.payload, whole.payload);
    ASSERT_EQ(cut.wire, whole.wire);
    ASSERT_EQ(cut.residuals, whole.residuals);
    for (std::size_t rank = 0; rank < whole.messages.size(); ++rank) {
      for (std::size_t s = 0; s < whole.messages[rank].size(); ++s) {
        ASSERT_EQ(cut.messages[rank][s].size(), whole.messages[rank][s].size());
        for (std::size_t m = 0; m < whole.messages[rank][s].size(); ++m)
          ASSERT_EQ(cut.messages[rank][s][m].bytes, whole.messages[rank][s][m].bytes) << "step " << s;
      }
    }
    EXPECT_EQ(cut.note, whole.note);
    EXPECT_TRUE(same_tallies(cut.tallies, whole.tallies));
  }
}

INSTANTIATE_TEST_SUITE_P(Registry, SavedState, testing::ValuesIn(all_specs()),
                         [](const auto& info) { return test_name(info.param); });

// The suite above would pass for a method that keeps nothing. These do keep something: without it they go on otherwise.
TEST(LostState, ChangesWhatFollows) {
  std::vector<std::string> specs{"gradiveq:lt=3,lc=9,sampling=raw,slice=4,max_slice=1100,lambda=0",
                                 "signsgd:momentum=0.9",
                                 "fft:range=calibrated",
                                 "powersgd:rank=1,ef=off",
                                 "dion",
                                 "dion2"};
  for (const auto& spec : all_specs()) {
    const CodecSpec parsed = parse_codec(spec);
    if (parsed.feedback() != Feedback::off || parsed.descriptor->delays) specs.push_back(spec);
  }
  std::size_t lossless = 0;
  for (const auto& spec : specs) {
    const auto whole = run_model({.codec = spec, .steps = kSteps});
    const auto& held = whole.residuals[0];
    if (!held.empty() && std::all_of(held.begin(), held.end(), [](float x) { return x == 0.0F; })) {
      ++lossless;  // nothing is held back, so nothing can be lost
      continue;
    }
    const auto lost = run_model({.codec = spec, .steps = kSteps, .saves_at = kSteps - 1, .loses_state = true});
    EXPECT_TRUE(lost.results != whole.results || lost.residuals != whole.residuals || lost.note != whole.note) << spec;
  }
  EXPECT_GE(specs.size() - lossless, 60U);
}

// Senders and owners both keep something: of shards, and of machines.
TEST(SavedShards, GoOnBitForBitAndMissWhatIsLost) {
  ModelSetup alltoall{.codec = "topk:ratio=0.1", .ranks = 4, .steps = kSteps, .layout = Layout::flat(4001)};
  alltoall.scheme = Scheme::alltoall;
  ModelSetup levels = alltoall;
  levels.node = 2;
  levels.inner = "topk:ratio=0.2";
  ModelSetup gathered = alltoall;
  gathered.scheme = Scheme::automatic;
  gathered.op = Collective::all_gather;
  gathered.layout = Layout::flat(4000);
  for (const ModelSetup& setup : {alltoall, levels, gathered}) {
    const auto whole = run_model(setup);
    ModelSetup cut = setup;
    cut.saves_at = 3;
    EXPECT_EQ(run_model(cut).results, whole.results);
    cut.loses_state = true;
    EXPECT_NE(run_model(cut).results, whole.results);
  }
}

TEST(ForeignState, IsRefused) {
  const Layout layout = small_model();
  const auto make = [&](const char* text, const Layout& of) {
    const CodecSpec spec = parse_codec(text);
    return make_reducer<Space::host>(spec, make_codec<Space::host>(spec, of), Scheme::automatic, of, 2, {});
  };
  const auto saved = save_state(*make("topk:ratio=0.1", layout));
  const auto expect_refused = [&](Reducer<Space::host>& reducer, std::span<const std::byte> state) {
    try {
      restore_state(reducer, state);
      ADD_FAILURE() << "was taken";
    } catch (const Error& error) {
      EXPECT_EQ(error.fault(), Fault::data);
    }
  };
  expect_refused(*make("topk:ratio=0.1", Layout::flat(layout.elements + 1)), saved);
  expect_refused(*make("powersgd", layout), saved);
  expect_refused(*make("none", layout), saved);
  expect_refused(*make("topk:ratio=0.1,ef=ef21", layout), saved);
  expect_refused(*make("topk:ratio=0.1,ef=ef21m", layout), saved);
  expect_refused(*make("topk:ratio=0.1", layout), std::span{saved}.first(saved.size() - 1));
  restore_state(*make("topk:ratio=0.1", layout), saved);
}

}  // namespace
}  // namespace gradtool::test
