// The generic reducers over the threads communicator: results, state across steps, bytes on the wire.
#include <gtest/gtest.h>

#include <mutex>
#include <numeric>

#include "lib/codecs/reducer.hpp"
#include "lib/comm/launch.hpp"
#include "lib/core/error.hpp"
#include "tests/codecs/inputs.hpp"

namespace gradtool::test {
namespace {

struct Reduced {
  std::vector<std::vector<std::vector<float>>> results;  ///< [rank][step]
  std::vector<std::vector<float>> residuals;             ///< [rank], after the last step
  std::vector<std::uint64_t> bytes, payload;             ///< [rank], of the last step
};

std::vector<float> input(std::size_t n, int rank, int step) {
  return gradient_like(n, static_cast<std::uint32_t>(100 * step + rank + 1));
}

Reduced run(const std::string& codec, Scheme scheme, int ranks, std::size_t n, int steps) {
  Reduced out;
  const auto p = static_cast<std::size_t>(ranks);
  out.results.resize(p);
  out.residuals.resize(p);
  out.bytes.resize(p);
  out.payload.resize(p);
  const auto spec = parse_codec(codec);
  run_threads(ranks, [&](Communicator<Space::host>& comm) {
    const auto me = static_cast<std::size_t>(comm.rank());
    const Queue<Space::host> queue;
    auto reducer = make_reducer<Space::host>(spec, make_codec<Space::host>(spec, Layout::flat(n)), scheme,
                                             Layout::flat(n), ranks, queue);
    reducer->prepare(comm);
    Arena<Space::host> arena{reducer->workspace_bytes()};
    const auto workspace = arena.take_bytes(reducer->workspace_bytes());
    NoClock<Space::host> clock;
    for (int step = 0; step < steps; ++step) {
      comm.reset_traffic();
      auto gradient = input(n, comm.rank(), step);
      reducer->reduce(
          comm, queue, {gradient.data(), n}, {},
          {.key = {.seed = 9, .step = static_cast<std::uint32_t>(step), .rank = static_cast<std::uint32_t>(me)},
           .iteration = step},
          workspace, clock);
      out.results[me].push_back(gradient);
      out.bytes[me] = comm.traffic().bytes_sent;
      out.payload[me] = reducer->payload_bytes();
    }
    const auto residual = reducer->residual();
    out.residuals[me].assign(residual.data(), residual.data() + residual.size());
  });
  return out;
}

std::vector<double> exact_mean(std::size_t n, int ranks, int step) {
  std::vector<double> mean(n, 0.0);
  for (int rank = 0; rank < ranks; ++rank) {
    const auto x = input(n, rank, step);
    for (std::size_t i = 0; i < n; ++i) mean[i] += static_cast<double>(x[i]) / ranks;
  }
  return mean;
}

double relative_error(const std::vector<float>& y, const std::vector<double>& x) {
  double error = 0.0;
  double energy = 0.0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    error += (x[i] - static_cast<double>(y[i])) * (x[i] - static_cast<double>(y[i]));
    energy += x[i] * x[i];
  }
  return energy == 0.0 ? 0.0 : error / energy;
}

TEST(Reduce, UncompressedIsTheMeanAndAllRanksAgree) {
  for (const int ranks : {1, 2, 3, 4, 7}) {
    for (const std::size_t n : {std::size_t{1}, std::size_t{5}, std::size_t{1000}}) {
      const auto out = run("none", Scheme::automatic, ranks, n, 1);
      EXPECT_LT(relative_error(out.results[0][0], exact_mean(n, ranks, 0)), 1e-12);
      for (const auto& rank : out.results) EXPECT_EQ(rank, out.results[0]);
    }
  }
}

TEST(Reduce, EverySchemeGivesEveryRankTheSameBits) {
  for (const std::string codec :
       {"fp16", "qsgd:bits=6", "topk:ratio=0.5,ef=off", "fft:theta=0.3,bits=12", "fft:schedule=drop,drop_at=1"}) {
    if (codec.starts_with("fft") &&
        std::none_of(codecs().begin(), codecs().end(), [](auto* c) { return c->name == "fft"; }))
      continue;
    for (const Scheme scheme : {Scheme::gather, Scheme::hop}) {
      const auto out = run(codec, scheme, 4, 1003, 2);
      for (int step = 0; step < 2; ++step) {
        for (const auto& rank : out.results)
          EXPECT_EQ(rank[step], out.results[0][step]) << codec << " " << name_of(scheme);
        EXPECT_LT(relative_error(out.results[0][step], exact_mean(1003, 4, step)), 0.9)
            << codec << " " << name_of(scheme);
      }
    }
  }
}

TEST(Reduce, TinySegmentsOfEverySize) {
  // Segments shorter than a transform mix exact payloads with ones that state their size.
  for (const std::string codec : {"qsgd:bits=8", "fft:theta=0,schedule=drop,theta_end=0.5,drop_at=1", "fp16"}) {
    if (codec.starts_with("fft") &&
        std::none_of(codecs().begin(), codecs().end(), [](auto* c) { return c->name == "fft"; }))
      continue;
    for (const std::size_t n : {1U, 2U, 7U, 10U, 13U}) {
      for (const int ranks : {2, 3, 4}) {
        for (const Scheme scheme : {Scheme::gather, Scheme::hop}) {
          const auto out = run(codec, scheme, ranks, n, 2);
          for (const auto& rank : out.results) EXPECT_EQ(rank, out.results[0]) << codec << " n " << n << " p " << ranks;
          EXPECT_LT(relative_error(out.results[0][0], exact_mean(n, ranks, 0)), 0.02) << codec << " n " << n;
        }
      }
    }
  }
}

TEST(Reduce, HopLosesMoreThanGatherButLittle) {
  const auto gather = run("qsgd:bits=8", Scheme::gather, 4, 20'000, 1);
  const auto hop = run("qsgd:bits=8", Scheme::hop, 4, 20'000, 1);
  const auto mean = exact_mean(20'000, 4, 0);
  const double by_gather = relative_error(gather.results[0][0], mean);
  const double by_hop = relative_error(hop.results[0][0], mean);
  EXPECT_GT(by_hop, by_gather);
  EXPECT_LT(by_hop, 20 * by_gather);
}

TEST(Reduce, ErrorFeedbackLosesNothingOverTime) {
  // Mass: the sum over steps of what was delivered, plus what is held back, is what came in.
  constexpr int kRanks = 3;
  constexpr int kSteps = 12;
  const std::size_t n = 2000;
  const auto out = run("topk:ratio=0.05", Scheme::automatic, kRanks, n, kSteps);
  std::vector<double> delivered(n, 0.0);
  std::vector<double> held(n, 0.0);
  std::vector<double> came(n, 0.0);
  for (int step = 0; step < kSteps; ++step) {
    const auto mean = exact_mean(n, kRanks, step);
    for (std::size_t i = 0; i < n; ++i) {
      came[i] += mean[i];
      delivered[i] += static_cast<double>(out.results[0][step][i]);
    }
  }
  for (const auto& residual : out.residuals) {
    ASSERT_EQ(residual.size(), n);
    for (std::size_t i = 0; i < n; ++i) held[i] += static_cast<double>(residual[i]) / kRanks;
  }
  for (std::size_t i = 0; i < n; ++i) ASSERT_NEAR(delivered[i] + held[i], came[i], 1e-7) << i;
}

TEST(Reduce, BytesAreThoseOfTheFormulas) {
  const std::size_t n = 4096;
  for (const int p : {2, 4, 8}) {
    const auto pp = static_cast<std::uint64_t>(p);
    const auto none = run("none", Scheme::automatic, p, n, 1);
    const auto half = run("fp16", Scheme::automatic, p, n, 1);
    const auto qsgd = run("qsgd:bits=4,bucket=64", Scheme::automatic, p, n, 1);
    const auto silent = run("noop", Scheme::automatic, p, n, 1);
    const std::uint64_t payload = 4 * n / 64 + n / 2;
    for (std::size_t r = 0; r < pp; ++r) {
      EXPECT_EQ(none.bytes[r], 2 * (pp - 1) * 4 * n / pp);
      EXPECT_EQ(half.bytes[r], 2 * (pp - 1) * 2 * n / pp);
      EXPECT_EQ(qsgd.payload[r], payload);
      EXPECT_EQ(qsgd.bytes[r], (pp - 1) * payload);
      EXPECT_EQ(silent.bytes[r], 0U);
    }
  }
}

TEST(Reduce, SizeExchangeIsCounted) {
  if (std::none_of(codecs().begin(), codecs().end(), [](auto* c) { return c->name == "fft"; }))
    GTEST_SKIP() << "built without FFTW";
  const auto out = run("fft:schedule=drop,drop_at=1000,theta=0.9", Scheme::automatic, 4, 5000, 1);
  for (std::size_t r = 0; r < 4; ++r) EXPECT_EQ(out.bytes[r], 3 * out.payload[r] + 3 * 8);
}

TEST(Reduce, RefusesSchemesThatDoNotFit) {
  EXPECT_THROW(static_cast<void>(resolve(Scheme::sum, parse_codec("qsgd"))), Error);
  EXPECT_THROW(static_cast<void>(resolve(Scheme::hop, parse_codec("topk"))), Error);
  EXPECT_EQ(resolve(Scheme::hop, parse_codec("topk:ef=off")), Scheme::hop);
  EXPECT_EQ(resolve(Scheme::automatic, parse_codec("fp16")), Scheme::sum);
}

}  // namespace
}  // namespace gradtool::test
