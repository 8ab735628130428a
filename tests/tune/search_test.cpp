#include "lib/tune/search.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <cmath>
#include <map>
#include <set>

#include "tests/core/fault.hpp"

namespace gradtool::test {
namespace {

/// A landscape that is known: sparse codecs send what their ratio says and have an error of (1 - ratio)^8; quantisers
/// halve their error twice for each bit. Time is what is sent, with a part that does not shrink.
Found planted(const std::string& spec) {
  const CodecSpec codec = parse_codec(spec);
  if (codec.name() == "topk") {
    const double ratio = codec.params.real("ratio");
    return {.error = std::pow(1.0 - ratio, 8.0), .seconds = 1e-3 + 2.0 * ratio};
  }
  if (codec.name() == "qsgd") {
    const double bits = codec.params.real("bits"), bucket = codec.params.real("bucket");
    return {.error = bucket / 512.0 * std::pow(4.0, 1.0 - bits), .seconds = 2e-3 + bits / 32.0 + 1.0 / bucket};
  }
  if (codec.name() == "powersgd") {
    const double rank = codec.params.real("rank");
    return {.error = 1.0 / (1.0 + rank), .seconds = 5e-3 + 0.01 * rank};
  }
  return {.error = 1e-6, .seconds = 0.5};
}

struct Planted {
  SearchResult result;
  std::size_t measured = 0;
  std::vector<std::size_t> of_round = std::vector<std::size_t>(kSearchRounds);
};

Planted search_planted(const std::vector<std::string>& codecs, double max_error) {
  Planted planted_search;
  SearchSpace space{codecs};
  planted_search.result = search(space, max_error, [&](const std::vector<std::string>& specs, int round) {
    std::vector<std::optional<Found>> found;
    for (const auto& spec : specs) found.emplace_back(planted(spec));
    planted_search.measured += specs.size();
    planted_search.of_round[static_cast<std::size_t>(round)] = specs.size();
    return found;
  });
  return planted_search;
}

TEST(SearchSpace, HasTheRegistrysValuesAndKeepsWhatIsGiven) {
  SearchSpace space{{"qsgd", "topk:ratio=0.03", "bf16", "qsgd:bits=5,norm=l2"}};
  const auto grid = space.grid();
  std::map<std::size_t, std::set<std::string>> specs;
  for (const Setting& setting : grid) {
    EXPECT_TRUE(specs[setting.codec].insert(setting.spec).second) << setting.spec;
    EXPECT_EQ(parse_codec(setting.spec).name(), setting.spec.substr(0, setting.spec.find(':')));
  }
  EXPECT_EQ(specs[0].size(), 15U);
  EXPECT_THAT(specs[0], testing::Contains("qsgd:bits=4,bucket=512"));
  EXPECT_THAT(specs[1], testing::ElementsAre("topk:ratio=0.03"));
  EXPECT_THAT(specs[2], testing::ElementsAre("bf16"));
  EXPECT_THAT(specs[3], testing::Contains("qsgd:bits=5,norm=l2,bucket=128"));
  EXPECT_EQ(specs[3].size(), 3U);
  SearchSpace by_tolerance{{"zfp:mode=accuracy"}};
  EXPECT_EQ(by_tolerance.grid().size(), 1U) << "the rate counts for nothing";
  // The defaults come first, so that they are tried where time is short.
  EXPECT_THAT(grid.front().spec, testing::AnyOf("qsgd:bits=4,bucket=512", "topk:ratio=0.03", "bf16"));
}

TEST(SearchSpace, EveryValueOfTheRegistryIsValid) {
  std::vector<std::string> names;
  for (const auto* codec : codecs()) names.emplace_back(codec->name);
  SearchSpace space{names};
  const auto grid = space.grid();
  EXPECT_GT(grid.size(), names.size());
  for (const Setting& setting : grid) EXPECT_NO_THROW(static_cast<void>(parse_codec(setting.spec))) << setting.spec;
}

TEST(SearchSpace, GoesHalfwayToNeighboursAndNowhereTwice) {
  SearchSpace space{{"topk", "powersgd", "int8"}};
  std::map<std::string, Setting> by_spec;
  for (const Setting& setting : space.grid()) by_spec.emplace(setting.spec, setting);
  const auto specs_around = [&](const std::string& spec) {
    std::vector<std::string> specs;
    for (const Setting& setting : space.around(by_spec.at(spec))) {
      specs.push_back(setting.spec);
      by_spec.emplace(setting.spec, setting);
    }
    return specs;
  };
  EXPECT_THAT(specs_around("topk:ratio=0.016"), testing::ElementsAre("topk:ratio=0.008", "topk:ratio=0.032"));
  EXPECT_THAT(specs_around("topk:ratio=0.008"), testing::ElementsAre("topk:ratio=0.005657", "topk:ratio=0.01131"));
  EXPECT_THAT(specs_around("powersgd:rank=8"), testing::ElementsAre("powersgd:rank=6", "powersgd:rank=11"));
  EXPECT_TRUE(specs_around("powersgd:rank=1").empty());  // 1.41 is no rank
  EXPECT_TRUE(specs_around("int8:block=2048").empty());  // a block is a multiple of 32
}

TEST(Search, FindsAtMostFivePerCentMoreThanTheBestThere) {
  for (const double limit : {0.5, 0.3, 0.1, 0.03, 0.01}) {
    double best = planted("bf16").seconds;
    for (double ratio = 0.001; ratio < 0.25; ratio *= 1.01) {
      const Found found = planted(fmt::format("topk:ratio={:.6f}", ratio));
      if (found.error <= limit) best = std::min(best, found.seconds);
    }
    for (int bits = 2; bits <= 8; ++bits) {
      for (const int bucket : {128, 512, 2048}) {
        const Found found = planted(fmt::format("qsgd:bits={},bucket={}", bits, bucket));
        if (found.error <= limit) best = std::min(best, found.seconds);
      }
    }
    for (int rank = 1; rank <= 32; ++rank) {
      const Found found = planted(fmt::format("powersgd:rank={}", rank));
      if (found.error <= limit) best = std::min(best, found.seconds);
    }
    const Planted done = search_planted({"topk", "qsgd", "powersgd", "bf16"}, limit);
    double found = INFINITY;
    for (const auto& spec : done.result.finalists) {
      const Found one = planted(spec);
      if (one.error <= limit) found = std::min(found, one.seconds);
    }
    EXPECT_LE(found, 1.05 * best) << "limit " << limit;
    EXPECT_LE(done.measured, 150U) << "limit " << limit;
  }
}

TEST(Search, EndsWithTheFastestAndOthersWithLessError) {
  const Planted done = search_planted({"topk", "qsgd", "powersgd", "bf16"}, 0.3);
  const auto& finalists = done.result.finalists;
  ASSERT_GE(finalists.size(), 4U);
  ASSERT_LE(finalists.size(), 10U);
  EXPECT_EQ(std::set(finalists.begin(), finalists.end()).size(), finalists.size());
  double least = 1.0;
  for (const auto& spec : finalists) {
    least = std::min(least, planted(spec).error);
    EXPECT_LE(planted(spec).error, 0.3) << spec;
  }
  EXPECT_LT(least, 0.01) << "the other end of the front";
  EXPECT_LT(done.of_round[1], done.of_round[0]);
}

// A sparsifier with a memory is fastest at any ratio and needs a trial; the advice may take a quantiser alone.
TEST(Search, GivesWhatNeedsATrialHalfOfTheTurnsAtMost) {
  SearchSpace space{{"topk", "qsgd", "powersgd", "bf16"}};
  const SearchResult result = search(space, 0.9, [](const std::vector<std::string>& specs, int) {
    std::vector<std::optional<Found>> found;
    for (const auto& spec : specs) {
      found.emplace_back(planted(spec));
      found.back()->sure = spec.substr(0, 4) == "qsgd" || spec == "bf16";
      if (!found.back()->sure) found.back()->seconds *= 1e-3;
    }
    return found;
  });
  double best = INFINITY;
  for (int bits = 2; bits <= 8; ++bits) {
    for (const int bucket : {128, 512, 2048}) {
      const Found one = planted(fmt::format("qsgd:bits={},bucket={}", bits, bucket));
      if (one.error <= 0.9) best = std::min(best, one.seconds);
    }
  }
  double found = INFINITY;
  std::size_t sure = 0;
  for (const auto& spec : result.finalists) {
    if (spec.substr(0, 4) != "qsgd") continue;
    ++sure;
    found = std::min(found, planted(spec).seconds);
  }
  EXPECT_LE(found, 1.05 * best);
  EXPECT_GE(sure, 2U);
  EXPECT_LT(sure, result.finalists.size());
}

TEST(Search, SaysWhatComesNearestWhereNothingFits) {
  const Planted done = search_planted({"topk"}, 1e-9);
  ASSERT_FALSE(done.result.finalists.empty());
  EXPECT_EQ(done.result.finalists.front(), "topk:ratio=0.25");
}

TEST(Search, KeepsWhatItKnowsWhenTimeIsOver) {
  SearchSpace space{{"topk", "qsgd"}};
  const SearchResult result = search(space, 0.5, [](const std::vector<std::string>& specs, int round) {
    std::vector<std::optional<Found>> found(specs.size());
    for (std::size_t i = 0; i < specs.size() && round == 0; i += 2) found[i] = planted(specs[i]);
    return found;
  });
  EXPECT_FALSE(result.finalists.empty());
  for (const auto& spec : result.finalists) EXPECT_LE(planted(spec).error, 1.0) << spec;
  // A later round that measures one setting, and finds it wrong, takes nothing from what the first one found.
  SearchSpace again{{"topk", "qsgd", "bf16"}};
  const SearchResult cut = search(again, 0.1, [](const std::vector<std::string>& specs, int round) {
    std::vector<std::optional<Found>> found;
    for (const auto& spec : specs) found.emplace_back(round == 0 ? std::optional{planted(spec)} : std::nullopt);
    if (round > 0) found[0] = Found{.error = 0.9, .seconds = 1.0};
    return found;
  });
  EXPECT_THAT(cut.finalists, testing::Contains("bf16"));
  EXPECT_GE(cut.finalists.size(), 3U);
  // One that comes to nothing when more steps are looked at is not remembered for what it was.
  SearchSpace wild{{"qsgd", "bf16"}};
  const SearchResult tamed = search(wild, 0.1, [](const std::vector<std::string>& specs, int round) {
    std::vector<std::optional<Found>> found;
    for (const auto& spec : specs) {
      const bool bursts = round > 0 && spec.starts_with("qsgd");
      found.emplace_back(bursts ? Found{.error = INFINITY, .seconds = INFINITY} : planted(spec));
    }
    return found;
  });
  EXPECT_EQ(tamed.finalists, (std::vector<std::string>{"bf16"}));
  SearchSpace none{{"topk"}};
  const SearchResult nothing = search(none, 0.5, [](const std::vector<std::string>& specs, int) {
    return std::vector<std::optional<Found>>(specs.size());
  });
  EXPECT_TRUE(nothing.finalists.empty());
}

}  // namespace
}  // namespace gradtool::test
