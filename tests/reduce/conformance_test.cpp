// Tests the duties of every codec between ranks and over steps, over the registry with the scheme it rides by default.
#include <gtest/gtest.h>

#include <cmath>

#include "tests/codecs/codec_run.hpp"
#include "tests/reduce/model_run.hpp"

namespace gradtool::test {
namespace {

std::vector<std::string> reducer_specs() {
  std::vector<std::string> specs;
  for (const auto* codec : codecs()) {
    if (codec->aggregation != Aggregation::own) specs.emplace_back(codec->name);
  }
  for (const auto& spec : own_specs()) specs.push_back(spec);
  return specs;
}

/// The result is worth having. In the first step, where no residual is involved yet, the error keeps the codec's own
/// bound: with |x_r - y_r|^2 <= b |x_r|^2 on every rank, the means differ by at most b times the mean of the |x_r|^2.
/// And whatever sends something is better than sending nothing, whose error is 1, in the first step and in the sum of
/// all of them. Only the error of an unbiased method that states no bound (atomo) may be larger, on few ranks: it has
/// to point the right way.
void expect_useful(const std::string& text, const ModelOutcome& out) {
  const CodecSpec spec = parse_codec(text);
  const CodecDescriptor& descriptor = *spec.descriptor;
  if (descriptor.aggregation == Aggregation::none) return;
  const std::size_t n = out.inputs[0][0].size();
  const auto ranks = static_cast<double>(out.inputs.size());
  double energy = 0.0;  // of the ranks' gradients, on average
  double mean_energy = 0.0;
  double result_energy = 0.0;
  double product = 0.0;
  for (std::size_t i = 0; i < n; ++i) {
    double mean = 0.0;
    for (const auto& rank : out.inputs) {
      const auto x = static_cast<double>(rank[0][i]);
      mean += x / ranks;
      energy += x * x / ranks;
    }
    const auto result = static_cast<double>(out.results[0][0][i]);
    mean_energy += mean * mean;
    result_energy += result * result;
    product += mean * result;
  }
  double bound = HUGE_VAL;
  if (descriptor.aggregation != Aggregation::own) bound = make_codec<Space::host>(spec, small_model())->bound(n).nmse;
  if (std::isfinite(bound)) {
    EXPECT_LE(model_nmse(out, 0), bound * energy / mean_energy + 1e-12);  // 1e-12: the sum over ranks is in float32
  } else if (descriptor.unbiased) {
    EXPECT_GT(product, 0.3 * std::sqrt(mean_energy * result_energy));
    return;
  }
  EXPECT_LT(model_nmse(out, 0), 1.0);
  EXPECT_LT(model_nmse(out), 1.0);
}

class ReducerConformance : public testing::TestWithParam<std::string> {};

TEST_P(ReducerConformance, EveryRankEndsWithTheSameFiniteBits) {
  for (const int ranks : {1, 2, 3, 5}) {
    const auto out = run_model({.codec = GetParam(), .ranks = ranks, .steps = 3});
    for (std::size_t step = 0; step < 3; ++step) {
      for (const auto& rank : out.results) {
        for (std::size_t i = 0; i < rank[step].size(); ++i) {
          ASSERT_TRUE(std::isfinite(rank[step][i])) << ranks << " ranks, step " << step << ", element " << i;
          ASSERT_EQ(std::bit_cast<std::uint32_t>(rank[step][i]), std::bit_cast<std::uint32_t>(out.results[0][step][i]))
              << ranks << " ranks, step " << step << ", element " << i;
        }
      }
    }
    SCOPED_TRACE(testing::Message() << ranks << " ranks");
    expect_useful(GetParam(), out);
  }
}

TEST_P(ReducerConformance, WorksWithoutSideInputs) {
  const auto out = run_model({.codec = GetParam(), .steps = 2, .side_inputs = false});
  for (const auto& rank : out.results) EXPECT_EQ(rank, out.results[0]);
  const auto* descriptor = parse_codec(GetParam()).descriptor;
  if (descriptor->needs_weight || descriptor->needs_second_moment)
    EXPECT_FALSE(out.note.empty()) << "a missing input must be said";
}

TEST_P(ReducerConformance, DoesNotDependOnThreads) {
  const auto one = run_model({.codec = GetParam(), .steps = 2});
  const auto three = run_model({.codec = GetParam(), .steps = 2, .threads = 3});
  EXPECT_EQ(one.results, three.results);
}

/// A rank that does not need its results sends what it would have sent, in all steps, and keeps what it would have
/// kept; the others notice nothing.
void expect_the_same_where_results_are_spared(ModelSetup setup) {
  const auto all = run_model(setup);
  setup.spares_results = true;
  const auto one = run_model(setup);
  EXPECT_EQ(one.results[0], all.results[0]);
  EXPECT_EQ(one.residuals, all.residuals);
  EXPECT_EQ(one.payload, all.payload);
  EXPECT_EQ(one.wire, all.wire);
  for (std::size_t rank = 0; rank < all.messages.size(); ++rank) {
    for (std::size_t step = 0; step < all.messages[rank].size(); ++step) {
      const auto& messages = all.messages[rank][step];
      ASSERT_EQ(one.messages[rank][step].size(), messages.size()) << "rank " << rank << ", step " << step;
      for (std::size_t i = 0; i < messages.size(); ++i)
        EXPECT_EQ(one.messages[rank][step][i].bytes, messages[i].bytes) << "rank " << rank << ", step " << step;
    }
    if (rank > 0) EXPECT_EQ(one.results[rank] == all.results[rank], !all.has_common_payloads) << "rank " << rank;
  }
}

TEST_P(ReducerConformance, SendsAndKeepsTheSameWhereResultsAreSpared) {
  expect_the_same_where_results_are_spared({.codec = GetParam()});
}

TEST(ReducerResults, AreSparedByGatherAndAllToAll) {
  for (const auto& [codec, scheme] :
       {std::pair{"topk", Scheme::gather}, {"int8", Scheme::alltoall}, {"demo", Scheme::automatic}}) {
    SCOPED_TRACE(codec);
    EXPECT_TRUE(run_model({.codec = codec, .steps = 1, .scheme = scheme}).has_common_payloads);
    expect_the_same_where_results_are_spared({.codec = codec, .scheme = scheme});
  }
  EXPECT_FALSE(run_model({.codec = "topk:ef=ef21", .steps = 1}).has_common_payloads) << "every rank keeps the mean";
}

TEST_P(ReducerConformance, ResetForgets) {
  // Six steps reach every phase of the methods that have phases. After the reset the same six must give the bits, the
  // sizes and the residuals that a reducer gives which was never used before.
  constexpr int kSteps = 6;
  const auto reset = run_model({.codec = GetParam(), .steps = 2 * kSteps, .resets_at = kSteps, .restarts = true});
  const auto fresh = run_model({.codec = GetParam(), .steps = kSteps});
  for (std::size_t rank = 0; rank < fresh.results.size(); ++rank) {
    for (std::size_t step = 0; step < kSteps; ++step) {
      EXPECT_EQ(reset.results[rank][kSteps + step], fresh.results[rank][step]) << "rank " << rank << ", step " << step;
      EXPECT_EQ(reset.payload[rank][kSteps + step], fresh.payload[rank][step]) << "rank " << rank << ", step " << step;
      EXPECT_EQ(reset.wire[rank][kSteps + step], fresh.wire[rank][step]) << "rank " << rank << ", step " << step;
    }
    EXPECT_EQ(reset.residuals[rank], fresh.residuals[rank]) << "rank " << rank;
  }
  EXPECT_EQ(reset.note, fresh.note);
}

TEST_P(ReducerConformance, DegenerateGradientsStayFinite) {
  const std::size_t n = small_model().elements;
  const std::vector<std::pair<const char*, std::vector<float>>> inputs{
      {"zeros", std::vector<float>(n, 0.0F)},
      {"constant", std::vector<float>(n, 0.25F)},
      {"denormal", std::vector<float>(n, 1e-40F)},
      {"outlier",
       [n] {
         std::vector<float> x(n, 1e-6F);
         x[n / 2] = 32.0F;
         return x;
       }()},
      {"one rank only", {}},
  };
  for (const auto& [what, x] : inputs) {
    const auto out = run_model({.codec = GetParam(), .steps = 3, .gradient = [&, &x = x](int rank, int step) {
                                  if (!x.empty()) return x;
                                  return rank == 0 ? model_gradient(n, 0, step) : std::vector<float>(n, 0.0F);
                                }});
    for (const auto& step : out.results[0]) {
      for (const float value : step) {
        ASSERT_TRUE(std::isfinite(value)) << what;
        if (std::string_view{what} == "zeros") ASSERT_EQ(value, 0.0F);
      }
    }
  }
}

TEST_P(ReducerConformance, TakesUnitsOfAnySize) {
  for (const std::size_t n : {std::size_t{1}, std::size_t{2}, std::size_t{31}, std::size_t{33}, std::size_t{1000}}) {
    const auto out = run_model({.codec = GetParam(), .steps = 2, .layout = Layout::flat(n)});
    for (const auto& rank : out.results) ASSERT_EQ(rank, out.results[0]) << n;
    for (const float value : out.results[0][1]) ASSERT_TRUE(std::isfinite(value)) << n;
  }
  for (const auto& [rows, columns] : {std::pair{1U, 40U}, {40U, 1U}, {3U, 5U}, {64U, 33U}}) {
    const auto out = run_model({.codec = GetParam(), .steps = 2, .layout = Layout::matrix(rows, columns)});
    for (const auto& rank : out.results) ASSERT_EQ(rank, out.results[0]) << rows << "x" << columns;
  }
}

// Recursive doubling needs more scratch than the ring; a workspace that is too small throws.
TEST(ReducerAllReduce, DoublingFitsTheWorkspaceOfEveryCodec) {
  for (const auto& spec : reducer_specs()) {
    const auto out = run_model({.codec = spec, .steps = 2, .all_reduce = AllReduce::doubling});
    for (const auto& rank : out.results) EXPECT_EQ(rank, out.results[0]) << spec;
    SCOPED_TRACE(spec);
    expect_useful(spec, out);
  }
}

/// Those that keep what they did not send and add it to the next step.
class ErrorFeedback : public testing::TestWithParam<std::string> {};

std::vector<std::string> feedback_specs() {
  std::vector<std::string> specs;
  const auto take = [&](const std::string& spec) {
    if (parse_codec(spec).error_feedback) specs.push_back(spec);
  };
  for (const auto& spec : reducer_specs()) {
    const CodecDescriptor& codec = *parse_codec(spec).descriptor;
    if (spec != codec.name || !has_trait(spec, "slow")) {
      take(spec);
    } else if (codec.aggregation != Aggregation::own) {  // the variants of others are among the specs
      for (const auto& variant : variants_of(codec)) take(variant);
    }
  }
  return specs;
}

TEST_P(ErrorFeedback, BringsEverythingInTheEnd) {
  // Error feedback: sum of results = sum of inputs - residual / p, so the cumulative error is at most the residual's.
  const auto once = [](int rank, int) { return model_gradient(small_model().elements, rank, 0); };
  const auto few = run_model({.codec = GetParam(), .steps = 4, .gradient = once});
  const auto many = run_model({.codec = GetParam(), .steps = 40, .gradient = once});
  EXPECT_LT(model_nmse(many), 0.7 * model_nmse(few) + 1e-10);
}

INSTANTIATE_TEST_SUITE_P(Registry, ErrorFeedback, testing::ValuesIn(feedback_specs()),
                         [](const auto& info) { return test_name(info.param); });
INSTANTIATE_TEST_SUITE_P(Registry, ReducerConformance, testing::ValuesIn(reducer_specs()),
                         [](const auto& info) { return test_name(info.param); });

}  // namespace
}  // namespace gradtool::test
