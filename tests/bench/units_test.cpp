#include "lib/bench/units.hpp"

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

TEST(StepLoader, MeansOfPartsAreThoseOfTheWhole) {
  constexpr std::size_t kElements = 5000;
  const auto sources = SyntheticGradients::make({4 * kElements}, 3);
  const auto unit = make_units(sources[0]->tensors(), {0}, Granularity::parse("model")).front();
  StepLoader loader{*sources[0], 3, kElements, {}};
  loader.load(unit, 1);
  std::vector<double> whole(kElements), parts(kElements);
  loader.mean(0, whole);
  loader.mean(0, std::span{parts}.first(7));
  loader.mean(7, std::span{parts}.subspan(7));
  EXPECT_EQ(parts, whole);
  for (std::size_t i = 0; i < kElements; ++i) {
    double sum = 0.0;
    for (int rank = 0; rank < 3; ++rank) sum += static_cast<double>(loader.gradient(rank)[i]);
    ASSERT_EQ(whole[i], sum / 3.0);
  }
}

TEST(Units, RefusesOtherWords) {
  for (const char* bad : {"", "layer", "bucket", "bucket:", "bucket:x", "bucket:0B", "bucket:25"}) {
    EXPECT_THROW(static_cast<void>(Granularity::parse(bad)), Error) << bad;
  }
}

}  // namespace
}  // namespace gradtool::test
