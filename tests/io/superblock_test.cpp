#include "lib/io/superblock.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <fstream>

#include "tests/io/sample.hpp"

namespace gradtool::hdf5 {
namespace {

std::uint32_t checksum(const char* text) {
  return metadata_checksum(std::as_bytes(std::span{text, std::strlen(text)}));
}

TEST(MetadataChecksum, MatchesThePublishedValuesOfLookup3) {
  // From the comments and the driver of the author's own lookup3.c.
  EXPECT_EQ(checksum(""), 0xdeadbeefU);
  EXPECT_EQ(checksum("Four score and seven years ago"), 0x17770551U);
}

TEST(Superblock, ReadsWhatHdf5WroteAndChangesOnlyWhatItSays) {
  test::TempFile file;
  test::write_sample(file.path(), Dtype::f32);
  std::array<char, Superblock::kBytes> start{};
  std::ifstream{file.path(), std::ios::binary}.read(start.data(), start.size());
  const auto original = std::as_bytes(std::span{start});

  Superblock block;
  ASSERT_TRUE(block.assign(original));
  EXPECT_EQ(block.end_of_file(), std::filesystem::file_size(file.path()));
  // HDF5 wrote the checksum; renewing it for the same content must give the same one.
  block.clear_flags();
  EXPECT_TRUE(std::equal(original.begin(), original.end(), block.bytes().begin()));

  block.set_end_of_file(0x1122334455667788);
  EXPECT_EQ(block.end_of_file(), 0x1122334455667788U);
  for (std::size_t i = 0; i < Superblock::kBytes; ++i) {
    if (i < 28 || (i >= 36 && i < 44)) EXPECT_EQ(block.bytes()[i], original[i]) << i;
  }
}

TEST(Superblock, RefusesOtherVersionsAndSizes) {
  std::array<std::byte, Superblock::kBytes> bytes{};
  Superblock block;
  EXPECT_FALSE(block.assign(bytes));
  EXPECT_FALSE(block.assign(std::span{bytes}.first(20)));
  EXPECT_EQ(block.end_of_file(), 0U);
}

}  // namespace
}  // namespace gradtool::hdf5
