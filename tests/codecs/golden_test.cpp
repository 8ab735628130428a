// Payload bytes are a promise: the hashes in tests/golden/payloads.txt hold for every build, and for CPU and GPU alike.
// A change needs a CHANGELOG line and a new version of docs/payload-format.md.
#include <gtest/gtest.h>

#include <fstream>

#include "tests/codecs/codec_run.hpp"
#include "tests/codecs/golden_lines.hpp"

namespace gradtool::test {
namespace {

TEST(Golden, PayloadsHaveTheirHashes) {
  std::size_t checked = 0;
  for (const auto& line : golden_lines()) {
    const auto x = golden_input(line.input);
    CodecRun run{line.spec, x.size()};
    EXPECT_EQ(hash_of(run.encode(x, kGoldenContext)), line.hash) << line.spec << " " << line.input;
    ++checked;
  }
  EXPECT_GE(checked, 12U);
}

TEST(Golden, EveryCodecIsInTheTable) {
  std::ifstream table{GRADTOOL_GOLDEN_TABLE};
  const std::string text{std::istreambuf_iterator<char>{table}, {}};
  for (const auto* codec : codecs()) {
    // Messages between ranks have tests of their own, and what LAPACK computes differs from processor to processor.
    if (!has_codec(*codec) || codec->determinism != Determinism::cross_backend) continue;
    EXPECT_TRUE(text.find("\n" + std::string{codec->name} + " ") != std::string::npos ||
                text.find("\n" + std::string{codec->name} + ":") != std::string::npos)
        << codec->name;
  }
}

}  // namespace
}  // namespace gradtool::test
