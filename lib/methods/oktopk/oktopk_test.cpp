// Ok-Topk: top k of the sum, even regions, a volume that does not grow with the ranks, and its residual.
#include <gtest/gtest.h>

#include <fmt/format.h>
#include <cmath>
#include <numeric>

#include "tests/reduce/model_run.hpp"

namespace gradtool::test {
namespace {

TEST(OkTopk, KeepsTheLargestSums) {
  // All ranks have the same gradient: selections and sums agree, so the result is its exact top k.
  const std::size_t n = 4000;
  const auto same = [](int, int) { return gradient_like(n, 3); };
  const auto out = run_model({.codec = "oktopk", .ranks = 4, .steps = 1, .layout = Layout::flat(n), .gradient = same});
  const auto x = same(0, 0);
  std::vector<std::size_t> order(n);
  std::iota(order.begin(), order.end(), 0U);
  std::sort(order.begin(), order.end(), [&](auto a, auto b) { return std::abs(x[a]) > std::abs(x[b]); });
  std::size_t kept = 0;
  for (const float y : out.results[0][0]) kept += y != 0.0F ? 1 : 0;
  EXPECT_EQ(kept, 40U);
  for (std::size_t i = 0; i < 40; ++i) EXPECT_EQ(out.results[0][0][order[i]], x[order[i]]);
}

TEST(OkTopk, ResultPlusResidualsIsWhatWasSentAndNotKept) {
  // The elements in the result are the sum over the ranks that sent them, each of which cleared its residual there.
  const auto out = run_model({.codec = "oktopk:ratio=0.05", .ranks = 3, .steps = 1});
  const std::size_t n = out.inputs[0][0].size();
  for (std::size_t i = 0; i < n; ++i) {
    double sent = 0.0;
    for (std::size_t r = 0; r < 3; ++r)
      sent += static_cast<double>(out.inputs[r][0][i]) - static_cast<double>(out.residuals[r][i]);
    ASSERT_NEAR(out.results[0][0][i], sent / 3.0, 1e-8) << i;
  }
}

TEST(OkTopk, NothingIsLostOverSteps) {
  const auto out = run_model({.codec = "oktopk:ratio=0.02,period=3,regions=4", .ranks = 3, .steps = 12});
  EXPECT_LT(largest_loss(out), 1e-6);
}

TEST(OkTopk, FullRatioIsTheSum) {
  for (const std::string index : {"auto", "u32", "bitmap", "elias"}) {  // their parts are as long as they can be
    const auto out = run_model({.codec = "oktopk:ratio=1,index=" + index, .ranks = 3, .steps = 1});
    EXPECT_LT(model_nmse(out), 1e-12) << index;
  }
}

TEST(OkTopk, VolumeStaysNearSixKWhateverTheRanks) {
  // Between recomputations: at most 2k out, 2k in the gather, values and indices; 6k with the bands of the thresholds.
  // Without the residual, whose growth would make the thresholds exact again, which gathers all sums.
  const std::size_t n = 40'000;
  const double k = 400.0;
  for (const int ranks : {2, 4, 8}) {
    const auto out =
        run_model({.codec = "oktopk:index=u32,ef=off", .ranks = ranks, .steps = 2, .layout = Layout::flat(n)});
    const auto per_rank = static_cast<double>(std::accumulate(out.wire.begin(), out.wire.end(), std::uint64_t{0},
                                                              [](auto sum, const auto& w) { return sum + w[1]; })) /
                          ranks;
    EXPECT_LT(per_rank, 6.0 * k * 4.0 * (ranks - 1) / ranks + 64.0 * ranks) << ranks;
    EXPECT_GT(per_rank, 1.0 * k * 4.0 * (ranks - 1) / ranks) << ranks;
  }
}

TEST(OkTopk, CountsStayNearKWhileGradientsGrowAndShrink) {
  // Residuals grow over the first steps by themselves; on top of that the gradient's size changes by a half or a third
  // in each step, and once at a stroke. Only step 0 is a multiple of the period.
  const std::size_t n = 20'000;
  const std::size_t k = 200;
  const auto changing = [](int rank, int step) {
    auto x = model_gradient(n, rank, step);
    const float size = step < 8 ? std::pow(1.5F, static_cast<float>(step)) : std::pow(0.7F, static_cast<float>(step));
    for (auto& value : x) value *= size;
    return x;
  };
  for (const std::string ef : {"on", "off"}) {
    const auto out = run_model(
        {.codec = "oktopk:ef=" + ef, .ranks = 4, .steps = 20, .layout = Layout::flat(n), .gradient = changing});
    for (std::size_t step = 0; step < 20; ++step) {
      std::size_t kept = 0;
      for (const float y : out.results[0][step]) kept += y != 0.0F ? 1 : 0;
      EXPECT_GE(2 * kept, k) << step << ", ef=" << ef;
      EXPECT_LE(2 * kept, 3 * k) << step << ", ef=" << ef;
      for (std::size_t r = 0; r < 4; ++r) {
        std::size_t sent = 0;  // to other ranks, so that the own region's share of the selection is missing
        for (const auto& message : out.messages[r][step]) {
          if (message.call != "exchange" || message.bytes.size() != 16) continue;
          std::uint32_t count = 0;
          std::memcpy(&count, message.bytes.data() + 8, 4);
          sent += count;
        }
        EXPECT_GE(4 * sent, k) << step << ", rank " << r << ", ef=" << ef;
        EXPECT_LE(2 * sent, 3 * k) << step << ", rank " << r << ", ef=" << ef;
      }
    }
  }
}

TEST(OkTopk, RegionsFollowTheGradient) {
  // All of the gradient's weight lies in its first eighth; regions of equal length would leave three ranks idle.
  const std::size_t n = 8000;
  const auto skewed = [](int rank, int step) {
    auto x = model_gradient(n, rank, step);
    for (std::size_t i = n / 8; i < n; ++i) x[i] *= 1e-6F;
    return x;
  };
  const auto out =
      run_model({.codec = "oktopk:ratio=0.05", .ranks = 4, .steps = 1, .layout = Layout::flat(n), .gradient = skewed});
  for (std::size_t r = 0; r < 4; ++r) {
    const auto& kept_part = out.messages[r][0].back();  // the gather of what each owner kept
    EXPECT_EQ(kept_part.call, "all_gather_v");
    std::uint32_t count = 0;
    std::memcpy(&count, kept_part.bytes.data() + 8, 4);
    EXPECT_NEAR(count, 100.0, 45.0) << r;
  }
}

TEST(OkTopk, WarmUpIsDense) {
  const auto out = run_model({.codec = "oktopk:warmup=2", .ranks = 3, .steps = 3});
  EXPECT_LT(model_nmse(out, 0), 1e-12);
  EXPECT_LT(model_nmse(out, 1), 1e-12);
  EXPECT_GT(model_nmse(out, 2), 0.1);
}

}  // namespace
}  // namespace gradtool::test
