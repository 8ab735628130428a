// Tests what the record of gradtool train says about codecs, and what several records say together.
#include "lib/advice/own_trial.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "lib/core/error.hpp"

namespace gradtool::test {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;
using Verdict = OwnTrial::Verdict;
using testing::HasSubstr;

/// A record of gradtool train whose runs are planted.
class TrainingRecord : public testing::Test {
 protected:
  TrainingRecord() : folder_{fs::path{testing::TempDir()} / fmt::format("own_trial_{}", getpid())} {
    fs::create_directories(folder_);
    record_ = {{"format", "gradtool.train"}, {"schema_version", 1}, {"elements", 9}};
    record_["settings"] = {{"--model", "lenet5"},
                           {"--dataset", "fashion-mnist"},
                           {"--reduce", "auto"},
                           {"--workers", "4"},
                           {"the number of steps", "300"}};
    record_["runs"] = Json::array();
    record_["rows"] = Json::array();
  }
  ~TrainingRecord() override { fs::remove_all(folder_); }
  TrainingRecord(const TrainingRecord&) = delete;
  TrainingRecord& operator=(const TrainingRecord&) = delete;

  /// A run with two rows; an accuracy below 0 stands for no test set.
  Json& add(const std::string& codec, int seed, double accuracy, double last_loss = 0.5,
            const char* status = "finished") {
    const CodecSpec spec = parse_codec(codec);
    const std::string params = spec.params_text().empty() ? "default" : spec.params_text();
    for (const double loss : {2.5, last_loss}) {
      Json row{{"codec", spec.name()}, {"params", params}, {"seed", seed}, {"train_loss", loss}};
      row["test_accuracy"] = accuracy < 0.0 ? Json() : Json(loss == last_loss ? accuracy : 0.1);
      record_["rows"].push_back(row);
    }
    record_["runs"].push_back({{"codec", spec.name()}, {"params", params}, {"seed", seed}, {"status", status}});
    return record_["runs"].back();
  }
  std::string write(const std::string& name = "train.json") const {
    std::ofstream{folder_ / name} << record_.dump();
    return (folder_ / name).string();
  }
  OwnTrial read() const { return read_own_trial(write()); }
  static ResultRow row_of(const std::string& codec) { return ResultRow{parse_codec(codec)}; }
  static const OwnTrial::Arm& arm(const OwnTrial& trial, const std::string& codec) {
    const auto* found = trial.arm_of(row_of(codec));
    EXPECT_NE(found, nullptr) << codec;
    return *found;
  }

  fs::path folder_;
  Json record_;
};

TEST_F(TrainingRecord, TakesAPointOfAccuracyForItsToleranceAndPairsBySeed) {
  for (int seed = 1; seed <= 3; ++seed) {
    const double none = 0.5 + 0.1 * seed;
    add("none", seed, none);
    add("bf16", seed, none - 0.002 - 0.001 * seed);
    add("qsgd:bits=2", seed, none - 0.05 - 0.001 * seed);
    add("topk:ratio=0.01", seed, none - 0.02 * seed);
    add("signsgd", seed, none - 0.101);
  }
  const OwnTrial trial = read();
  EXPECT_EQ(trial.elements, 9U);
  EXPECT_EQ(trial.tolerance, 1.0);
  ASSERT_EQ(trial.arms.size(), 4U);
  // Worse by 0.3, 0.4 and 0.5 points: t(2) = 4.303, so 0.4 +- 0.248.
  const auto& learns = arm(trial, "bf16");
  EXPECT_EQ(learns.verdict, Verdict::learns);
  EXPECT_NEAR(*learns.worse_by, 0.4, 1e-9);
  EXPECT_NEAR(*learns.high, 0.4 + 0.2484, 1e-4);
  EXPECT_EQ(arm(trial, "qsgd:bits=2").verdict, Verdict::loses);
  EXPECT_EQ(trial.arm_of(row_of("qsgd:bits=4")), nullptr);
  // 2, 4 and 6 points: 4 +- 4.97 has the tolerance in it.
  EXPECT_EQ(arm(trial, "topk:ratio=0.01").verdict, Verdict::undecided);
  EXPECT_EQ(arm(trial, "topk:ratio=0.01").reason, "more seeds or steps would tell");
  EXPECT_EQ(arm(trial, "signsgd").verdict, Verdict::loses);
  EXPECT_THAT(trial.words(learns), HasSubstr("(lenet5 on fashion-mnist, 4 workers, 300 steps) it learns: its accuracy "
                                             "is worse by 0.4 points (95 %: 0.15 to 0.65)"));
}

TEST_F(TrainingRecord, CountsForTheWayThatAnArmTook) {
  for (int seed = 1; seed <= 2; ++seed) {
    add("none", seed, 0.9);
    add("nvfp4:reduce=alltoall,own=exact", seed, 0.9 - 1e-4 * seed);
    add("natural:reduce=alltoall", seed, 0.9 - 1e-4 * seed);
    add("int8", seed, 0.9 - 1e-4 * seed);
    add("fp8:reduce=hop", seed, 0.5 - 1e-4 * seed);
    add("mx", seed, 0.9 - 1e-4 * seed);
    add("mx:reduce=gather", seed, 0.5 - 1e-4 * seed);
    add("uint8", seed, 0.9 - 1e-4 * seed);
    add("uint8:reduce=hop", seed, 0.5 - 1e-4 * seed);
  }
  const OwnTrial trial = read();
  const auto verdict = [&](const std::string& codec, Scheme scheme) -> std::optional<Verdict> {
    ResultRow row = row_of(codec);
    row.scheme = scheme;
    const auto* arm = trial.arm_of(row);
    return arm == nullptr ? std::nullopt : std::optional{arm->verdict};
  };
  EXPECT_EQ(verdict("natural", Scheme::alltoall), Verdict::learns);
  EXPECT_EQ(verdict("natural:reduce=alltoall", Scheme::alltoall), Verdict::learns);
  EXPECT_EQ(verdict("natural", Scheme::gather), std::nullopt);
  EXPECT_EQ(verdict("nvfp4:reduce=alltoall,own=exact", Scheme::alltoall), Verdict::learns);
  EXPECT_EQ(verdict("nvfp4", Scheme::alltoall), std::nullopt);
  EXPECT_EQ(verdict("int8", Scheme::gather), Verdict::learns);
  EXPECT_EQ(verdict("int8", Scheme::alltoall), std::nullopt);
  EXPECT_EQ(verdict("int8:reduce=alltoall", Scheme::alltoall), std::nullopt);
  for (const Scheme scheme : {Scheme::gather, Scheme::alltoall, Scheme::hop})
    EXPECT_EQ(verdict("fp8", scheme), Verdict::loses);
  EXPECT_EQ(verdict("mx", Scheme::gather), Verdict::loses) << "of the same way the worse verdict counts";
  EXPECT_EQ(verdict("uint8", Scheme::gather), Verdict::learns);
  EXPECT_EQ(verdict("uint8", Scheme::alltoall), Verdict::loses);
  EXPECT_FALSE(OwnTrials{{trial}}.loses(parse_codec("uint8"))) << "it learns by one way";
  ResultRow shards = row_of("int8");
  shards.op = Collective::reduce_scatter;
  shards.scheme = Scheme::hop;
  EXPECT_EQ(trial.arm_of(shards), nullptr);
  EXPECT_TRUE(OwnTrials{{trial}}.loses(parse_codec("fp8:reduce=alltoall")));
  EXPECT_FALSE(OwnTrials{{trial}}.loses(parse_codec("natural")));
}

TEST_F(TrainingRecord, DecidesWithOneSeedOnlyWhatIsFarOff) {
  add("none", 1, 0.9);
  add("bf16", 1, 0.9);
  add("signsgd", 1, 0.79);
  add("topk", 1, 0.85);
  const OwnTrial trial = read();
  EXPECT_EQ(arm(trial, "bf16").verdict, Verdict::undecided);
  EXPECT_EQ(arm(trial, "bf16").reason, "one seed has no interval");
  EXPECT_EQ(arm(trial, "topk").verdict, Verdict::undecided);
  EXPECT_EQ(arm(trial, "signsgd").verdict, Verdict::loses);
  EXPECT_EQ(arm(trial, "signsgd").reason, "far beyond the tolerance with every seed");
}

TEST_F(TrainingRecord, WithoutATestSetAllowsTheTrainingLossWhatATrialAllows) {
  for (int seed = 1; seed <= 3; ++seed) {
    add("none", seed, -1.0, 0.5);
    add("bf16", seed, -1.0, 0.51 + 0.001 * seed);
    add("signsgd", seed, -1.0, 0.55 + 0.001 * seed);
  }
  const OwnTrial trial = read();
  EXPECT_EQ(trial.judge, "training loss");
  EXPECT_NEAR(*trial.tolerance, 0.02 * 2.0, 1e-12);
  EXPECT_EQ(arm(trial, "bf16").verdict, Verdict::learns);
  EXPECT_EQ(arm(trial, "signsgd").verdict, Verdict::loses);
}

TEST_F(TrainingRecord, JudgesNoRunThatOnlyTriedALearningRateOrIsNotOver) {
  for (int seed = 1; seed <= 3; ++seed) {
    add("none", seed, 0.9);
    add("bf16", seed, 0.9 + 0.001 * seed);
    add("topk", seed, 0.9, 0.5, seed == 2 ? "diverged" : "finished");
    add("int8", seed, 0.9 + 0.001 * seed, 0.5, seed == 2 ? "unfinished" : "finished");
    add("gradiveq", seed, 0.9)["reached"] = false;
    for (auto& run : record_["runs"]) run["lr_factor"] = 0.5;
    for (auto& row : record_["rows"]) row["lr_factor"] = 0.5;
  }
  // An arm that was tried at another rate, and lost there.
  Json& tried = add("bf16", 1, 0.1);
  tried["judged"] = false;
  tried["lr_factor"] = 1.0;
  const OwnTrial trial = read();
  EXPECT_EQ(arm(trial, "bf16").verdict, Verdict::learns);
  EXPECT_EQ(arm(trial, "bf16").lr_factor, 0.5);
  EXPECT_NEAR(*arm(trial, "bf16").worse_by, -0.2, 1e-9);
  EXPECT_THAT(trial.words(arm(trial, "bf16")),
              HasSubstr("its accuracy is better by 0.2 points (95 %: -0.048 to 0.45)"));
  EXPECT_EQ(arm(trial, "topk").verdict, Verdict::loses);
  EXPECT_THAT(trial.words(arm(trial, "topk")),
              HasSubstr("it loses with learning rates times 0.5: it diverged with seed 2"));
  EXPECT_EQ(arm(trial, "int8").reason, "has not finished with seed 2");
  EXPECT_EQ(arm(trial, "gradiveq").reason, "has not been at work in 300 steps");
}

TEST_F(TrainingRecord, KnowsACodecThatHasGotParametersSinceTheRecord) {
  for (int seed = 1; seed <= 3; ++seed) {
    add("none", seed, 0.9);
    add("int8", seed, 0.5 + 0.001 * seed);
  }
  for (const char* part : {"runs", "rows"}) {
    for (auto& one : record_[part]) {
      if (one["codec"] == "int8") one["params"] = "block=2048,rounding=nearest";
    }
  }
  EXPECT_EQ(arm(read(), "int8").verdict, Verdict::loses);
}

TEST_F(TrainingRecord, OfSeveralTheOneInWhichACodecLosesCountsInAnyOrder) {
  for (int seed = 1; seed <= 3; ++seed) {
    add("none", seed, 0.9);
    add("bf16", seed, 0.899);
  }
  const OwnTrial good = read_own_trial(write("good.json"));
  for (auto& row : record_["rows"]) {
    if (row["codec"] == "bf16") row["test_accuracy"] = 0.85;
  }
  const OwnTrial bad = read_own_trial(write("bad.json"));
  OwnTrial open = good;
  open.arms[0].verdict = Verdict::undecided;
  const ResultRow row = row_of("bf16");
  EXPECT_EQ((OwnTrials{{good, bad, open}}.verdict_of(row)), Verdict::loses);
  EXPECT_EQ((OwnTrials{{bad, open, good}}.verdict_of(row)), Verdict::loses);
  EXPECT_EQ((OwnTrials{{open, good}}.verdict_of(row)), Verdict::learns);
  EXPECT_EQ((OwnTrials{{good}}.verdict_of(row_of("fp16"))), std::nullopt);
  const OwnTrials both{{good, bad}};
  EXPECT_THAT(both.words_of(row), testing::AllOf(HasSubstr("good.json"), HasSubstr("it learns"), HasSubstr("bad.json"),
                                                 HasSubstr("it loses")));
  EXPECT_EQ(both.difference_of(row), "its accuracy is worse by 5 points (95 %: 5 to 5)");
  EXPECT_THAT(both.rules(), HasSubstr("one in which it loses counts before one in which it learns"));
  EXPECT_THROW(both.expect_same_model("capture.h5", 10), Error);
}

TEST_F(TrainingRecord, MayBeNamedByItsFolderAndEverythingElseIsRefused) {
  write();
  EXPECT_EQ(read_own_trial(folder_.string()).file, (folder_ / "train.json").string());
  record_["settings"]["--workers"] = "four";
  EXPECT_THROW(read(), Error);
  record_["settings"].erase("--workers");
  EXPECT_THROW(read(), Error);
  record_["format"] = "gradtool.bench";
  EXPECT_THROW(read(), Error);
  record_ = 3;
  EXPECT_THROW(read(), Error);
}

}  // namespace
}  // namespace gradtool::test
