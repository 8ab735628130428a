// No reducer allocates in the timed region. A program of its own, because counting replaces operator new.
#include <gtest/gtest.h>

#include "tests/codecs/codec_run.hpp"
#include "tests/reduce/model_run.hpp"

namespace gradtool::test {
namespace {

TEST(ReducerAllocations, NoneInTheTimedRegion) {
  ASSERT_TRUE(AllocationWatch::active());
  auto specs = own_specs();
  for (const auto* codec : codecs()) {
    if (codec->aggregation != Aggregation::own) specs.emplace_back(codec->name);
  }
  for (const auto& spec : specs) {
    const auto out = run_model({.codec = spec, .ranks = 2, .steps = 6});
    EXPECT_EQ(out.allocations, 0U) << spec;
  }
}

}  // namespace
}  // namespace gradtool::test
