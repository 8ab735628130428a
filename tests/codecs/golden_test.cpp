// Payload bytes are a promise: the hashes in lib/methods/<name>/golden.txt hold for every build, and for CPU and GPU
// alike. A change needs a CHANGELOG line and a new version of docs/payload-format.md.
#include <gtest/gtest.h>

#include <filesystem>

#include "tests/codecs/codec_run.hpp"
#include "tests/codecs/golden_lines.hpp"

namespace gradtool::test {
namespace {

// One test for each table in the tree, so that a method that this build lacks is skipped by name.
class Golden : public testing::TestWithParam<std::string> {};

TEST_P(Golden, PayloadsHaveTheirHashes) {
  const auto lines = golden_lines(GetParam());
  ASSERT_FALSE(lines.empty());
  bool present = false;
  for (const auto* codec : codecs()) present |= codec->name == GetParam();
  if (!present) GTEST_SKIP() << GetParam() << " is left out of this build: " << lines.size() << " hashes not checked";
  for (const auto& line : lines) {
    const auto x = golden_input(line.input);
    CodecRun run{line.spec, x.size()};
    EXPECT_EQ(run.spec().name(), GetParam()) << line.spec;
    EXPECT_EQ(hash_of(run.encode(x, kGoldenContext)), line.hash) << line.spec << " " << line.input;
  }
}

std::vector<std::string> methods_with_tables() {
  std::vector<std::string> names;
  for (const auto& folder : std::filesystem::directory_iterator{method_folder()}) {
    if (std::filesystem::exists(folder.path() / "golden.txt")) names.push_back(folder.path().filename());
  }
  std::sort(names.begin(), names.end());
  return names;
}
INSTANTIATE_TEST_SUITE_P(Method, Golden, testing::ValuesIn(methods_with_tables()),
                         [](const auto& info) { return info.param; });

TEST(GoldenTables, EveryMethodThatPromisesBytesHasOne) {
  for (const auto* codec : codecs()) {
    // Messages between ranks have tests of their own, and what LAPACK computes differs from processor to processor.
    if (!has_codec(*codec) || codec->determinism != Determinism::cross_backend) continue;
    EXPECT_FALSE(golden_lines(codec->name).empty()) << codec->name;
  }
}

}  // namespace
}  // namespace gradtool::test
