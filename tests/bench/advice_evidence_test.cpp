// Tests what the advice makes of trainings: those behind it, which say what errors are harmless, and the user's own
// trials.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <nlohmann/json.hpp>

#include "lib/advice/advice.hpp"
#include "lib/advice/confidence.hpp"
#include "lib/advice/own_trial.hpp"
#include "lib/advice/record.hpp"
#include "lib/advice/terminal.hpp"
#include "lib/advice/trained_arms.hpp"
#include "lib/bench/result.hpp"
#include "tests/bench/advice_fixture.hpp"

namespace gradtool::test {
namespace {

TEST_F(Advice, TakesByDefaultNoMoreThanTrainingsVouchFor) {
  add({.codec = "fp16", .ms = 60.0, .error = 0.001});
  add({.codec = "qsgd:bits=4", .ms = 40.0, .error = 0.09});
  add({.codec = "powersgd:rank=1", .ms = 20.0, .error = 0.6}).cumulative_nmse = 0.002;
  const std::string text = advice(Acceptance{});
  EXPECT_TRUE(says(text, "8 ranks: take fp16. ")) << text;
  const double first = first_loss(ErrorKind::other), harmless = harmless_nmse(ErrorKind::other);
  EXPECT_TRUE(says(text, fmt::format("its error of a step is 0.001. Sure: none of {} trainings with an error below "
                                     "{:.3g} lost more than a point of accuracy. ",
                                     trained_arms_up_to(std::nextafter(first, 0.0), ErrorKind::other).arms, first)))
      << text;
  // A codec that delays gradients errs little over many steps, and its trainings lost for it all the same.
  EXPECT_TRUE(
      says(text, "Faster, but not without a trial (docs/trial.md): powersgd:rank=1, 5.00 times (error of a step 0.6: "))
      << text;
  EXPECT_TRUE(says(text,
                   "after a trial in a training: powersgd:rank=1 20.0 ms (error of a step 0.6), qsgd:bits=4 40.0 ms "
                   "(error of a step 0.09)."))
      << text;
  EXPECT_TRUE(says(text, "Without a trial, its error of a step must also be at most")) << text;
  // A limit that the user gives is taken at its word; what trainings say stands beside it.
  EXPECT_TRUE(says(advice(0.1), "take powersgd:rank=1. ")) << advice(0.1);
  EXPECT_FALSE(says(advice(0.1), "without a trial")) << advice(0.1);
  EXPECT_TRUE(says(advice(0.1), "Needs a trial: ") && says(advice(0.1), " beyond doubt), at worst ")) << advice(0.1);
  // Errors at which few lost, or which are known of one phase alone.
  EXPECT_EQ(trained_arms_up_to(first, ErrorKind::other).lost, 1);
  rows_[2].errors->error = rows_[2].cumulative_nmse.emplace(0.99 * first);
  EXPECT_TRUE(says(advice(Acceptance{}), "Sure: none of ")) << advice(Acceptance{});
  rows_[4].errors->error = 0.001;
  EXPECT_TRUE(
      says(advice(0.1), "Needs a trial: it has a memory, and its errors are those of one phase of the training."))
      << advice(0.1);
  EXPECT_TRUE(says(advice(0.1), "Trainings named here are those of reports/verdicts")) << advice(0.1);
  rows_[4].errors.reset();
  EXPECT_TRUE(says(advice(0.1), "Needs a trial: its error of a step is not known.")) << advice(0.1);
  rows_[4].errors = ErrorSums{.xx = 1.0, .error = 0.6};
  ASSERT_LT(first, harmless);
  rows_[2].errors->error = rows_[2].cumulative_nmse.emplace(0.5 * (first + harmless));
  EXPECT_TRUE(says(advice(Acceptance{}), "Likely: ")) << advice(Acceptance{});
}

TEST_F(Advice, GoesByTheUsersOwnTrial) {
  add({.codec = "fp16", .ms = 60.0, .error = 0.001});
  add({.codec = "qsgd:bits=4", .ms = 30.0, .error = 0.3});
  add({.codec = "int8", .ms = 20.0, .error = 0.001});
  const auto arm = [](const char* codec, OwnTrial::Verdict verdict) {
    const CodecSpec spec = parse_codec(codec);
    return OwnTrial::Arm{.codec = spec.name() + ":" + spec.params_text(),
                         .verdict = verdict,
                         .reason = {},
                         .worse_by = 0.012,
                         .low = 0.01,
                         .high = 0.014,
                         .lr_factor = 0.5,
                         .same_as_none = 0.9};
  };
  OwnTrial trial{.file = "trial.json",
                 .model = "GPT",
                 .judge = "loss",
                 .scheme = "auto",
                 .elements = 9,
                 .workers = 4,
                 .steps = 300,
                 .arms = {arm("qsgd:bits=4", OwnTrial::Verdict::learns), arm("int8", OwnTrial::Verdict::loses)}};
  Acceptance acceptance;
  acceptance.trials = std::make_shared<const OwnTrials>(OwnTrials{{trial}});
  // Whatever it errs by, what has learned is taken; what has not is not, however little it errs.
  const std::string text = advice(acceptance);
  EXPECT_TRUE(says(text, "8 ranks: take qsgd:bits=4. ")) << text;
  EXPECT_TRUE(
      says(text,
           "Trained: in trial.json (GPT, 4 workers, 300 steps) it learns with learning rates times 0.5: its loss is "
           "worse by 0.012 (95 %: 0.01 to "
           "0.014), and uncompressed had that training loss after 270 steps."))
      << text;
  EXPECT_TRUE(
      says(text, "uncompressed had that training loss after 270 steps. It comes to that loss 3.00 times as fast."))
      << text;
  EXPECT_TRUE(says(text, "lost in the trial: int8 (its loss is worse by 0.012 (95 %: 0.01 to 0.014)).")) << text;
  EXPECT_TRUE(says(text,
                   "Faster, but it lost: int8, 5.00 times. In trial.json (GPT, 4 workers, 300 steps) it loses with "
                   "learning rates times 0.5: its loss is worse by 0.012"))
      << text;
  EXPECT_TRUE(says(text, "For codecs that were tried in trial.json its verdict decides.")) << text;
  EXPECT_TRUE(says(text, "In trial.json (GPT, 4 workers, 300 steps): qsgd:")) << text;
  EXPECT_EQ(advice_record(rows_, acceptance)[0]["taken"]["confidence"], "trained");
  // A trial that has not decided does not speak first.
  OwnTrial open = trial;
  open.file = "open.json";
  open.arms = {arm("qsgd:bits=4", OwnTrial::Verdict::undecided)};
  const auto decided = acceptance.trials;
  acceptance.trials = std::make_shared<const OwnTrials>(OwnTrials{{open, trial}});
  EXPECT_TRUE(says(advice(acceptance), "Trained: in trial.json (GPT, 4 workers, 300 steps) it learns"))
      << advice(acceptance);
  acceptance.trials = decided;
  // Another way adds errors of its own, which the trial has not seen: there it vouches for nothing.
  rows_[3].scheme = Scheme::alltoall;
  rows_[4].scheme = Scheme::alltoall;
  const std::string other = advice(acceptance);
  EXPECT_TRUE(says(other, "8 ranks: take fp16. ")) << other;
  EXPECT_TRUE(says(other, "error above 0.1: qsgd:bits=4 by alltoall.")) << other;
  EXPECT_TRUE(says(other, "lost in the trial: int8 by alltoall (its loss is worse by ")) << other;
  trial.scheme = "alltoall";
  acceptance.trials = std::make_shared<const OwnTrials>(OwnTrials{{trial}});
  EXPECT_TRUE(says(advice(acceptance), "8 ranks: take qsgd:bits=4 by alltoall. ")) << advice(acceptance);
}

TEST_F(Advice, TakesNothingThatIsSlowerToTheSameLoss) {
  add({.codec = "fp16", .ms = 90.0, .error = 0.001});
  add({.codec = "qsgd:bits=4", .ms = 80.0, .error = 0.05});
  OwnTrial trial{.file = "trial.json", .model = "GPT", .judge = "loss", .scheme = "auto", .arms = {}};
  OwnTrial::Arm arm;
  arm.codec = "qsgd:" + parse_codec("qsgd:bits=4").params_text();
  arm.verdict = OwnTrial::Verdict::learns;
  arm.worse_by = 0.03, arm.low = 0.02, arm.high = 0.04;
  arm.same_as_none = 0.75;
  const auto advised = [&] {
    trial.arms = {arm};
    Acceptance acceptance;
    acceptance.trials = std::make_shared<const OwnTrials>(OwnTrials{{trial}});
    return advice(acceptance);
  };
  EXPECT_TRUE(says(advised(), "take fp16. ")) << advised();
  EXPECT_TRUE(says(advised(),
                   "worse in the trial beyond doubt, and would gain less than 5 % to the same loss: qsgd:bits=4 (1.25 "
                   "times faster a step, and uncompressed needs 75 % of the steps)."))
      << advised();
  arm.verdict = OwnTrial::Verdict::undecided;  // by its tolerance; that it is worse is decided
  EXPECT_TRUE(says(advised(), "take fp16. ")) << advised();
  arm.verdict = OwnTrial::Verdict::learns;
  arm.low = -0.02;  // by chance, as far as the trial tells
  EXPECT_TRUE(says(advised(), "take qsgd:bits=4. ")) << advised();
  arm.low = 0.02;
  arm.same_as_none = 0.95;
  EXPECT_TRUE(says(advised(), "take qsgd:bits=4. ") && says(advised(), "It comes to that loss 1.19 times as fast."))
      << advised();
}

TEST_F(Advice, SaysThatATrialHasNotDecided) {
  add({.codec = "qsgd:bits=4", .ms = 30.0, .error = 0.09});
  OwnTrial trial{
      .file = "train.json", .model = "LeNet", .judge = "accuracy", .scheme = "auto", .unit = " points", .arms = {}};
  trial.tolerance = 1.0;
  OwnTrial::Arm arm;
  arm.codec = "qsgd:" + parse_codec("qsgd:bits=4").params_text();
  arm.worse_by = 0.5;
  arm.reason = "more seeds or steps would tell";
  trial.arms = {arm};
  Acceptance acceptance;
  acceptance.trials = std::make_shared<const OwnTrials>(OwnTrials{{trial}});
  const std::string text = advice(acceptance);
  EXPECT_TRUE(says(text,
                   "Faster, but its trial has not decided: qsgd:bits=4, 3.33 times (error of a step 0.09). In "
                   "train.json (LeNet, 0 workers, 0 steps) it is undecided: its accuracy is worse by 0.5 points, "
                   "more seeds or steps would tell."))
      << text;
  EXPECT_FALSE(says(text, "gradtool.trial(train")) << text;
  EXPECT_TRUE(says(text, "(error of a step 0.09, undecided in the trial)")) << text;
  // A codec that is taken on the ground of its error keeps that ground.
  rows_.back().errors->error = rows_.back().cumulative_nmse.emplace(0.001);
  EXPECT_TRUE(says(advice(acceptance), "more seeds or steps would tell. Sure: none of ")) << advice(acceptance);
  EXPECT_TRUE(says(text, "one learns if all of the 95 % interval of what its accuracy is worse by is within 1 point, "))
      << text;
}

TEST_F(Advice, RecordsAVerdictOnEveryRow) {
  add({.codec = "fp16", .ms = 50.0, .error = 0.001});
  add({.codec = "bf16", .ms = 300.0, .error = 0.002});
  add({.codec = "qsgd:bits=4", .ms = 25.0, .error = 0.09});
  add({.codec = "qsgd:bits=2", .ms = 20.0, .error = 0.4});
  const auto record = advice_record(rows_, Acceptance{});
  ASSERT_EQ(record.size(), 1U);
  std::map<std::string, std::string> verdicts;
  for (const auto& one : record[0]["codecs"]) verdicts[one["codec"]] = one["verdict"];
  const std::map<std::string, std::string> expected{
      {"fp16", "taken"}, {"bf16", "accepted"}, {"qsgd:bits=4", "needs a trial"}, {"qsgd:bits=2", "error too large"}};
  EXPECT_EQ(verdicts, expected);
  EXPECT_EQ(record[0]["codecs"][0]["error_of_step"], 0.001) << record[0];
}

TEST_F(Advice, TablesKeepTheWayThatIsTakenAndTheFasterOneThatNeedsATrial) {
  add({.codec = "nvfp4", .ms = 60.0, .error = 0.005}).scheme = Scheme::gather;
  add({.codec = "nvfp4", .ms = 40.0, .error = 1.5 * harmless_nmse(ErrorKind::other)}).scheme = Scheme::alltoall;
  add({.codec = "int8", .ms = 80.0, .error = 0.001}).scheme = Scheme::gather;
  add({.codec = "int8", .ms = 70.0, .error = 0.002}).scheme = Scheme::alltoall;
  const std::vector<std::size_t> both{0, 1, 2, 3, 5}, fastest{0, 1, 3, 5};
  EXPECT_EQ(rows_of_best_ways(rows_, Acceptance{}), both);
  EXPECT_EQ(rows_of_best_ways(rows_, 0.1), fastest);
  EXPECT_EQ(rows_of_best_ways(rows_, 0.0015), (std::vector<std::size_t>{0, 1, 3, 4, 5})) << "int8 by both ways";
  EXPECT_EQ(rows_of_best_ways(rows_), fastest);
}

TEST_F(Advice, StaysUncompressedWhereNoTrainingVouchesForACodec) {
  add({.codec = "qsgd:bits=4", .ms = 40.0, .error = 0.09});
  EXPECT_TRUE(says(advice(Acceptance{}),
                   "8 ranks: stay uncompressed. No codec here has errors that trainings have shown to be harmless. "
                   "Faster, but not without a trial (docs/trial.md): qsgd:bits=4, 2.50 times (error of a step 0.09: "))
      << advice(Acceptance{});
  EXPECT_FALSE(says(advice(Acceptance{}), "after a trial in a training: topk")) << advice(Acceptance{});
}

TEST_F(Advice, TakesNoMemoryForItsErrorsInOnePhase) {
  ResultRow& row = add({.codec = "powersgd:rank=2", .ms = 40.0, .error = 0.0007});
  EXPECT_TRUE(
      says(advice(Acceptance{}),
           "stay uncompressed. No codec here has errors that trainings have shown to be harmless. "
           "Faster, but not without a trial (docs/trial.md): powersgd:rank=2, 2.50 times (error of a step 0.0007, but "
           "it has a memory, and its errors are those of one phase of the training: capture several phases, or try "
           "it): "))
      << advice(Acceptance{});
  row.windows = 2;
  row.window_iterations = {{10, 17}, {20, 27}};
  EXPECT_TRUE(says(advice(Acceptance{}), "of one phase of the training: capture several")) << advice(Acceptance{});
  row.window_iterations[1] = {290, 297};
  EXPECT_TRUE(says(advice(Acceptance{}), "take powersgd:rank=2. ")) << advice(Acceptance{});
}

/// The trainings compressed means of gradients, and say nothing of weights that are gathered, nor of pseudo-gradients.
TEST_F(Advice, TakesOnlyCastsOfWhatNoTrainingCompressed) {
  add({.codec = "int8", .ms = 40.0, .error = 0.0001});
  add({.codec = "bf16", .ms = 60.0, .error = 0.000003});
  EXPECT_TRUE(says(advice(Acceptance{}), "take int8. "));
  for (ResultRow& row : rows_) row.op = Collective::all_gather;
  std::string text = advice(Acceptance{});
  EXPECT_TRUE(says(text, "take bf16. ")) << text;
  EXPECT_TRUE(says(text, "Sure: it errs no more than a cast to bfloat16, in which jobs send such values.")) << text;
  EXPECT_TRUE(says(text, "the trainings of reports/verdicts compressed means of gradients, and not these values"));
  for (ResultRow& row : rows_) row.op = Collective::all_reduce, row.quantity = "pseudo_gradient";
  rows_.pop_back();
  text = advice(Acceptance{});
  EXPECT_TRUE(says(text, "stay uncompressed.") && says(text, "the trainings here say nothing of such values")) << text;
  EXPECT_FALSE(says(text, "gradtool.trial")) << "which would try something else: " << text;
  EXPECT_TRUE(says(advice(0.1), "take int8. ")) << "a limit that is given is taken at its word";
}

/// Such a capture has lost what differs between ranks, and with it what the error of a mean would be.
TEST_F(Advice, VouchesForNoErrorBetweenRanksThatHaveTheSameGradients) {
  add({.codec = "int8", .ms = 40.0, .error = 0.0001});
  add({.codec = "bf16", .ms = 60.0, .error = 0.000003});
  for (ResultRow& row : rows_) row.averaged = true;
  const std::string text = advice(Acceptance{});
  EXPECT_TRUE(says(text, "take bf16. ")) << text;
  EXPECT_TRUE(
      says(text, "Sure: it errs no more than a cast to bfloat16; the capture has gradients that were averaged over"));
  EXPECT_TRUE(
      says(text, "the capture has gradients that were averaged over the ranks, so errors of their mean say nothing."));
  EXPECT_FALSE(says(text, "none of")) << text;
  EXPECT_TRUE(says(text, "Faster, but not without a trial (docs/trial.md): int8"))
      << "which has means of its own: " << text;
}

TEST_F(Advice, SaysThatSparsePayloadsAreOthersAmongMoreRanksThanATrialHadWorkers) {
  const auto text_of = [this](const char* codec, int workers) {
    const CodecSpec spec = parse_codec(codec);
    OwnTrial::Arm arm;
    arm.codec = spec.name() + ":" + spec.params_text();
    arm.verdict = OwnTrial::Verdict::learns;
    const OwnTrial trial{.file = "trial.json",
                         .model = "M",
                         .judge = "loss",
                         .scheme = "auto",
                         .elements = 1000,
                         .workers = workers,
                         .steps = 300,
                         .arms = {arm}};
    Acceptance acceptance;
    acceptance.trials = std::make_shared<const OwnTrials>(OwnTrials{{trial}});
    ResultRow& row = add({.codec = codec, .ms = 20.0, .error = 0.3});
    row.elements = 1000;
    row.bytes = StepBytes{.values_sent = 10.0};
    std::string text = advice(acceptance);
    rows_.pop_back();
    return text;
  };
  const char* const words = "Among 8 ranks sparse payloads have less in common than among 4 workers";
  EXPECT_TRUE(says(text_of("topk:ratio=0.01", 4), words)) << text_of("topk:ratio=0.01", 4);
  EXPECT_FALSE(says(text_of("topk:ratio=0.01", 5), "sparse payloads"));
  EXPECT_TRUE(says(text_of("powersgd:rank=2", 4), "take powersgd:rank=2. "));
  EXPECT_FALSE(says(text_of("powersgd:rank=2", 4), "sparse payloads")) << "whose ranks all send the same parts";
}

TEST_F(Advice, SaysOfACodecThatLosesNothingNoMoreThanThat) {
  add({.codec = "zstd", .ms = 60.0, .error = 7e-16});
  EXPECT_TRUE(says(advice(Acceptance{}), "Sure: it loses nothing but the last bits of sums.")) << advice(Acceptance{});
}

TEST_F(Advice, SaysWhatWouldNeedATrialAndGainLittle) {
  add({.codec = "fp16", .ms = 60.0, .error = 0.001});
  add({.codec = "qsgd:bits=2", .ms = 59.0, .error = 0.09});
  EXPECT_TRUE(
      says(advice(Acceptance{}), "would need a trial and gain less than 5 % on the answer: qsgd:bits=2 (0.09)."))
      << advice(Acceptance{});
}

TEST(TrainedArms, UpToTheHarmlessErrorHardlyAnyLostAndNoneMuch) {
  for (const ErrorKind kind : {ErrorKind::unbiased, ErrorKind::other}) {
    const double harmless = harmless_nmse(kind);
    EXPECT_GT(harmless, 1e-3);
    const TrainedArms found = trained_arms_up_to(harmless, kind);
    EXPECT_GE(found.arms, 20);
    EXPECT_LE(20 * found.lost, found.arms);
    EXPECT_LE(found.worst->lost, 3.0);
    const TrainedArms more = trained_arms_up_to(4.0 * harmless, kind);
    const bool up_to_default = trained_arms_up_to(kDefaultMaxNmse, kind).arms == found.arms;
    EXPECT_TRUE(up_to_default || 20 * more.lost > more.arms || more.worst->lost > 3.0);
    const TrainedArms all = trained_arms_up_to(1e300, kind);
    EXPECT_GT(all.worst->lost, kPointsThatCount);
    EXPECT_LT(all.surely, all.lost);
    EXPECT_EQ(trained_arms_up_to(std::nan(""), kind).arms, 0);
    EXPECT_EQ(trained_arms_up_to(0.0, kind).worst, nullptr);
  }
  EXPECT_GT(trained_arms_up_to(1e300, ErrorKind::other).arms, 50);
  EXPECT_GT(trained_arms_up_to(1e300, ErrorKind::other).surely, 10);
}

TEST_F(Advice, CountsErrorsMoreThatComeAgain) {
  const double harmless = harmless_nmse(ErrorKind::other);
  ResultRow& row = add({.codec = "zfp:rate=6", .ms = 40.0, .error = 0.4 * harmless});
  EXPECT_EQ(lasting_error(row), 0.4 * harmless);
  EXPECT_TRUE(says(advice(Acceptance{}), "take zfp:rate=6. ")) << advice(Acceptance{});
  row.error_correlation = 0.1;
  EXPECT_DOUBLE_EQ(lasting_error(row), 2.8 * 0.4 * harmless);
  const std::string text = advice(Acceptance{});
  EXPECT_FALSE(says(text, "take zfp")) << text;
  EXPECT_TRUE(says(text, fmt::format("(error of a step {:.2g}: its errors come again in the next steps (correlation "
                                     "0.1), so it counts as {:.2g}; ",
                                     0.4 * harmless, 1.12 * harmless)))
      << text;
  row.error_correlation = -0.1;
  EXPECT_EQ(lasting_error(row), 0.4 * harmless) << "what cancels counts no less than what is independent";
  // A capture of single steps, or of every tenth one, does not say.
  row.stride = 10;
  EXPECT_DOUBLE_EQ(lasting_error(row), 5.5 * 0.4 * harmless);
  row.stride = 1;
  row.error_correlation.reset();
  EXPECT_DOUBLE_EQ(lasting_error(row), 5.5 * 0.4 * harmless);
  EXPECT_TRUE(says(advice(Acceptance{}), "how far its errors come again in the next steps is not known"))
      << advice(Acceptance{});
  // Errors that are independent by their codec's draws, or that a memory makes up for, count as they are.
  for (const char* codec : {"qsgd:bits=4", "topk:ratio=0.3"}) {
    row.codec = parse_codec(codec);
    EXPECT_EQ(lasting_error(row), 0.4 * harmless) << codec;
  }
  EXPECT_DOUBLE_EQ(advice_record(rows_, Acceptance{})[0]["codecs"][0]["lasting_error"].get<double>(), 0.4 * harmless);
}

TEST_F(Advice, LeavesWhatLosesSignsUnderAdamToATrial) {
  ResultRow& row = add({.codec = "int8", .ms = 40.0, .error = 3e-4});
  row.lost_signs = 0.5;  // set only where the optimizer is not SGD
  EXPECT_TRUE(says(advice(Acceptance{}), "take int8. ")) << advice(Acceptance{});
  row.lost_signs = 0.58;
  const std::string text = advice(Acceptance{});
  EXPECT_FALSE(says(text, "take int8")) << text;
  EXPECT_TRUE(says(text,
                   "Faster, but not without a trial (docs/trial.md): int8, 2.50 times (error of a step 0.0003, and "
                   "58 % of the values of one tensor come as 0 or with another sign"))
      << text;
  EXPECT_EQ(confidence_of(row, Acceptance{}), "needs a trial");
  EXPECT_TRUE(ground_of(row).starts_with("needs a trial: 58 % of the values")) << ground_of(row);
  EXPECT_TRUE(says(advice(0.1), "take int8. ")) << "a limit that the user gives is the only one";
}

TEST_F(Advice, TakesLargerErrorsOfUnbiasedCodecs) {
  const double between = 0.5 * (harmless_nmse(ErrorKind::other) + harmless_nmse(ErrorKind::unbiased));
  ASSERT_GT(between, harmless_nmse(ErrorKind::other)) << "errors that cancel cost less than those that come again";
  add({.codec = "int8:bits=4", .ms = 30.0, .error = between});
  add({.codec = "qsgd:bits=4", .ms = 40.0, .error = between});
  const std::string text = advice(Acceptance{});
  EXPECT_TRUE(says(text, "take qsgd:bits=4. ") && says(text, " with unbiased codecs ")) << text;
  EXPECT_TRUE(says(text, "Faster, but not without a trial (docs/trial.md): int8:bits=4, ")) << text;
  EXPECT_TRUE(says(text, "If it is unbiased, so that errors of steps cancel, ")) << text;
  // A codec that feeds errors back keeps them, and they do not cancel.
  rows_.back().codec = parse_codec("natural:ef=on");
  rows_.back().cumulative_nmse = 0.001;
  EXPECT_FALSE(says(advice(Acceptance{}), "take natural")) << advice(Acceptance{});
}

}  // namespace
}  // namespace gradtool::test
