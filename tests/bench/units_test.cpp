#include "lib/bench/units.hpp"

#include <gtest/gtest.h>

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

TEST(Units, BucketsFillFromTheEndAndHoldAtMostTheirSize) {
  const auto units = make_units(tensors({100, 10, 10, 10, 500}), {0, 1, 2, 3, 4}, Granularity::parse("bucket:100"));
  ASSERT_EQ(units.size(), 4U);  // 500 alone | 10 10 | 10 | 100 alone
  EXPECT_EQ(units[0].pieces[0].tensor, 4U);
  EXPECT_EQ(units[1].elements, 20U);
  EXPECT_EQ(units[1].pieces[0].tensor, 3U);
  EXPECT_EQ(units[2].elements, 10U);
  EXPECT_EQ(units[3].elements, 100U);
}

TEST(Units, RefusesOtherWords) {
  for (const char* bad : {"", "layer", "bucket", "bucket:", "bucket:x", "bucket:0"}) {
    EXPECT_THROW(static_cast<void>(Granularity::parse(bad)), Error) << bad;
  }
}

}  // namespace
}  // namespace gradtool::test
