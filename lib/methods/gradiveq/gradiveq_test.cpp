// GradiVeQ: slices, bases, linearity, and the schedule around them.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <numeric>
#include <set>

#include "lib/comm/forwarding.hpp"
#include "lib/methods/gradiveq/compressor.hpp"
#include "tests/reduce/model_run.hpp"

namespace gradtool::test {
namespace {

using Compressor = gradiveq::Compressor<Space::host>;
using gradiveq::Layer;

Layout conv(std::int64_t filters, std::int64_t depth, std::int64_t height, std::int64_t width) {
  const auto n = static_cast<std::size_t>(filters * depth * height * width);
  return {{{.name = "conv", .shape = {filters, depth, height, width}, .kind = "conv", .layout = "OIHW", .elements = n}},
          n};
}

/// Gradients of one layer whose every slice lies in a mean plus `rank` directions that all slices share; different
/// weights on every rank and step.
struct Planted {
  Planted(const Layout& layout, std::size_t slice, std::size_t rank) : size{slice} {
    const TensorShape& tensor = layout.tensors[0];
    filters = static_cast<std::size_t>(tensor.shape[0] * tensor.shape[1]);
    elements = tensor.elements;
    for (std::size_t r = 0; r < rank; ++r) directions.push_back(noise(slice, static_cast<std::uint32_t>(100 + r)));
    mean = noise(elements, 99);
  }
  std::vector<float> operator()(int rank, int step) const {
    const std::size_t taps = elements / filters;
    std::vector<float> x(elements);
    for (std::size_t m = 0; m < elements / size; ++m) {
      const auto weights = noise(directions.size(), static_cast<std::uint32_t>(1000 * step + 50 * rank) + 7919U * m);
      for (std::size_t k = 0; k < size; ++k) {
        float value = mean[m * size + k];
        for (std::size_t r = 0; r < directions.size(); ++r) value += weights[r] * directions[r][k];
        const std::size_t tap = (m * size + k) / filters;
        x[(m * size + k) % filters * taps + tap] = value;
      }
    }
    return x;
  }
  std::size_t size, filters, elements;
  std::vector<std::vector<float>> directions;
  std::vector<float> mean;
};

TEST(GradiVeq, SlicesAreThePapersSlices) {
  for (const auto& [f, d, h, w, c] : {std::tuple{4, 3, 3, 3, 1},
                                      {4, 3, 3, 3, 3},
                                      {4, 3, 3, 3, 9},
                                      {8, 5, 1, 1, 1},
                                      {6, 1, 3, 3, 3},
                                      {2, 2, 5, 5, 5},
                                      {4, 3, 3, 3, 2}}) {
    const Layout layout = conv(f, d, h, w);
    const auto spec = parse_codec("gradiveq:slice=" + std::to_string(c));
    const auto layers = gradiveq::layers_of(layout, spec.params);
    ASSERT_EQ(layers.size(), 1U);
    const Layer& layer = layers[0];
    EXPECT_EQ(layer.slices, static_cast<std::size_t>(h * w / c));
    EXPECT_EQ(layer.rest(), static_cast<std::size_t>(h * w % c * f * d));
    std::vector<float> gradient(layout.elements);
    std::iota(gradient.begin(), gradient.end(), 0.0F);
    std::vector<float> row(layout.elements);
    gradiveq::gather_taps({}, layer.slice_range(0), gradient.data(), row.data());
    gradiveq::gather_taps({}, layer.rest_range(layer.sliced()), gradient.data(), row.data());
    // Section 2: lin = ((h W + w) D + d) F + f, slices of K consecutive elements; as sets.
    std::vector<std::set<float>> expected(static_cast<std::size_t>(h * w / c));
    for (int lin = 0; lin < h * w / c * c * d * f; ++lin) {
      const int tap = lin / (d * f);
      const int depth = lin / f % d;
      const int filter = lin % f;
      expected[static_cast<std::size_t>(lin) / layer.coordinates()].insert(
          static_cast<float>((filter * d + depth) * h * w + tap));
    }
    for (std::size_t m = 0; m < layer.slices; ++m) {
      const float* first = row.data() + m * layer.coordinates();
      EXPECT_EQ((std::set<float>{first, first + layer.coordinates()}), expected[m]) << m;
      std::vector<float> slice(layer.coordinates());
      const std::vector<float> zeros(layout.elements, 0.0F);
      gradiveq::gather_slices(layer, {m, 1, 0, layer.coordinates()}, gradient.data(), zeros.data(), layer.coordinates(),
                              slice.data(), slice.size());
      EXPECT_TRUE(std::equal(slice.begin(), slice.end(), first)) << m;
      gradiveq::gather_slices(layer, {m, 1, 3, 7}, gradient.data(), zeros.data(), layer.coordinates(), slice.data(), 4);
      EXPECT_TRUE(std::equal(slice.begin(), slice.begin() + 4, first + 3)) << m;
    }
    std::vector<float> back(layout.elements, -1.0F);
    gradiveq::scatter_taps({}, layer.slice_range(0), row.data(), 1.0F, back.data());
    gradiveq::scatter_taps({}, layer.rest_range(layer.sliced()), row.data(), 1.0F, back.data());
    EXPECT_EQ(back, gradient);
    const std::vector<float> ones(layout.elements, 1.0F);
    std::fill(back.begin(), back.end(), -1.0F);
    gradiveq::scatter_slices(layer, {0, layer.slices, 0, layer.coordinates()}, row.data(), layer.coordinates(),
                             ones.data(), 0, back.data());
    for (std::size_t i = 0; i < back.size(); ++i)
      EXPECT_EQ(back[i], i % layer.taps < layer.slices * layer.slice_taps ? gradient[i] + 1.0F : -1.0F);
  }
}

TEST(GradiVeq, AutomaticSlicesHave768Elements) {
  const auto taps = [](std::size_t filters, std::size_t all) {
    return gradiveq::slice_taps(parse_codec("gradiveq").params, filters, all);
  };
  EXPECT_EQ(taps(256, 9), 3U);  // the paper's example: K = 768
  EXPECT_EQ(taps(48, 9), 9U);
  EXPECT_EQ(taps(1024, 9), 1U);
  EXPECT_EQ(taps(192, 49), 7U);
  EXPECT_EQ(taps(64, 1), 1U);
}

TEST(GradiVeq, BasisIsThatOfTheCovariance) {
  const std::size_t k = 150;  // neither a block nor a tile
  const std::size_t samples = 12;
  auto rows = noise(samples * k, 3);
  for (std::size_t t = 0; t < samples; ++t) {
    for (std::size_t i = 0; i < k; ++i) rows[t * k + i] *= 1.0F + static_cast<float>(i % 7);
  }
  const gradiveq::BasisFit fit{samples};
  Arena<Space::host> arena{fit.scratch_bytes()};
  std::vector<float> stored(gradiveq::basis_size(k, samples - 1));
  const std::size_t d = fit.fit(rows.data(), k, 0.2, stored.data(), arena.take_bytes(fit.scratch_bytes()));
  ASSERT_GT(d, 3U);
  ASSERT_LT(d, samples - 1);
  const auto at = [&](std::size_t j, std::size_t i) {
    return static_cast<double>(stored[i / gradiveq::kBasisBlock * gradiveq::kBasisBlock * d +
                                      j * gradiveq::kBasisBlock + i % gradiveq::kBasisBlock]);
  };
  std::vector<double> mean(k, 0.0);
  for (std::size_t t = 0; t < samples; ++t) {
    for (std::size_t i = 0; i < k; ++i) mean[i] += static_cast<double>(rows[t * k + i]) / samples;
  }
  std::vector<double> covariance(k * k, 0.0);
  double trace = 0.0;
  for (std::size_t a = 0; a < k; ++a) {
    for (std::size_t b = 0; b < k; ++b) {
      for (std::size_t t = 0; t < samples; ++t)
        covariance[a * k + b] +=
            (static_cast<double>(rows[t * k + a]) - mean[a]) * (static_cast<double>(rows[t * k + b]) - mean[b]);
    }
    trace += covariance[a * k + a];
  }
  double kept = 0.0;
  double last = 0.0;
  for (std::size_t j = 0; j < d; ++j) {
    double value = 0.0;
    std::vector<double> image(k, 0.0);
    for (std::size_t a = 0; a < k; ++a) {
      for (std::size_t b = 0; b < k; ++b) image[a] += covariance[a * k + b] * at(j, b);
      value += image[a] * at(j, a);
    }
    for (std::size_t a = 0; a < k; ++a) EXPECT_NEAR(image[a], value * at(j, a), 1e-5 * trace) << j;
    for (std::size_t other = 0; other <= j; ++other) {
      double product = 0.0;
      for (std::size_t i = 0; i < k; ++i) product += at(j, i) * at(other, i);
      EXPECT_NEAR(product, j == other ? 1.0 : 0.0, 1e-6) << j << " " << other;
    }
    if (j > 0) EXPECT_LT(value, last);
    kept += value;
    last = value;
  }
  EXPECT_GE(kept, 0.8 * trace);         // eq. 6 holds with d components
  EXPECT_LT(kept - last, 0.8 * trace);  // and not with one fewer
}

TEST(GradiVeq, PlantedRankIsFoundAndNothingIsLost) {
  const Layout layout = conv(16, 16, 3, 3);
  for (const std::size_t rank : {1U, 4U, 7U}) {
    const auto out = run_model({.codec = "gradiveq:lt=12,lc=6,sampling=raw,lambda=0",
                                .ranks = 3,
                                .steps = 18,
                                .layout = layout,
                                .gradient = Planted{layout, 768, rank}});
    for (int step = 12; step < 18; ++step) {
      EXPECT_EQ(out.payload[0][static_cast<std::size_t>(step)], 4 * 3 * rank) << "three slices of `rank` components";
      EXPECT_LT(model_nmse(out, step), 1e-10) << step;
    }
  }
}

TEST(GradiVeq, AllComponentsAreExact) {
  const Layout layout = conv(4, 3, 2, 2);  // K = 48 in one slice
  const auto out = run_model(
      {.codec = "gradiveq:lt=60,lc=9,sampling=raw,lambda=0,min_ratio=0",
       .ranks = 2,
       .steps = 63,
       .layout = layout,
       .gradient = [](int rank, int step) { return noise(48, static_cast<std::uint32_t>(100 * step + rank)); }});
  EXPECT_EQ(out.payload[0][60], 4U * 48U);
  EXPECT_LT(model_nmse(out, 61), 1e-11);
  EXPECT_NE(out.results[0][61], out.inputs[0][61]);
}

/// A compressor fitted to noise of one layer, 4 ranks' gradients and their coefficients.
struct Fitted {
  Fitted() {
    std::vector<float> slices(layout.elements);
    for (std::size_t t = 0; t < 20; ++t) {
      const auto x = noise(layout.elements, static_cast<std::uint32_t>(500 + t));
      gradiveq::gather_taps({}, compressor.layers()[0].slice_range(0), x.data(), slices.data());
      compressor.sample({}, slices.data(), t);
    }
    compressor.fit({}, {});
    for (std::uint32_t r = 0; r < 4; ++r) {
      gradients.push_back(noise(layout.elements, 40 + r));
      coefficients.emplace_back(3 * compressor.components(0));
      float* to = coefficients.back().data();
      compressor.project({}, gradients.back().data(), {&to, 1}, scratch, nullptr);
    }
  }
  std::vector<float> decode(std::vector<float> y) const {
    std::vector<float> x(layout.elements);
    float* from = y.data();
    compressor.rebuild({}, {&from, 1}, 1.0F, nullptr, {}, x.data());
    return x;
  }
  Layout layout = conv(16, 16, 3, 3);
  CodecSpec spec = parse_codec("gradiveq:lt=20,lambda=0");
  Compressor compressor{gradiveq::layers_of(layout, spec.params), spec.params, {}};
  Arena<Space::host> arena{compressor.scratch_bytes()};
  HostView<std::byte> scratch = arena.take_bytes(compressor.scratch_bytes());
  std::vector<std::vector<float>> gradients, coefficients;
};

TEST(GradiVeq, DecodingTheSumIsSummingTheDecoded) {
  const Fitted fitted;
  ASSERT_EQ(fitted.compressor.components(0), 19U);
  std::vector<float> mean(fitted.coefficients[0].size(), 0.0F);
  std::vector<double> expected(fitted.layout.elements, 0.0);
  for (const auto& y : fitted.coefficients) {
    for (std::size_t i = 0; i < y.size(); ++i) mean[i] += 0.25F * y[i];
    const auto x = fitted.decode(y);
    for (std::size_t i = 0; i < x.size(); ++i) expected[i] += 0.25 * static_cast<double>(x[i]);
  }
  const auto x = fitted.decode(mean);
  for (std::size_t i = 0; i < x.size(); ++i) ASSERT_NEAR(x[i], expected[i], 2e-6) << i;
}

TEST(GradiVeq, ThePipelinedRingGivesTheSameSum) {
  // Alg. 1: four segments; at step i rank n adds its own part to the partial sum of segment n - i and passes it on.
  const Fitted fitted;
  const std::size_t n = 4;
  std::vector<std::vector<float>> partial(n);
  const auto segment = [&](std::size_t rank, std::size_t index) {
    const auto& y = fitted.coefficients[rank];
    const Segment s = ring_segment(y.size(), static_cast<int>(index), static_cast<int>(n));
    return std::vector<float>(y.begin() + static_cast<std::ptrdiff_t>(s.first),
                              y.begin() + static_cast<std::ptrdiff_t>(s.first + s.count));
  };
  for (std::size_t rank = 0; rank < n; ++rank) partial[rank] = segment(rank, rank);
  for (std::size_t i = 1; i < n; ++i) {
    std::vector<std::vector<float>> received(n);
    for (std::size_t rank = 0; rank < n; ++rank) received[(rank + 1) % n] = partial[rank];
    for (std::size_t rank = 0; rank < n; ++rank) {
      const auto own = segment(rank, (rank + n - i) % n);
      for (std::size_t j = 0; j < own.size(); ++j) received[rank][j] += own[j];
    }
    partial = received;
  }
  for (std::size_t rank = 0; rank < n; ++rank) {  // rank n holds segment n + 1
    std::vector<double> expected(partial[rank].size(), 0.0);
    for (std::size_t other = 0; other < n; ++other) {
      const auto own = segment(other, (rank + 1) % n);
      for (std::size_t j = 0; j < own.size(); ++j) expected[j] += static_cast<double>(own[j]);
    }
    for (std::size_t j = 0; j < expected.size(); ++j) EXPECT_NEAR(partial[rank][j], expected[j], 1e-4);
  }
}

TEST(GradiVeq, LossOfEquationSevenComesFromTheCoefficients) {
  const Fitted fitted;
  std::vector<float> y(fitted.coefficients[0].size());
  float* to = y.data();
  double loss = 0.0;
  fitted.compressor.project({}, fitted.gradients[2].data(), {&to, 1}, fitted.scratch, &loss);
  EXPECT_EQ(y, fitted.coefficients[2]);
  EXPECT_NEAR(loss * loss, nmse(fitted.gradients[2], fitted.decode(y)), 1e-5);
}

TEST(GradiVeq, CyclesSwitchAtTheirBorders) {
  const Layout layout = small_model();
  const std::size_t n = layout.elements;
  const auto out = run_model({.codec = "gradiveq:lt=3,lc=2,warmup=1,sampling=raw", .ranks = 2, .steps = 12});
  // warm-up, then s s s c c: of 12 steps the ones numbered 4, 5, 9 and 10 are compressed.
  for (std::size_t step = 0; step < 12; ++step) {
    const bool compressed = step == 4 || step == 5 || step == 9 || step == 10;
    if (compressed)
      EXPECT_LT(out.payload[0][step], 4 * n) << step;
    else
      EXPECT_EQ(out.payload[0][step], 4 * n + (step == 3 || step == 8 ? 8 : 0)) << step;  // the digest
    if (!compressed) EXPECT_LT(model_nmse(out, static_cast<int>(step)), 1e-12) << step;
  }
  EXPECT_EQ(out.note, "4 of 12 steps compressed");
}

TEST(GradiVeq, ShortRunsSaySo) {
  EXPECT_EQ(run_model({.codec = "gradiveq", .steps = 2}).note, "sampling only: 2 steps of lt=100");
  EXPECT_EQ(run_model({.codec = "gradiveq:warmup=5", .steps = 2}).note, "warm-up only: 2 steps before iteration 5");
  // Units without convolutions say nothing: the tally over all units does.
  EXPECT_EQ(run_model({.codec = "gradiveq", .steps = 2, .layout = Layout::flat(100)}).note, "");
}

TEST(GradiVeq, SamplesTravelByFourBitQsgd) {
  const Layout layout = conv(16, 16, 3, 3);
  const auto out = run_model({.codec = "gradiveq:lt=4", .ranks = 1, .steps = 1, .layout = layout});
  const auto reference =
      run_model({.codec = "qsgd:bits=4", .ranks = 1, .steps = 1, .scheme = Scheme::hop, .layout = layout});
  EXPECT_EQ(out.payload[0][0], reference.payload[0][0]);
  EXPECT_GT(model_nmse(out), 1e-4);
  EXPECT_LT(model_nmse(out), 3.0 * model_nmse(reference));
}

TEST(GradiVeq, LeftoversAndOtherTensorsAreExact) {
  const auto out = run_model({.codec = "gradiveq:lt=3,lc=9,sampling=raw,slice=2,min_ratio=0", .ranks = 2, .steps = 5});
  const Layout layout = small_model();
  std::size_t inexact = 0;
  for (const auto& tensor : layout.tensors) {
    for (std::size_t i = 0; i < tensor.elements; ++i) {
      const std::size_t at = tensor.first + i;
      const float mean = 0.5F * (out.inputs[0][4][at] + out.inputs[1][4][at]);
      const bool exact = tensor.kind != "conv" || (tensor.shape[2] == 3 && i % 9 == 8);
      if (exact) EXPECT_NEAR(out.results[0][4][at], mean, 1e-7F * std::abs(mean)) << tensor.name << " " << i;
      inexact += std::abs(out.results[0][4][at] - mean) > 1e-3F * std::abs(mean) ? 1 : 0;
    }
  }
  EXPECT_GT(inexact, 1000U);
}

TEST(GradiVeq, NotANumberInASampleBypassesTheLayerForTheCycle) {
  const Layout layout = conv(16, 16, 3, 3);
  const Planted planted{layout, 768, 2};
  const auto out = run_model({.codec = "gradiveq:lt=5,lc=2,sampling=raw,lambda=0",
                              .ranks = 2,
                              .steps = 14,
                              .layout = layout,
                              .gradient = [&](int rank, int step) {
                                auto x = planted(rank, step);
                                if (rank == 1 && (step == 1 || step == 12)) x[2000] = NAN;
                                return x;
                              }});
  EXPECT_EQ(out.payload[0][5], 4 * layout.elements);  // sent as it is
  EXPECT_LT(model_nmse(out, 5), 1e-12);
  EXPECT_EQ(out.payload[0][12], 4U * 3U * 2U);
  EXPECT_TRUE(std::any_of(out.results[0][12].begin(), out.results[0][12].end(), [](float x) { return std::isnan(x); }));
  EXPECT_LT(model_nmse(out, 13), 1e-10) << "the compressor must outlive a bad gradient";
}

TEST(GradiVeq, NoVarianceMeansNoCompressor) {
  const auto out =
      run_model({.codec = "gradiveq:lt=3,lc=5,sampling=raw", .ranks = 2, .steps = 5, .gradient = [](int, int) {
                   return model_gradient(small_model().elements, 0, 0);
                 }});
  EXPECT_EQ(out.payload[0][4], 4 * small_model().elements);
  EXPECT_EQ(out.note, "2 of 5 steps compressed, 3 of 3 convolutions bypassed");
}

TEST(GradiVeq, LossVoteEndsACycle) {
  const Layout layout = conv(16, 16, 3, 3);
  const auto random = [&](int rank, int step) {
    return noise(layout.elements, static_cast<std::uint32_t>(100 * step + rank));
  };
  const ModelSetup setup{.codec = "gradiveq:lt=4,lc=100,sampling=raw,vote=on,vote_every=2",
                         .ranks = 3,
                         .steps = 18,
                         .layout = layout,
                         .gradient = random};
  const auto lossy = run_model(setup);
  EXPECT_EQ(lossy.note, "6 of 18 steps compressed, 3 restarts by vote");  // s s s s c c, three times
  EXPECT_EQ(lossy.payload[0][5], lossy.payload[0][4] + 4) << "the vote is one more number";
  auto same = setup;
  same.gradient = Planted{layout, 768, 2};
  EXPECT_EQ(run_model(same).note, "14 of 18 steps compressed");
  auto minority = setup;  // one rank of three does not decide
  minority.gradient = [&, planted = Planted{layout, 768, 2}](int rank, int step) {
    return rank == 0 && step >= 4 ? random(rank, step) : planted(rank, step);
  };
  EXPECT_EQ(run_model(minority).note, "14 of 18 steps compressed");
}

TEST(GradiVeq, AnyNumberOfRanksAgreesWithOne) {
  const Layout layout = conv(16, 16, 3, 3);
  const auto same = [planted = Planted{layout, 768, 3}](int, int step) { return planted(0, step); };
  const auto one = run_model(
      {.codec = "gradiveq:lt=8,lc=2,sampling=raw", .ranks = 1, .steps = 10, .layout = layout, .gradient = same});
  const auto four = run_model(
      {.codec = "gradiveq:lt=8,lc=2,sampling=raw", .ranks = 4, .steps = 10, .layout = layout, .gradient = same});
  EXPECT_EQ(one.payload[0][9], four.payload[0][9]);
  for (std::size_t i = 0; i < layout.elements; ++i) ASSERT_NEAR(one.results[0][9][i], four.results[0][9][i], 1e-4F);
}

TEST(GradiVeq, TakesTinyConvolutions) {
  for (const auto& layout : {conv(2, 1, 1, 1), conv(1, 1, 3, 3), conv(1, 2, 2, 1), conv(1, 1, 1, 1)}) {
    const auto out = run_model({.codec = "gradiveq:lt=3,lc=2,min_ratio=0", .ranks = 5, .steps = 5, .layout = layout});
    for (const auto& rank : out.results) EXPECT_EQ(rank, out.results[0]);
    for (const float value : out.results[0][4]) EXPECT_TRUE(std::isfinite(value));
  }
}

/// Makes rank 1's digest a lie, as if it had fitted other bases.
class Lying final : public ForwardingCommunicator<Space::host> {
 public:
  using ForwardingCommunicator::ForwardingCommunicator;
  void all_gather(Queue<Space::host> queue, ConstBytes mine, Bytes all) override {
    if (rank() == 1) all[8] ^= std::byte{1};
    inner().all_gather(queue, mine, all);
  }
  void broadcast(Queue<Space::host> queue, Bytes view, int root) override {
    if (rank() == 1 && view.size() > 64) std::memset(view.data(), 0xA5, view.size());
    inner().broadcast(queue, view, root);
    ++broadcasts;
  }

  int broadcasts = 0;
};

TEST(GradiVeq, BasesThatDifferAreReplacedByRankZeros) {
  const ModelSetup setup{.codec = "gradiveq:lt=3,lc=4", .ranks = 3, .steps = 5};
  const auto expected = run_model(setup);
  const auto spec = parse_codec(setup.codec);
  std::vector<std::vector<float>> results(3);
  run_threads(3, [&](Communicator<Space::host>& threads) {
    Lying comm{threads};
    const auto me = static_cast<std::size_t>(threads.rank());
    auto reducer = make_reducer<Space::host>(spec, nullptr, Scheme::automatic, setup.layout, 3, {});
    Arena<Space::host> arena{reducer->workspace_bytes()};
    const auto workspace = arena.take_bytes(reducer->workspace_bytes());
    NoClock<Space::host> clock;
    for (int step = 0; step < setup.steps; ++step) {
      results[me] = model_gradient(setup.layout.elements, threads.rank(), step);
      reducer->reduce(
          comm, {}, {results[me].data(), results[me].size()}, {},
          {.key = {.seed = 9, .step = static_cast<std::uint32_t>(step), .rank = static_cast<std::uint32_t>(me)},
           .iteration = step},
          workspace, clock);
    }
    EXPECT_EQ(comm.broadcasts, 5);  // counts, three bases, means
    EXPECT_NE(reducer->note().find("rank 0's bases broadcast 1 times"), std::string::npos) << reducer->note();
  });
  for (const auto& result : results) EXPECT_EQ(result, expected.results[0][4]);
}

TEST(GradiVeq, DoesNotDependOnThreads) {
  for (const std::string spec : {"gradiveq:lt=3,lc=4", "gradiveq:lt=3,lc=4,sampling=raw,vote=on,vote_every=1"}) {
    const auto one = run_model({.codec = spec, .steps = 6});
    const auto three = run_model({.codec = spec, .steps = 6, .threads = 3});
    EXPECT_EQ(one.results, three.results);
  }
}

}  // namespace
}  // namespace gradtool::test
