#include "lib/train/checkpoint.hpp"

#include <gmock/gmock.h>

#include <fstream>
#include <iterator>

#include "tests/capture/test_data.hpp"

namespace gradtool {
namespace {

CheckpointParts some_parts() {
  CheckpointParts parts(3);
  for (int i = 0; i < 1000; ++i) parts[0].push_back(static_cast<std::byte>(i % 251));
  parts[2] = {std::byte{7}};
  return parts;
}

TEST(Checkpoint, ComesBack) {
  const test::TemporaryFolder folder;
  save_checkpoint(folder.file("a"), {std::vector<std::byte>(5)});
  save_checkpoint(folder.file("a"), some_parts());
  EXPECT_EQ(load_checkpoint(folder.file("a")), some_parts());
}

TEST(Checkpoint, DamageIsSeen) {
  const test::TemporaryFolder folder;
  const std::string path = folder.file("a");
  save_checkpoint(path, some_parts());
  std::ifstream file{path, std::ios::binary};
  const std::string whole{std::istreambuf_iterator<char>{file}, {}};
  const auto expect_refused = [&](const std::string& bytes) {
    std::ofstream{path, std::ios::binary} << bytes;
    EXPECT_THAT(test::sentence_of(Fault::data, [&] { static_cast<void>(load_checkpoint(path)); }),
                testing::HasSubstr(path));
  };
  for (std::size_t place = 0; place < whole.size(); place += 13) {
    std::string flipped = whole;
    flipped[place] = static_cast<char>(flipped[place] ^ 4);
    expect_refused(flipped);
    expect_refused(whole.substr(0, place));
  }
  expect_refused(whole + "x");
  expect_refused("");
}

}  // namespace
}  // namespace gradtool
