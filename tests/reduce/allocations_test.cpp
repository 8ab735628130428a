// No reducer allocates in the timed region. A program of its own, because counting replaces operator new.
#include <gtest/gtest.h>

#include "tests/codecs/codec_run.hpp"
#include "tests/reduce/model_run.hpp"

namespace gradtool::test {
namespace {

TEST(ReducerAllocations, NoneInTheTimedRegion) {
  ASSERT_TRUE(AllocationWatch::active());
  for (const auto* codec : codecs()) {
    const auto out = run_model({.codec = std::string{codec->name}, .ranks = 2, .steps = 4});
    EXPECT_EQ(out.allocations, 0U) << codec->name;
  }
}

}  // namespace
}  // namespace gradtool::test
