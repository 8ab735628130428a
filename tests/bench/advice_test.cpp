// Tests the text of `bench --advise` on planted rows: one network, times and errors as a test wants them.
#include <gtest/gtest.h>

#include <cmath>

#include "lib/advice/advice.hpp"
#include "lib/advice/record.hpp"
#include "lib/advice/reproduce.hpp"
#include "lib/advice/terminal.hpp"
#include "lib/bench/modelled.hpp"
#include "lib/bench/options.hpp"
#include "lib/bench/result.hpp"
#include "tests/bench/advice_fixture.hpp"

namespace gradtool::test {
namespace {

TEST_F(Advice, TakesTheFastestCodecOfThoseThatErrLittle) {
  add({.codec = "fp16", .ms = 60.0, .error = 0.001});
  add({.codec = "qsgd:bits=4", .ms = 40.0, .error = 0.02});
  add({.codec = "int8", .ms = 150.0, .error = 0.01});
  const std::string text = advice();
  EXPECT_TRUE(
      text.starts_with("With codecs on 1 thread of this machine and the best known collectives: 10gbe, 8 ranks: "
                       "take qsgd:bits=4. "))
      << text;
  EXPECT_TRUE(
      says(text, "takes 40.0 ms instead of 100 ms uncompressed: 2.50 times faster; its error of a step is 0.02."))
      << text;
  EXPECT_FALSE(says(text, "Its parameters")) << "they were given";
  EXPECT_TRUE(says(text, "next: fp16 60.0 ms (error of a step 0.001).")) << text;
  EXPECT_TRUE(says(text, "slower than uncompressed: int8.")) << text;
  EXPECT_TRUE(says(text, "at most 0.1 (--max-nmse)")) << text;
}

// Beside other work one row's times may say nothing. It must not make a codec "as fast" that others surely beat.
TEST_F(Advice, TakesNothingThatAnotherSurelyBeats) {
  add({.codec = "nvfp4", .ms = 45.0, .spread = 44.0, .error = 0.005});
  add({.codec = "int8", .ms = 50.0, .spread = 4.0, .error = 0.0003});
  add({.codec = "bf16", .ms = 62.0, .spread = 0.3, .error = 1e-5});
  EXPECT_TRUE(says(advice(), "8 ranks: take int8. ")) << advice();
  EXPECT_FALSE(says(advice(), "their noise: bf16")) << advice();
}

// Codecs that learn may need more steps than they save time.
TEST_F(Advice, SaysFirstThatTensorsAreLeftOut) {
  add({.codec = "fp16", .ms = 60.0, .error = 0.001});
  rows_[0].message =
      "replayed: weights; 1 of 2 tensors left out: not finite (99.9 % of the elements); errors as measured";
  EXPECT_TRUE(says(advice(),
                   "take fp16. 1 of 2 tensors left out: not finite (99.9 % of the elements): the answer is for "
                   "a model without them. With fp16"))
      << advice();
}

TEST_F(Advice, JudgesNothingByGradientsThatAreZero) {
  add({.codec = "fp16", .ms = 60.0}).errors = ErrorSums{.elements = 9};
  rows_[0].errors = ErrorSums{.elements = 9};
  EXPECT_TRUE(says(advice(),
                   "8 ranks: stay uncompressed. All captured gradients are zero, which tells nothing of a "
                   "codec."))
      << advice();
}

TEST_F(Advice, SaysWhereNoCodecWasJudged) {
  add({.codec = "gradiveq", .ms = 60.0}).reached = false;
  EXPECT_TRUE(says(advice(), "stay uncompressed. No codec here was judged.")) << advice();
}

TEST_F(Advice, IsRecordedForIterationsAndForGradientsAlone) {
  add({.codec = "fp16", .ms = 99.0, .error = 0.001});
  add({.codec = "qsgd:bits=4", .ms = 98.0, .error = 0.09}).scheme = Scheme::alltoall;
  add_iterations(90.0);
  for (ResultRow& row : rows_)
    row.total->median = row.codec.name() == "none" ? 0.1 : row.codec.name() == "fp16" ? 0.05 : 0.025;
  for (ResultRow& row : rows_) row.total->low = row.total->high = row.total->median;
  const auto record = advice_record(rows_, Acceptance{});
  ASSERT_EQ(record.size(), 2U);
  EXPECT_EQ(record[0]["of"], "iterations");
  EXPECT_TRUE(record[0]["taken"].is_null()) << record[0];
  EXPECT_TRUE(record[0]["after_trial"].empty()) << record[0];
  EXPECT_EQ(record[1]["of"], "gradients");
  EXPECT_EQ(record[1]["answer"], "take fp16");
  EXPECT_EQ(record[1]["taken"]["reduce"], "auto");
  EXPECT_EQ(record[1]["taken"]["confidence"], "sure");
  EXPECT_NEAR(record[1]["taken"]["gain"].get<double>(), 2.0, 1e-9);
  ASSERT_EQ(record[1]["after_trial"].size(), 1U);
  EXPECT_EQ(record[1]["after_trial"][0]["codec"], "qsgd:bits=4");
  EXPECT_EQ(record[1]["after_trial"][0]["reduce"], "alltoall");
  EXPECT_EQ(record[1]["after_trial"][0]["confidence"], "needs a trial");
}

TEST_F(Advice, TakesAnExactCodecWhereNothingMayErr) {
  add({.codec = "exponent", .ms = 80.0, .error = 2e-16});
  EXPECT_TRUE(says(advice(0.0), "take exponent. ")) << advice(0.0);
}

/// The advice takes the way that errs less of two that take about as long; tables have both.
TEST_F(Advice, ItsRowIsInTheTables) {
  add({.codec = "nvfp4", .ms = 41.0, .error = 0.01}).scheme = Scheme::gather;
  add({.codec = "nvfp4", .ms = 40.0, .error = 0.02}).scheme = Scheme::alltoall;
  const auto shown = rows_of_best_ways(rows_, Acceptance{});
  EXPECT_EQ(shown, (std::vector<std::size_t>{0, 1, 2, 3}));
  EXPECT_EQ(rows_of_best_ways(rows_), (std::vector<std::size_t>{0, 1, 3}));
}

TEST_F(Advice, SaysOfWhichRanksTheReasonsAre) {
  add({.codec = "fp16", .ms = 60.0, .error = 0.001});
  add({.codec = "int8", .ms = 150.0, .error = 0.001});
  add({.codec = "none", .ms = 100.0}, 16);
  add({.codec = "noop", .ms = 1.0, .error = 1.0}, 16);
  add({.codec = "fp16", .ms = 60.0, .error = 0.001}, 16);
  add({.codec = "int8", .ms = 150.0, .error = 0.001}, 16);
  EXPECT_TRUE(says(advice(), "10gbe, 8 to 16 ranks: take fp16.")) << advice();
  EXPECT_TRUE(says(advice(), "Why not the others (10gbe, 16 ranks): slower than uncompressed: int8.")) << advice();
}

TEST_F(Advice, HasNothingToSayWithoutAModelledNetworkOrWithoutABaseline) {
  add({.codec = "fp16", .ms = 50.0});
  for (ResultRow& row : rows_) row.network.reset();
  EXPECT_EQ(advice(), "");
  for (ResultRow& row : rows_) row.network = Network::parse("10gbe");
  EXPECT_NE(advice(), "");
  rows_.erase(rows_.begin());
  EXPECT_EQ(advice(), "");
}

TEST_F(Advice, StaysUncompressedWhereLittleIsGained) {
  add({.codec = "fp16", .ms = 98.0, .error = 0.001});
  const std::string text = advice();
  EXPECT_TRUE(says(text,
                   "8 ranks: stay uncompressed. fp16, the fastest codec whose error is small enough (0.001), would "
                   "be 2.0 % faster than the 100 ms that a step's all-reduce takes uncompressed. A gain of less "
                   "than 5 % is not worth an error."))
      << text;
  EXPECT_FALSE(says(text, "sending nothing would gain")) << text;
}

TEST_F(Advice, CallsASlowerCodecNoGain) {
  add({.codec = "fp16", .ms = 150.0, .error = 0.001});
  const std::string text = advice();
  EXPECT_TRUE(says(text, "would be 1.50 times slower than the 100 ms")) << text;
  EXPECT_FALSE(says(text, "A gain of less than 5 %")) << text;
}

TEST_F(Advice, StaysUncompressedWhereEveryCodecIsSlower) {
  add({.codec = "fp16", .ms = 150.0, .error = 0.001});
  EXPECT_TRUE(says(advice(),
                   "stay uncompressed. fp16, the fastest codec whose error is small enough (0.001), would be "
                   "1.50 times slower than the 100 ms"))
      << advice();
}

TEST_F(Advice, SaysByHowLittleACodecIsSlower) {
  add({.codec = "fp16", .ms = 100.4, .error = 0.001});
  EXPECT_TRUE(says(advice(), "would be 0.4 % slower than the 100 ms")) << advice();
}

TEST_F(Advice, SaysOnceWhatIsTheSameWithAndWithoutTheCodec) {
  rows_[1].total = PhaseSummary{.median = 99.9e-3, .low = 99.9e-3, .high = 99.9e-3};
  add({.codec = "fp16", .ms = 100.01, .error = 0.001});
  add_iterations(99.0);
  const std::string text = advice();
  EXPECT_TRUE(says(text, "would not change the 100 ms that an iteration takes uncompressed")) << text;
  EXPECT_FALSE(says(text, "instead of")) << text;
  EXPECT_TRUE(says(text, "Even sending nothing would gain less than 5 %.")) << text;
}

TEST_F(Advice, DoesNotCallWhatTakesNoTimeHopeless) {
  add({.codec = "topk", .ms = 50.0, .error = 0.9});
  add({.codec = "noop", .ms = 0.0, .error = 1.0});
  EXPECT_TRUE(says(advice(), "stay uncompressed.") && !says(advice(), "Even sending nothing")) << advice();
}

TEST_F(Advice, SaysOnceATimeThatNoiseAloneMakesWorthATry) {
  add({.codec = "fp16", .ms = 100.01, .spread = 20.0, .error = 0.001});
  add_iterations(99.97);
  const std::string text = advice();
  EXPECT_TRUE(says(text,
                   "8 ranks: fp16 or uncompressed, too close to call. With fp16 an iteration takes 100 ms, as long "
                   "as uncompressed (0.83 to 1.25 with 95 % confidence)"))
      << text;
  EXPECT_FALSE(says(text, "instead of")) << text;
}

TEST_F(Advice, ComparesIterationsWithTheirScalingEfficiency) {
  add({.codec = "fp16", .ms = 80.0, .error = 0.001});
  add_iterations(40.0);
  EXPECT_TRUE(says(advice(),
                   "With fp16 an iteration takes 80.0 ms instead of 100 ms uncompressed, a scaling efficiency "
                   "of 50 % instead of 40 %: 1.25 times faster"))
      << advice();
}

TEST_F(Advice, IsTooCloseToCallWhereTheGainMayBeNoise) {
  add({.codec = "fp16", .ms = 92.0, .spread = 6.0, .error = 0.001});
  EXPECT_TRUE(says(advice(),
                   "fp16 or uncompressed, too close to call. With fp16 a step's all-reduce takes 92.0 ms instead "
                   "of 100 ms uncompressed: 1.09 times faster (1.02 to 1.16 with 95 % confidence)"))
      << advice();
}

TEST_F(Advice, CountsTheNoiseOfUncompressedTimesAsWell) {
  // The codec alone would be 1.95 to 2.05 times as fast. 10 % of noise in what it is compared with are most of the
  // rest.
  rows_[0].total = PhaseSummary{.median = 100e-3, .low = 90e-3, .high = 110e-3};
  add({.codec = "fp16", .ms = 50.0, .spread = 1.25, .error = 0.001});
  EXPECT_TRUE(says(advice(), "2.00 times faster (1.79 to 2.21 with 95 % confidence)")) << advice();
  const Interval gains = gain_interval(rows_.back(), rows_.front());
  EXPECT_NEAR(gains.low, 2.0 * std::exp(-std::hypot(std::log(51.25 / 50.0), std::log(100.0 / 90.0))), 1e-12);
  EXPECT_NEAR(gains.high, 2.0 * std::exp(std::hypot(std::log(50.0 / 48.75), std::log(110.0 / 100.0))), 1e-12);
}

TEST_F(Advice, SaysHowLargeTheModelIs) {
  add({.codec = "fp16", .ms = 50.0, .error = 0.001});
  for (ResultRow& row : rows_) row.elements = 61'706;
  EXPECT_TRUE(says(advice(),
                   "errors of 2 ranks, capture.h5 (61706 parameters, 0.247 MB of fp32 gradients) in "
                   "iterations 0 to 0, reduced by bucket:25MB, and"))
      << advice();
}

TEST_F(Advice, TakesTheSmallestErrorAmongTimesThatCannotBeTold) {
  add({.codec = "int8", .ms = 50.0, .spread = 3.0, .error = 0.01});
  add({.codec = "fp16", .ms = 52.0, .spread = 3.0, .error = 0.001});
  add({.codec = "bf16", .ms = 70.0, .spread = 3.0, .error = 0.0001});
  EXPECT_TRUE(says(advice(), "take fp16. With fp16 a step's all-reduce takes 52.0 ms")) << advice();
  EXPECT_TRUE(says(advice(), "As fast within 5 % or their noise: int8; fp16 has the smallest error of them."))
      << advice();
  EXPECT_TRUE(says(advice(), "next: int8 50.0 ms (error of a step 0.01), bf16 70.0 ms")) << advice();
}

TEST_F(Advice, TakesNoLargerErrorForLessThanFivePercent) {
  add({.codec = "fft", .ms = 50.0, .error = 0.09});
  add({.codec = "nvfp4", .ms = 52.0, .error = 0.015});
  add({.codec = "bf16", .ms = 53.0, .error = 1e-5});
  EXPECT_TRUE(says(advice(), "take nvfp4.")) << advice();
}

TEST_F(Advice, LeavesAnOpenQuestionOpenThoughASlowerCodecErrsLess) {
  add({.codec = "int8", .ms = 93.0, .spread = 3.0, .error = 0.02});
  add({.codec = "bf16", .ms = 96.5, .spread = 1.0, .error = 0.001});
  EXPECT_TRUE(says(advice(), "int8 or uncompressed, too close to call.")) << advice();
}

TEST_F(Advice, TakesTheFasterOfTwoCasts) {
  add({.codec = "bf16", .ms = 50.0, .error = 9e-6});
  add({.codec = "fp16", .ms = 51.0, .error = 1e-7});
  EXPECT_TRUE(says(advice(), "fp16; bf16 is as simple as any that errs no more than a cast to bfloat16.")) << advice();
}

/// A cast of shards that machines have added errs less than one of all gradients, by what no training would notice.
TEST_F(Advice, TakesOneLevelWhereTwoErrLessByLessThanACast) {
  add({.codec = "bf16", .ms = 50.0, .error = 9e-6});
  add({.codec = "bf16", .ms = 51.0, .error = 6e-6}).inner = parse_codec("none");
  EXPECT_TRUE(says(advice(), "take bf16. ")) << advice();
  rows_.back().total = PhaseSummary{.median = 40e-3, .low = 40e-3, .high = 40e-3};
  EXPECT_TRUE(says(advice(), "take bf16 in two levels.")) << advice();
}

TEST_F(Advice, TakesTheSimplestAmongThoseThatErrAlike) {
  add({.codec = "powersgd", .ms = 50.0, .spread = 3.0, .error = 0.00099}).cumulative_nmse = 0.00099;
  add({.codec = "bf16", .ms = 51.0, .spread = 3.0, .error = 0.001});
  EXPECT_TRUE(says(advice(), "take bf16.")) << advice();
  EXPECT_TRUE(says(advice(), "powersgd; bf16 is as simple as any with an error about as small.")) << advice();
}

TEST_F(Advice, TakesWhatSurelyGainsBeforeWhatMayBeFaster) {
  add({.codec = "int8", .ms = 50.0, .spread = 48.0, .error = 0.0001});
  add({.codec = "fp16", .ms = 60.0, .spread = 1.0, .error = 0.001});
  EXPECT_TRUE(says(advice(), "take fp16.")) << advice();
}

TEST_F(Advice, LooksAtTheBestWayOfACodecAndNamesIt) {
  add({.codec = "int8", .ms = 150.0, .error = 0.001}).scheme = Scheme::gather;
  add({.codec = "int8", .ms = 40.0, .error = 0.002}).scheme = Scheme::alltoall;
  add({.codec = "bf16", .ms = 60.0, .error = 0.0001});
  const std::string text = advice();
  EXPECT_TRUE(says(text, "take int8 by alltoall. With int8 by alltoall")) << text;
  EXPECT_FALSE(says(text, "slower than uncompressed")) << text;
  const std::string strict = advice(0.0015);
  EXPECT_TRUE(says(strict, "take bf16.")) << "the faster way errs too much, the other is slower";
  EXPECT_TRUE(says(strict, "slower than uncompressed: int8.")) << strict;
  EXPECT_TRUE(says(strict, "error above 0.0015: int8 by alltoall.")) << strict;
  rows_[2].total = PhaseSummary{.median = 50e-3, .low = 50e-3, .high = 50e-3};
  EXPECT_TRUE(says(advice(0.0015), "take int8. ") && says(advice(0.0015), "error above 0.0015: int8 by alltoall."))
      << "both gain: " << advice(0.0015);
  rows_[2].total = PhaseSummary{.median = 41e-3, .low = 41e-3, .high = 41e-3};
  EXPECT_FALSE(says(advice(0.0015), "error above")) << "it is hardly faster: " << advice(0.0015);
}

TEST_F(Advice, SaysWhatUncompressedIs) {
  add({.codec = "int8", .ms = 40.0, .error = 0.002});
  for (ResultRow& row : rows_) {
    row.baseline_dtype = "bf16";
    row.baseline_bytes = 2.0;
    row.elements = 1'000'000;
  }
  EXPECT_TRUE(says(advice(), "2 MB of bf16 gradients")) << advice();
  EXPECT_TRUE(says(advice(), "Uncompressed means gradients in bf16, as this job sends them")) << advice();
}

TEST_F(Advice, LeavesOutWhatErrsTooMuch) {
  add({.codec = "topk", .ms = 5.0, .error = 0.5});
  add({.codec = "fp16", .ms = 50.0, .error = 0.001});
  const std::string text = advice();
  EXPECT_TRUE(says(text, "take fp16.")) << text;
  EXPECT_TRUE(says(text, "error above 0.1: topk.")) << text;
  EXPECT_TRUE(says(advice(0.5), "take topk.")) << "the bound itself is accepted";
  const std::string none = advice(0.0001);
  EXPECT_TRUE(says(none, "stay uncompressed. No codec here has an error of at most 0.0001.")) << none;
}

TEST_F(Advice, JudgesWhatDelaysGradientsByItsAccumulatedError) {
  add({.codec = "topk:ef=on", .ms = 5.0, .error = 0.9}).cumulative_nmse = 0.05;
  const std::string text = advice();
  EXPECT_TRUE(says(text, "take topk:ef=on.")) << text;
  EXPECT_TRUE(says(text, "its accumulated error is 0.05 (that of a step 0.9).")) << text;
}

TEST_F(Advice, NamesTheParametersThatWereNotGivenAndWhatElseGains) {
  add({.codec = "qsgd", .ms = 30.0, .error = 0.02});
  for (const char* codec : {"fp16", "bf16", "int8", "mx"}) add({.codec = codec, .ms = 60.0, .error = 0.001});
  const std::string text = advice();
  EXPECT_TRUE(says(text, "Its parameters: bits=4,bucket=512,norm=max,code=fixed.")) << text;
  EXPECT_TRUE(says(text, "also faster than uncompressed: mx.")) << text;
}

TEST_F(Advice, LeavesOutMethodsThatWereNotAtWork) {
  add({.codec = "dgc", .ms = 5.0, .error = 0.0}).reached = false;
  add({.codec = "fp16", .ms = 50.0, .error = 0.001});
  EXPECT_TRUE(says(advice(), "take fp16.")) << advice();
  EXPECT_TRUE(says(advice(), "not judged, because not at work (the table's remarks say why): dgc.")) << advice();
}

TEST_F(Advice, SaysWhatBucketingAloneGains) {
  rows_[0].tensorwise_seconds = 0.25;
  add({.codec = "fp16", .ms = 50.0, .error = 0.001});
  EXPECT_TRUE(
      says(advice(), "uncompressed gradients take 100 ms reduced by bucket:25MB, and 250 ms reduced tensor by tensor."))
      << advice();
  rows_[0].tensorwise_seconds = 0.104;
  EXPECT_FALSE(says(advice(), "tensor by tensor")) << advice();
}

TEST_F(Advice, AdmitsThatFewSamplesSayNothingOfNoise) {
  add({.codec = "fp16", .ms = 50.0, .spread = -1.0, .error = 0.001});
  EXPECT_TRUE(says(advice(), "2.00 times faster (of fewer than five samples: how noisy that is, is not known)"))
      << advice();
  rows_.pop_back();
  add({.codec = "fp16", .ms = 99.0, .spread = -1.0, .error = 0.001});
  EXPECT_TRUE(says(advice(), "takes uncompressed (of fewer than five samples")) << advice();
}

TEST_F(Advice, SharesAParagraphBetweenNumbersOfRanksWithTheSameAnswer) {
  add({.codec = "fp16", .ms = 50.0, .error = 0.001});
  add({.codec = "none", .ms = 200.0}, 16);
  add({.codec = "fp16", .ms = 80.0, .error = 0.001}, 16);
  add({.codec = "none", .ms = 300.0}, 32);
  add({.codec = "fp16", .ms = 299.0, .error = 0.001}, 32);
  const std::string text = advice();
  EXPECT_TRUE(says(text, "10gbe, 8 to 16 ranks: take fp16. At 16 ranks: With fp16")) << text;
  EXPECT_TRUE(says(text, "10gbe, 32 ranks: stay uncompressed.")) << text;
}

TEST_F(Advice, SaysHowFarStepsLieApartWhereThereAreSeveral) {
  add({.codec = "fp16", .ms = 60.0, .error = 0.001});
  add_iterations(40.0);
  for (ResultRow& row : rows_) row.iteration->compute_low = row.iteration->compute_high = 0.04;
  EXPECT_TRUE(says(advice(), "computes for 40.0 ms (one step's time), and")) << advice();
  for (ResultRow& row : rows_) row.iteration->compute_low = 0.03;
  EXPECT_TRUE(says(advice(), "computes for 40.0 ms (30.0 ms to 40.0 ms in single steps), and")) << advice();
}

TEST_F(Advice, NamesTheCommandAndTheHookOfWhatItTakes) {
  ResultRow& row = add({.codec = "int8", .ms = 20.0, .error = 0.001});
  row.scheme = Scheme::alltoall;
  row.gate_bytes = 65'536.4;
  row.gated_share = 0.01;
  row.gate_applied = true;
  BenchOptions options;
  options.file = "my capture.h5";
  options.baseline = Dtype::f32;
  options.seed = 7;
  const AdviceText said = advise(rows_, 0.1, Style::plain, {&options, 0.1});
  EXPECT_TRUE(
      says(said.answer,
           "  Again: gradtool bench 'my capture.h5' --codec int8 --granularity bucket:25MB --timing isolated "
           "--network 10gbe --nodes 8 --reduce alltoall --baseline-dtype fp32 --seed 7 --advise --max-nmse 0.1\n"
           "  In PyTorch: gradtool.ddp_hook(\"int8\", scheme=\"alltoall\", gate_bytes=65536)\n"))
      << said.answer;
  EXPECT_FALSE(says(advise(rows_, 0.1).answer, "Again")) << "a record does not say what it was made with";
  EXPECT_FALSE(says(said.answer, "The advice rests on")) << "that stands behind the tables";
  EXPECT_TRUE(says(said.reasons, "The advice rests on"));
}

/// The hook's rings wait for 2(p-1) messages with either. PyTorch's own hook of a cast leaves the sum to the library.
TEST_F(Advice, SaysWhatToTakeWhereDdpSends) {
  const auto sent = [this](std::size_t row, const char* hook, double ms) -> ResultRow& {
    rows_[row].in_ddp = {.hook = hook, .time = {.median = ms * 1e-3, .low = ms * 1e-3, .high = ms * 1e-3}};
    return rows_[row];
  };
  add({.codec = "int8", .ms = 50.0, .error = 1e-5}).scheme = Scheme::alltoall;
  add({.codec = "bf16", .ms = 70.0, .error = 1e-5});
  sent(0, "gloo", 110.0);
  sent(2, "ddp_hook over gloo", 50.0).in_ddp->gate_bytes = 4096.0;
  EXPECT_TRUE(says(advice(), "8 ranks: take int8 by alltoall. ")) << advice();
  EXPECT_TRUE(says(advice(),
                   "In PyTorch: gradtool.ddp_hook(\"int8\", scheme=\"alltoall\", gate_bytes=4096) ddp_hook "
                   "sends by rings over gloo, where int8 by alltoall is 2.20 times as fast"))
      << advice();
  sent(2, "ddp_hook over gloo", 108.0);
  EXPECT_TRUE(says(advice(), "8 ranks: take int8 by alltoall; in PyTorch's DDP stay uncompressed. ")) << advice();
  EXPECT_TRUE(says(advice(), "where int8 by alltoall is 1.02 times as fast as uncompressed, and not 2.00 times."))
      << advice();
  EXPECT_FALSE(says(advice(), "gradtool.ddp_hook")) << advice();
  EXPECT_TRUE(advice_record(rows_, 0.1)[0].at("in_ddp").is_null());
  sent(2, "ddp_hook over gloo", 54.0).in_ddp->time.high = 0.12;
  EXPECT_TRUE(says(advice(), "too close to call. ") && says(advice(), "is 2.04 times as fast")) << advice();
  sent(2, "ddp_hook over gloo", 108.0);
  sent(2, "ddp_hook over gloo", 76.0);
  sent(3, "bf16_compress_hook", 75.0);
  EXPECT_TRUE(says(advice(), "8 ranks: take int8 by alltoall. ")) << "as fast there as what is simpler: " << advice();
  sent(2, "ddp_hook over gloo", 108.0);
  EXPECT_TRUE(says(advice(), "take int8 by alltoall; in PyTorch's DDP take bf16. ")) << advice();
  EXPECT_TRUE(
      says(advice(), "In PyTorch: torch.distributed.algorithms.ddp_comm_hooks.default_hooks.bf16_compress_hook "))
      << advice();
  EXPECT_EQ(advice_of(rows_, 0.1).front().in_ddp, &rows_[3]);
  const auto record = advice_record(rows_, 0.1);
  EXPECT_EQ(record[0]["in_ddp"]["codec"], "bf16");
  EXPECT_EQ(record[0]["in_ddp"]["hook"], "bf16_compress_hook");
  EXPECT_NEAR(record[0]["in_ddp"]["gain"].get<double>(), 110.0 / 75.0, 1e-12);
  rows_[3].in_ddp->time = {.median = 0.107, .low = 0.1, .high = 0.12};
  EXPECT_TRUE(says(advice(), "; in PyTorch's DDP bf16 or uncompressed, too close to call. ")) << advice();
}

/// A small bucket: rings of 16 ranks wait for 30 messages with any codec, and gloo's own sum is taken to double.
TEST_F(Advice, SendsInDdpByRingsOrLeavesCastsToTheLibrary) {
  rows_.clear();
  const auto modelled = [this](const char* codec, double bytes) -> ResultRow& {
    ResultRow& row = add({.codec = codec, .ms = 50.0}, 16);
    row.bytes.emplace();
    row.encode = row.decode = PhaseSummary{.median = 1e-6};
    row.units.resize(1);
    row.units[0].bytes.payload = bytes;
    add_use(row.units[0].uses, "all_reduce_f32", bytes);
    set_modelled_times(row);
    return row;
  };
  for (const char* codec : {"none", "bf16", "int8"}) modelled(codec, codec == std::string{"none"} ? 2e5 : 1e5);
  set_in_ddp(rows_);
  EXPECT_EQ(rows_[0].in_ddp->hook, "gloo");
  EXPECT_EQ(rows_[1].in_ddp->hook, "bf16_compress_hook");
  EXPECT_EQ(rows_[2].in_ddp->hook, "ddp_hook over gloo");
  EXPECT_LT(rows_[1].in_ddp->time.median, rows_[0].in_ddp->time.median);
  EXPECT_GT(rows_[0].in_ddp->time.median, judged_seconds(rows_[0])) << "the best collectives beat gloo's";
  for (ResultRow& row : rows_) row.in_ddp.reset();
  rows_[0].op = rows_[1].op = Collective::reduce_scatter;
  rows_[2].network->library = Library::hook;
  set_in_ddp(rows_);
  for (const ResultRow& row : rows_) EXPECT_FALSE(row.in_ddp) << row.codec.name();
}

TEST_F(Advice, NamesWhereTheCommandRuns) {
  const ResultRow& row = add({.codec = "fp16", .ms = 20.0, .error = 0.001});
  BenchOptions options;
  options.file = "capture.h5";
  options.device = "cuda:1";
  options.comm = "loopback";
  const auto command = [&] { return reproducing_command(options, row, std::nullopt); };
  EXPECT_TRUE(says(command(), "--nodes 8 --device cuda:1 --advise")) << command();
  options.device = "cuda";
  options.comm = "nccl";
  options.ranks = 4;
  EXPECT_TRUE(says(command(), "--nodes 8 --comm nccl --ranks 4 --device cuda --advise")) << command();
  EXPECT_EQ(command().find("gradtool bench"), 0U);
  options = {};
  options.comm = "mpi";
  EXPECT_EQ(command().find("mpirun -n 2 gradtool bench"), 0U) << command();
}

TEST_F(Advice, FitsTheTerminal) {
  for (const char* codec : {"fp16", "bf16", "int8", "qsgd:bits=4", "topk:ratio=0.5,ef=on", "natural", "terngrad", "mx"})
    add({.codec = codec, .ms = 50.0, .spread = 40.0, .error = 0.001});
  const AdviceText whole = advise(rows_, 0.1);
  const std::string lines = whole.answer + whole.reasons;
  for (std::size_t at = 0; at < lines.size();) {
    const std::size_t end = std::min(lines.find('\n', at), lines.size());
    EXPECT_LE(end - at, 80U) << lines.substr(at, end - at);
    at = end + 1;
  }
}

}  // namespace
}  // namespace gradtool::test
