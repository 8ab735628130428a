// Payload bytes are a promise: the hashes in tests/golden/payloads.txt hold for every build, and for CPU and GPU alike.
// A change needs a CHANGELOG line and a new version of docs/payload-format.md.
#include <gtest/gtest.h>

#include <fstream>
#include <numbers>
#include <sstream>

#include "lib/core/sha256.hpp"
#include "tests/codecs/codec_run.hpp"
#include "tests/codecs/golden_inputs.hpp"

namespace gradtool::test {
namespace {

std::string hash_of(const std::vector<std::byte>& payload) {
  Sha256 hash;
  hash.update(payload);
  return hash.hex();
}

TEST(Golden, PayloadsHaveTheirHashes) {
  std::ifstream table{GRADTOOL_GOLDEN_TABLE};
  ASSERT_TRUE(table) << "no table at " << GRADTOOL_GOLDEN_TABLE;
  std::size_t checked = 0;
  for (std::string line; std::getline(table, line);) {
    if (line.empty() || line[0] == '#') continue;
    std::istringstream words{line};
    std::string spec, input, hash;
    words >> spec >> input >> hash;
    const auto codec = spec.substr(0, spec.find(':'));
    const auto& all = codecs();
    if (std::none_of(all.begin(), all.end(), [&](const auto* c) { return c->name == codec; })) continue;
    const auto x = golden_input(input);
    CodecRun run{spec, x.size()};
    EXPECT_EQ(hash_of(run.encode(x, kGoldenContext)), hash) << spec << " " << input;
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
