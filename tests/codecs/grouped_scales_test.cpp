// Scales by sums whose order is part of a payload, where a tensor has more parts than a group of them.
#include "tests/codecs/grouped_scales.hpp"

#include <gtest/gtest.h>

#include "tests/codecs/codec_run.hpp"
#include "tests/codecs/inputs.hpp"

namespace gradtool::test {
namespace {

TEST(GroupedScales, AddPiecesSixtyFourAtATime) {
  for (const GroupedScale& scale : grouped_scales()) {
    CodecRun run{scale.spec, scale.gradient.size(), 2};
    EXPECT_EQ(shown_scale(run.encode(scale.gradient), scale), scale.expected) << scale.spec;
  }
}

}  // namespace
}  // namespace gradtool::test
