#include "lib/io/plain_tensor.hpp"

#include <gtest/gtest.h>

#include <fstream>

#include "lib/io/gradient_file.hpp"
#include "tests/io/sample.hpp"

namespace gradtool::hdf5 {
namespace {

using namespace gradtool::test;

class PlainTensors : public testing::TestWithParam<Dtype> {};
INSTANTIATE_TEST_SUITE_P(Dtypes, PlainTensors, testing::Values(Dtype::f32, Dtype::f16, Dtype::bf16),
                         [](const auto& info) { return std::string{name_of(info.param)}; });

/// The address of a group's object header.
std::uint64_t address_of(hid_t file, const char* path) {
  const Group group{H5Gopen2(file, path, H5P_DEFAULT)};
  std::uint64_t address = 0;
#if !H5_VERSION_GE(1, 12, 0)
  H5O_info_t info;
  if (H5Oget_info(group.get(), &info) >= 0) address = info.addr;
#endif
  return address;
}

void write(const std::string& path, Dtype dtype, std::size_t steps, bool one_step = false) {
  WriterOptions options = sample_options(dtype);
  options.one_step = one_step;
  GradientWriter writer{path, options};
  for (std::size_t s = 0; s < steps; ++s) {
    writer.begin_step(
        {.iteration = static_cast<std::int64_t>(s), .epoch = 0.0, .learning_rate = 0.1, .loss = {1, 2, 3}});
    for (std::size_t t = 0; t < 3; ++t) {
      const std::size_t n = t == 0 ? 1200 : t == 1 ? 1 : 70'001;
      for (std::size_t w = 0; w < kWorkers; ++w) {
        writer.put_gradient(t, w, sample_values(t, s, w, n));
        if (t == 0) writer.put_second_moment(t, w, sample_values(t, s, w, n));
      }
      if (t == 0) writer.put_weight(t, sample_values(t, s, 0, n));
    }
    writer.end_step();
  }
  writer.close();
}

TEST_P(PlainTensors, HaveWhatHdf5Reads) {
  if (H5_VERSION_GE(1, 12, 0)) GTEST_SKIP() << "this HDF5 does not say where a group lies";
  // Chunks of one step each: in the index block alone, in its first data blocks, and beyond what is read here.
  for (const std::size_t steps : {1UL, 4UL, 5UL, 60UL, 90UL}) {
    const TempFile path;
    write(path.path(), GetParam(), steps);
    const File file{H5Fopen(path.path().c_str(), H5F_ACC_RDONLY, H5P_DEFAULT)};
    RawFile raw{file.get()}, texts{file.get()};
    const auto large = read_plain_tensor(raw, texts, address_of(file.get(), "/tensors/0002"));
    // 3 chunks a step, of one worker each; 244 have their addresses within reach of the index block.
    ASSERT_EQ(large.has_value(), 3 * steps <= 244) << steps;
    const auto conv = read_plain_tensor(raw, texts, address_of(file.get(), "/tensors/0000"));
    ASSERT_TRUE(conv && conv->second_moment && conv->weight) << steps;
    EXPECT_EQ(conv->name, "conv");
    EXPECT_EQ(conv->layout, "OIHW");
    EXPECT_EQ(conv->shape, (std::vector<std::int64_t>{16, 3, 5, 5}));
    EXPECT_EQ(conv->gradient.dtype, GetParam());
    EXPECT_EQ(conv->gradient.dims, (std::vector<hsize_t>{steps, kWorkers, 1200}));
    if (!large) continue;
    const Dataset set{H5Dopen2(file.get(), "/tensors/0002/gradient", H5P_DEFAULT)};
    for (std::size_t i = 0; i < large->gradient.addresses.size(); ++i) {
      const std::vector<hsize_t> corner{i / kWorkers, i % kWorkers, 0};
      haddr_t address = 0;
      hsize_t bytes = 0;
      unsigned filters = 0;
      ASSERT_GE(H5Dget_chunk_info_by_coord(set.get(), corner.data(), &filters, &address, &bytes), 0);
      EXPECT_EQ(large->gradient.addresses[i], address) << "chunk " << i;
    }
  }
}

TEST_P(PlainTensors, OfAFileOfOneStepLieWhereHdf5SaysSo) {
  if (H5_VERSION_GE(1, 12, 0)) GTEST_SKIP() << "this HDF5 does not say where a group lies";
  const TempFile path;
  write(path.path(), GetParam(), 1, true);
  const File file{H5Fopen(path.path().c_str(), H5F_ACC_RDONLY, H5P_DEFAULT)};
  RawFile raw{file.get()}, texts{file.get()};
  for (const char* name : {"/tensors/0000", "/tensors/0001", "/tensors/0002"}) {
    const auto tensor = read_plain_tensor(raw, texts, address_of(file.get(), name));
    ASSERT_TRUE(tensor) << name;
    EXPECT_EQ(tensor->gradient.dtype, GetParam());
    EXPECT_EQ(tensor->gradient.chunk, tensor->gradient.dims);
    const Dataset set{H5Dopen2(file.get(), (std::string{name} + "/gradient").c_str(), H5P_DEFAULT)};
    EXPECT_EQ(tensor->gradient.addresses, std::vector<std::uint64_t>{H5Dget_offset(set.get())}) << name;
  }
}

TEST_P(PlainTensors, AreLeftToHdf5WhereAByteIsDamaged) {
  if (H5_VERSION_GE(1, 12, 0)) GTEST_SKIP() << "this HDF5 does not say where a group lies";
  const TempFile path;
  write(path.path(), GetParam(), 2);
  std::uint64_t address = 0;
  {
    const File file{H5Fopen(path.path().c_str(), H5F_ACC_RDONLY, H5P_DEFAULT)};
    address = address_of(file.get(), "/tensors/0000");
  }
  for (std::uint64_t i = 0; i < 100; ++i) {
    const auto flip = [&] {
      std::fstream bytes{path.path(), std::ios::in | std::ios::out | std::ios::binary};
      bytes.seekg(static_cast<std::streamoff>(address + i));
      const int byte = bytes.get();
      bytes.seekp(static_cast<std::streamoff>(address + i));
      bytes.put(static_cast<char>(byte ^ 0x10));
    };
    flip();
    {
      const File file{H5Fopen(path.path().c_str(), H5F_ACC_RDONLY, H5P_DEFAULT)};
      RawFile raw{file.get()}, texts{file.get()};
      EXPECT_FALSE(read_plain_tensor(raw, texts, address)) << "byte " << i;
    }
    flip();
  }
}

}  // namespace
}  // namespace gradtool::hdf5
