#include "lib/model/units.hpp"

#include <gtest/gtest.h>

#include <numeric>

#include "lib/bench/synthetic.hpp"
#include "lib/core/error.hpp"

namespace gradtool::test {
namespace {

std::vector<TensorInfo> tensors(const std::vector<std::uint64_t>& sizes) {
  std::vector<TensorInfo> infos;
  for (const auto n : sizes) {
    infos.emplace_back();
    infos.back().elements = n;
  }
  return infos;
}

TEST(Units, OneForEachTensorOrOneForAll) {
  const auto infos = tensors({10, 20, 30});
  EXPECT_EQ(make_units(infos, {0, 2}, Granularity::parse("tensor")).size(), 2U);
  const auto model = make_units(infos, {0, 2}, Granularity::parse("model"));
  ASSERT_EQ(model.size(), 1U);
  EXPECT_EQ(model[0].elements, 40U);
  EXPECT_EQ(model[0].pieces[1].tensor, 2U);
  EXPECT_EQ(model[0].pieces[1].first, 10U);
}

TEST(Units, BucketsFillFromTheEndAndCloseOnceTheyHaveReachedTheirSize) {
  const auto units = make_units(tensors({100, 10, 10, 10, 500}), {0, 1, 2, 3, 4}, Granularity::parse("bucket:100B"));
  ASSERT_EQ(units.size(), 3U);  // 500 | 10 10 10 (25 elements close a bucket) | 100
  EXPECT_EQ(units[0].pieces[0].tensor, 4U);
  EXPECT_EQ(units[1].elements, 30U);
  EXPECT_EQ(units[1].pieces[0].tensor, 3U);
  EXPECT_EQ(units[2].elements, 100U);
}

// The sizes that DDP makes of a ResNet-20 for pictures of one channel; check_buckets.py compares others with PyTorch
// itself.
TEST(Units, TheFirstBucketIsOneMebibyte) {
  std::vector<std::uint64_t> sizes{144, 16, 16};
  for (int i = 0; i < 6; ++i) sizes.insert(sizes.end(), {2304, 16, 16});
  sizes.insert(sizes.end(), {4608, 32, 32});
  for (int i = 0; i < 5; ++i) sizes.insert(sizes.end(), {9216, 32, 32});
  sizes.insert(sizes.end(), {18432, 64, 64});
  for (int i = 0; i < 5; ++i) sizes.insert(sizes.end(), {36864, 64, 64});
  sizes.insert(sizes.end(), {640, 10});
  std::vector<std::size_t> all(sizes.size());
  std::iota(all.begin(), all.end(), std::size_t{0});
  const auto units = make_units(tensors(sizes), all, Granularity{});
  ASSERT_EQ(units.size(), 2U);
  EXPECT_EQ(units[0].elements, 262'250U);
  EXPECT_EQ(units[1].elements, 7'184U);
}

TEST(Units, TypesShareNoBucketAndCountTheirOwnBytes) {
  auto infos = tensors({100, 10, 10, 10, 500});
  for (const std::size_t t : {0U, 2U, 3U}) infos[t].dtype = Dtype::bf16;
  const std::vector<std::size_t> all{0, 1, 2, 3, 4};
  const auto units = make_units(infos, all, Granularity::parse("bucket:100B"), std::nullopt);
  ASSERT_EQ(units.size(), 3U);  // 500 | 10 10 100, which are 40 bytes before the last | 10
  EXPECT_EQ(units[0].dtype, Dtype::f32);
  EXPECT_EQ(units[0].bytes(), 2000U);
  EXPECT_EQ(units[1].dtype, Dtype::bf16);
  EXPECT_EQ(units[1].elements, 120U);
  EXPECT_EQ(units[1].bytes(), 240U);
  EXPECT_EQ(units[2].elements, 10U);
  EXPECT_EQ(make_units(infos, all, Granularity::parse("model"), std::nullopt).front().dtype, Dtype::f32)
      << "the widest";
  EXPECT_EQ(make_units(infos, {0, 2}, Granularity::parse("model"), std::nullopt).front().dtype, Dtype::bf16);
  for (const Unit& unit : make_units(infos, all, Granularity::parse("tensor"), Dtype::f16))
    EXPECT_EQ(unit.dtype, Dtype::f16);
}

TEST(Units, RangesHoldNoMoreThanAskedFor) {
  const auto of = [](const std::vector<std::size_t>& elements, std::size_t most) {
    std::vector<Unit> units;
    for (const std::size_t n : elements) units.push_back({.pieces = {}, .elements = n});
    std::vector<std::size_t> ends;
    std::size_t next = 0;
    double shares = 0.0;
    for (const UnitRange range : make_unit_ranges(units, most)) {
      EXPECT_EQ(range.first, next) << "ranges follow each other";
      next = range.last;
      ends.push_back(range.last);
      shares += range.share_of(units);
    }
    EXPECT_EQ(next, elements.size());
    if (!elements.empty()) {
      EXPECT_NEAR(shares, 1.0, 1e-12);
    }
    return ends;
  };
  using Ends = std::vector<std::size_t>;
  EXPECT_EQ(of({}, 10), Ends{});
  EXPECT_EQ(of({5, 6, 7}, 0), Ends{3});
  EXPECT_EQ(of({5, 5, 7}, 10), (Ends{2, 3}));
  EXPECT_EQ(of({50, 5, 5, 70, 1}, 10), (Ends{1, 3, 4, 5})) << "a larger unit is a range of its own";
  EXPECT_EQ(of({0, 0}, 1), Ends{2});
}

class StepLoaderTest : public testing::Test {
 protected:
  static constexpr std::size_t kElements = (1U << 20) + 5000;  // more than one part of a gradient that is not held

  static void expect_mean(std::span<const double> mean, const GradientSource& source) {
    ASSERT_EQ(mean.size(), kElements);
    std::vector<std::vector<float>> gradients(3, std::vector<float>(kElements));
    for (std::size_t rank = 0; rank < 3; ++rank) source.read_gradient(0, 1, rank, gradients[rank]);
    for (std::size_t i = 0; i < kElements; ++i) {
      double sum = 0.0;
      for (const auto& gradient : gradients) sum += static_cast<double>(gradient[i]);
      ASSERT_EQ(mean[i], sum / 3.0) << i;
    }
  }

  std::vector<std::unique_ptr<GradientSource>> sources_ = SyntheticGradients::make({4 * kElements}, 3);
  Unit unit_ = make_units(sources_[0]->tensors(), {0}, Granularity::parse("model")).front();
  StepLoader loader_{*sources_[0], 3, kElements, {}};
};

TEST_F(StepLoaderTest, MeanIsThatOfAllRanksHoweverManyAreHeld) {
  loader_.load(unit_, 1, StepLoader::kAllRanks, true);
  expect_mean(loader_.mean(), *sources_[0]);
  loader_.load(unit_, 1, 1);
  EXPECT_TRUE(loader_.mean().empty());
  loader_.load(unit_, 1, 1, true);
  expect_mean(loader_.mean(), *sources_[0]);
}

TEST_F(StepLoaderTest, ReadsIntoLentMemory) {
  std::vector<float> memory(kElements);
  loader_.lend(2, memory);
  loader_.load(unit_, 0);
  std::vector<float> expected(kElements);
  sources_[0]->read_gradient(0, 0, 2, expected);
  EXPECT_EQ(memory, expected);
  EXPECT_EQ(loader_.gradient(2).data(), memory.data());
  loader_.lend(2, std::span{memory}.first(kElements - 1));
  EXPECT_THROW(loader_.load(unit_, 0), Error) << "it would write past the end";
}

TEST(Units, RefusesOtherWords) {
  for (const char* bad : {"", "layer", "bucket", "bucket:", "bucket:x", "bucket:0B", "bucket:25"}) {
    EXPECT_THROW(static_cast<void>(Granularity::parse(bad)), Error) << bad;
  }
}

}  // namespace
}  // namespace gradtool::test
