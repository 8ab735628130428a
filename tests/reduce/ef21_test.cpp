// ef=ef21 and ef=ef21m: ranks send compressed differences to what they have sent, and all keep the mean of it.
#include <gtest/gtest.h>

#include <numeric>

#include "lib/core/error.hpp"
#include "tests/codecs/codec_run.hpp"
#include "tests/reduce/model_run.hpp"

namespace gradtool::test {
namespace {

/// The codecs are of several kinds: sparse, quantised in blocks, signs, cast and summed, drawn and summed, lossless.
const std::vector<std::string> kContractive{
    "topk:ratio=0.1,ef=ef21", "int8:ef=ef21",   "efsignsgd:ef=ef21",
    "fp16:ef=ef21",           "bf16:ef=ef21",   "randomk:ratio=0.25,ef=ef21",
    "mx:format=e4m3,ef=ef21", "sidco:ef=ef21",  "qsgd:bits=4,bucket=128,ef=ef21",
    "exponent:ef=ef21",       "onebit:ef=ef21", "none:ef=ef21",
    "natural:ef=ef21",        "fft:ef=ef21"};

std::string failure(const std::string& spec) {
  try {
    static_cast<void>(parse_codec(spec));
  } catch (const Error& error) {
    EXPECT_EQ(error.fault(), Fault::usage);
    return error.what();
  }
  return "taken";
}

double energy(const std::vector<float>& x) {
  return std::inner_product(x.begin(), x.end(), x.begin(), 0.0, std::plus<>{},
                            [](float a, float b) { return static_cast<double>(a) * static_cast<double>(b); });
}

/// Runs EF21 of three ranks with top-k, and compares with the papers' in float64 (Richtarik et al. 2021, Algorithm 2,
/// whose g_i start at C(x_i), which is what s_i = 0 gives; with an average in the place of gradients, Fatkhullin et al.
/// 2023, Algorithm 1, whose average begins with the first gradient).
void expect_ef21_of_the_papers(const std::string& feedback, double eta) {
  constexpr std::size_t kRanks = 3, kElements = 500, kKept = 50;
  constexpr int kSteps = 12;
  const auto gradient = [](int rank, int step) { return model_gradient(kElements, rank, step); };
  const auto out = run_model({.codec = "topk:ratio=0.1," + feedback,
                              .ranks = kRanks,
                              .steps = kSteps,
                              .layout = Layout::flat(kElements),
                              .gradient = gradient});
  std::vector<std::vector<double>> sent(kRanks, std::vector<double>(kElements, 0.0));
  auto average = sent;
  for (int step = 0; step < kSteps; ++step) {
    std::vector<double> mean(kElements, 0.0);
    for (std::size_t r = 0; r < kRanks; ++r) {
      const auto x = gradient(static_cast<int>(r), step);
      std::vector<std::size_t> order(kElements);
      std::iota(order.begin(), order.end(), std::size_t{0});
      for (std::size_t i = 0; i < kElements; ++i)
        average[r][i] = step == 0 ? static_cast<double>(x[i]) : (1.0 - eta) * average[r][i] + eta * x[i];
      const auto difference = [&](std::size_t i) { return average[r][i] - sent[r][i]; };
      std::sort(order.begin(), order.end(),
                [&](std::size_t a, std::size_t b) { return std::abs(difference(a)) > std::abs(difference(b)); });
      for (std::size_t k = 0; k < kKept; ++k) sent[r][order[k]] += difference(order[k]);
      for (std::size_t i = 0; i < kElements; ++i) mean[i] += sent[r][i] / kRanks;
    }
    for (std::size_t i = 0; i < kElements; ++i)
      ASSERT_NEAR(out.results[0][static_cast<std::size_t>(step)][i], mean[i], 1e-8) << step << ' ' << i;
  }
}

TEST(Ef21, IsTheAlgorithmOfThePaper) {
  expect_ef21_of_the_papers("ef=ef21", 1.0);
}

TEST(Ef21m, IsTheAlgorithmOfThePaper) {
  expect_ef21_of_the_papers("ef=ef21m", 0.1);
  expect_ef21_of_the_papers("ef=ef21m,eta=0.4", 0.4);
}

/// Gradients have a mean of their own and as much noise again. What EF21 has sent follows the noise of the last step,
/// and the average has eta / (2 - eta) of its energy: 0.053.
TEST(Ef21m, HasLessOfTheNoiseOfSingleSteps) {
  const std::size_t n = 2000;
  const auto base = model_gradient(n, 0, 99);
  const auto gradient = [&](int rank, int step) {
    auto x = model_gradient(n, rank, step);
    for (std::size_t i = 0; i < n; ++i) x[i] = base[i] + (step % 2 == 0 ? x[i] : -x[i]);
    return x;
  };
  const auto error = [&](const std::string& codec) {
    const auto out = run_model({.codec = codec, .steps = 80, .layout = Layout::flat(n), .gradient = gradient});
    double off = 0.0;
    for (std::size_t i = 0; i < n; ++i) {
      const double difference = static_cast<double>(out.results[0].back()[i]) - static_cast<double>(base[i]);
      off += difference * difference;
    }
    return off / energy(base);
  };
  const double plain = error("int8:ef=ef21");
  EXPECT_GT(plain, 0.2);
  EXPECT_LT(error("int8:ef=ef21m"), 0.1 * plain);
}

/// A reset begins anew, with the first gradient again, and bits do not depend on threads or ranks.
TEST(Ef21m, IsTheSameAfterAResetAndOnEveryRank) {
  const std::string text = "topk:ratio=0.1,ef=ef21m";
  const auto reset = run_model({.codec = text, .steps = 6, .resets_at = 3, .restarts = true}).results[0];
  for (std::size_t step = 0; step < 3; ++step) EXPECT_EQ(reset[3 + step], reset[step]);
  for (const char* each : {"topk:ratio=0.1,ef=ef21m", "int8:ef=ef21m", "fp16:ef=ef21m,eta=0.5"}) {
    const auto out = run_model({.codec = each, .steps = 4});
    for (const auto& rank : out.results) EXPECT_EQ(rank, out.results[0]) << each;
    EXPECT_EQ(run_model({.codec = each, .steps = 4, .threads = 3}).results, out.results) << each;
  }
}

TEST(Ef21m, IsReadAndWritten) {
  const CodecSpec spec = parse_codec("topk:ef=ef21m,ratio=0.1");
  EXPECT_TRUE(spec.ef21);
  EXPECT_EQ(spec.eta, 0.1);
  EXPECT_TRUE(spec.feedback().averages());
  EXPECT_EQ(spec.params_text(), "ratio=0.1,index=auto,ef=ef21m,eta=0.1");
  EXPECT_EQ(parse_codec("topk:eta=0.25,ef=ef21m").params_text(), "ratio=0.01,index=auto,ef=ef21m,eta=0.25");
  EXPECT_EQ(parse_codec("topk:" + spec.params_text()).params_text(), spec.params_text());
  for (const char* text : {"topk:eta=0.2", "topk:ef=ef21,eta=0.2", "topk:ef=on,eta=0.2"})
    EXPECT_NE(failure(text).find("eta is the momentum of ef=ef21m"), std::string::npos) << text;
  EXPECT_NE(failure("topk:ef=ef21m,eta=0"), "taken");
  EXPECT_NE(failure("topk:ef=ef21m,eta=1"), "taken");
  EXPECT_NE(failure("terngrad:ef=ef21m").find("does not promise"), std::string::npos);
}

/// With constant gradients what is not yet sent shrinks in every step by the codec's promise, in energy or in the
/// largest element, on every rank, and the results come to the mean of the gradients.
TEST(Ef21, ContractsInEveryStep) {
  const Layout layout = small_model();
  const auto once = [&](int rank, int) { return model_gradient(layout.elements, rank, 0); };
  const auto largest = [](const std::vector<float>& x) {
    return static_cast<double>(
        std::abs(*std::max_element(x.begin(), x.end(), [](float a, float b) { return std::abs(a) < std::abs(b); })));
  };
  for (const auto& text : kContractive) {
    if (text.starts_with("none")) continue;  // the library sums it; nothing is kept
    const ErrorBound bound = make_codec<Space::host>(parse_codec(text), layout)->bound(layout.elements);
    std::vector<std::vector<float>> left;  // of each rank
    for (int rank = 0; rank < 3; ++rank) left.push_back(once(rank, 0));
    const auto gradients = left;
    ModelOutcome out{3};
    for (int steps = 1; steps <= 12; ++steps) {
      out = run_model({.codec = text, .steps = steps, .gradient = once});
      for (std::size_t rank = 0; rank < 3; ++rank) {
        // Below the last terms float32 rounds x - s.
        if (std::isfinite(bound.nmse)) {
          EXPECT_LE(energy(out.residuals[rank]),
                    std::min(bound.nmse, 1.0) * energy(left[rank]) * (1.0 + 1e-5) + 1e-14 * energy(gradients[rank]))
              << text << " after step " << steps;
        }
        if (std::isfinite(bound.of_largest)) {
          EXPECT_LE(largest(out.residuals[rank]),
                    bound.of_largest * largest(left[rank]) + bound.absolute + 1e-7 * largest(gradients[rank]))
              << text << " after step " << steps;
        }
        left[rank] = out.residuals[rank];
      }
    }
    for (std::size_t rank = 0; rank < 3; ++rank) EXPECT_LT(energy(left[rank]), 0.7 * energy(gradients[rank])) << text;
  }
}

/// A sum in binary16 rounds, and the rounding of the first step would stay.
Scheme scheme_of(std::string_view text) {
  return text.starts_with("fp16") ? Scheme::gather : Scheme::automatic;
}

TEST(Ef21, ComesToTheGradient) {
  const auto once = [](int rank, int) { return model_gradient(small_model().elements, rank, 0); };
  for (const char* text : {"topk:ratio=0.1,ef=ef21", "int8:ef=ef21", "fp16:ef=ef21", "randomk:ratio=0.25,ef=ef21"}) {
    const auto out = run_model({.codec = text, .steps = 60, .scheme = scheme_of(text), .gradient = once});
    EXPECT_LT(model_nmse(out, 59), 1e-9) << text;  // what is below the smallest binary16 fp16 cannot send
  }
  // Error feedback never comes to rest: what it sends goes round among the elements.
  EXPECT_GT(model_nmse(run_model({.codec = "topk:ratio=0.1", .steps = 60, .gradient = once}), 59), 0.1);
}

/// A single rank's sum of what it has sent equals, bit for bit, what receivers have, so that errors of rounding do not
/// add up. Between several ranks they do, in the mean, by half a unit in the last place a step.
TEST(Ef21, ReceiversHaveWhatWasSent) {
  for (const auto& text : kContractive) {
    if (text.starts_with("none")) continue;
    const auto out = run_model({.codec = text, .ranks = 1, .steps = 20});
    for (std::size_t i = 0; i < out.residuals[0].size(); ++i)
      ASSERT_EQ(out.residuals[0][i], out.inputs[0].back()[i] - out.results[0].back()[i]) << text << ' ' << i;
  }
  const auto many = run_model({.codec = "topk:ratio=0.1,ef=ef21", .ranks = 3, .steps = 500});
  double off = 0.0;
  double all = 0.0;
  for (std::size_t i = 0; i < many.residuals[0].size(); ++i) {
    double mean = 0.0;
    for (std::size_t rank = 0; rank < 3; ++rank)
      mean += (static_cast<double>(many.inputs[rank].back()[i]) - static_cast<double>(many.residuals[rank][i])) / 3;
    const double difference = mean - static_cast<double>(many.results[0].back()[i]);
    off += difference * difference;
    all += mean * mean;
  }
  EXPECT_LT(off, 1e-12 * all);
}

TEST(Ef21, EveryRankEndsWithTheSameBits) {
  for (const auto& text : kContractive) {
    for (const int ranks : {2, 3, 5}) {
      const auto out = run_model({.codec = text, .ranks = ranks, .steps = 4});
      for (const auto& rank : out.results) EXPECT_EQ(rank, out.results[0]) << text;
    }
    EXPECT_EQ(run_model({.codec = text, .threads = 3}).results, run_model({.codec = text}).results) << text;
  }
}

TEST(Ef21, ResetForgets) {
  const auto reset =
      run_model({.codec = "topk:ratio=0.1,ef=ef21", .steps = 6, .resets_at = 3, .restarts = true}).results[0];
  for (std::size_t step = 0; step < 3; ++step) EXPECT_EQ(reset[3 + step], reset[step]);
}

/// NaN stays where the codec leaves it, and no step brings it back to a number: there is no difference to it.
TEST(Ef21, NotANumberStays) {
  const auto gradient = [](int rank, int step) {
    auto x = model_gradient(200, rank, step);
    if (rank == 0 && step == 1) x[17] = NAN;
    return x;
  };
  const auto out = run_model({.codec = "fp16:ef=ef21", .steps = 4, .layout = Layout::flat(200), .gradient = gradient});
  for (std::size_t step = 0; step < 4; ++step) {
    for (std::size_t i = 0; i < 200; ++i)
      ASSERT_EQ(std::isnan(out.results[0][step][i]), step >= 1 && i == 17) << step << ' ' << i;
  }
}

TEST(Ef21, IsReadAndWritten) {
  const CodecSpec spec = parse_codec("topk:ef=ef21,ratio=0.1");
  EXPECT_TRUE(spec.ef21);
  EXPECT_FALSE(spec.error_feedback);
  EXPECT_TRUE(spec.feedback().ef21());
  EXPECT_FALSE(spec.feedback().averages());
  EXPECT_EQ(spec.params_text(), "ratio=0.1,index=auto,ef=ef21");
  EXPECT_EQ(parse_codec("fp16:ef=ef21").params_text().substr(parse_codec("fp16").params_text().size()), ",ef=ef21");
  EXPECT_EQ(parse_codec("topk").feedback(), Feedback::residual);
  EXPECT_EQ(parse_codec("topk:ef=off").feedback(), Feedback::off);
}

TEST(Ef21, IsRefusedWhereItNeedNotConverge) {
  for (const auto& text : kContractive) EXPECT_EQ(failure(text), "taken");
  for (const char* text : {"fft:range=1,ef=ef21", "terngrad:ef=ef21", "qsgd:bits=2,ef=ef21", "randomk:scale=on,ef=ef21",
                           "atomo:ef=ef21", "noop:ef=ef21"})
    EXPECT_NE(failure(text).find("does not promise"), std::string::npos) << text;
  for (const char* text : {"powersgd:ef=ef21", "thc:ef=ef21", "sketch:ef=ef21"})
    EXPECT_NE(failure(text).find("reducer of its own"), std::string::npos) << text;
  for (const char* text : {"dgc:ef=ef21", "vgc:ef=ef21", "signsgd:ef=ef21"})
    EXPECT_NE(failure(text).find("ef does not apply"), std::string::npos) << text;
  EXPECT_THROW(static_cast<void>(resolve(Scheme::hop, parse_codec("int8:ef=ef21"))), Error);
  EXPECT_EQ(resolve(Scheme::gather, parse_codec("fp16:ef=ef21")), Scheme::gather);
}

}  // namespace
}  // namespace gradtool::test
