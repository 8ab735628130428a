#include "lib/capture/dataset.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <functional>

#include "tests/capture/test_data.hpp"

namespace gradtool {
namespace {

using test::sentence_of;
using test::TemporaryFolder;
using test::write_file;
using testing::HasSubstr;
using Bytes = std::vector<std::uint8_t>;

void append_u32(Bytes& bytes, std::uint32_t value) {
  for (int shift = 24; shift >= 0; shift -= 8) bytes.push_back(static_cast<std::uint8_t>(value >> shift));
}

Bytes idx_images(std::uint32_t magic, std::uint32_t count, std::uint32_t side, std::size_t pixels) {
  Bytes bytes;
  for (const auto value : {magic, count, side, side}) append_u32(bytes, value);
  for (std::size_t i = 0; i < pixels; ++i) bytes.push_back(static_cast<std::uint8_t>(i * 7));
  return bytes;
}

Bytes idx_labels(std::uint32_t magic, std::uint32_t count, const Bytes& labels) {
  Bytes bytes;
  append_u32(bytes, magic);
  append_u32(bytes, count);
  bytes.insert(bytes.end(), labels.begin(), labels.end());
  return bytes;
}

const Bytes kGoodImages = idx_images(0x803, 3, 4, 48);
const Bytes kGoodLabels = idx_labels(0x801, 3, {9, 0, 4});
constexpr const char* kImages = "train-images-idx3-ubyte";
constexpr const char* kLabels = "train-labels-idx1-ubyte";

TEST(IdxReader, ReadsPlainAndCompressedFilesAlike) {
  const TemporaryFolder plain;
  write_file(plain.file(kImages), kGoodImages);
  test::write_gzip(plain.file(std::string{kLabels} + ".gz"), kGoodLabels);
  const Dataset dataset = load_training_set("fashion-mnist", plain.path());
  EXPECT_EQ(dataset.channels, 1);
  EXPECT_EQ(dataset.height, 4);
  EXPECT_EQ(dataset.width, 4);
  EXPECT_EQ(dataset.labels, (Bytes{9, 0, 4}));
  EXPECT_EQ(dataset.pixels, Bytes(kGoodImages.begin() + 16, kGoodImages.end()));
}

TEST(IdxReader, MissingFilesNameTheDebianPackage) {
  const TemporaryFolder folder;
  const auto load = [&] { (void)load_training_set("fashion-mnist", folder.path()); };
  EXPECT_THAT(sentence_of(Fault::data, load), HasSubstr("dataset-fashion-mnist"));
  EXPECT_FALSE(load_test_set("fashion-mnist", folder.path()).has_value());
}

struct BadIdx {
  const char* name;
  Bytes images, labels;
  const char* says;

  friend void PrintTo(const BadIdx& one, std::ostream* out) { *out << one.name; }
};

class MalformedIdx : public testing::TestWithParam<BadIdx> {};

TEST_P(MalformedIdx, IsOneSentenceNamingTheFile) {
  const TemporaryFolder folder;
  write_file(folder.file(kImages), GetParam().images);
  write_file(folder.file(kLabels), GetParam().labels);
  const std::string text = sentence_of(Fault::data, [&] { (void)read_idx_pair(folder.path(), "train"); });
  EXPECT_THAT(text, HasSubstr(GetParam().says));
  EXPECT_THAT(text, HasSubstr(folder.path()));
}

Bytes cut(Bytes bytes, std::size_t by) {
  bytes.resize(bytes.size() - by);
  return bytes;
}
Bytes longer(Bytes bytes) {
  bytes.push_back(0);
  return bytes;
}

INSTANTIATE_TEST_SUITE_P(
    All, MalformedIdx,
    testing::Values(BadIdx{"ImagesMagic", idx_images(0x802, 3, 4, 48), kGoodLabels, "magic number"},
                    BadIdx{"LabelsMagic", kGoodImages, idx_labels(0x803, 3, {9, 0, 4}), "magic number"},
                    BadIdx{"ShortHeader", Bytes{0, 0, 8}, kGoodLabels, "truncated"},
                    BadIdx{"Empty", Bytes{}, kGoodLabels, "truncated"},
                    BadIdx{"ShortPixels", cut(kGoodImages, 1), kGoodLabels, "truncated: 47 of the 48"},
                    BadIdx{"ShortLabels", kGoodImages, cut(kGoodLabels, 1), "truncated"},
                    BadIdx{"LongPixels", longer(kGoodImages), kGoodLabels, "longer than its header says"},
                    BadIdx{"LongLabels", kGoodImages, longer(kGoodLabels), "longer than its header says"},
                    BadIdx{"CountMismatch", kGoodImages, idx_labels(0x801, 2, {9, 0}), "2 labels for the 3 images"},
                    BadIdx{"LabelTooLarge", kGoodImages, idx_labels(0x801, 3, {9, 10, 4}), "label 10 at position 1"},
                    BadIdx{"NoImages", idx_images(0x803, 0, 4, 0), idx_labels(0x801, 0, {}), "claims 0 images"},
                    BadIdx{"HugeSide", idx_images(0x803, 1, 0xffffffff, 4), kGoodLabels, "claims 1 images"},
                    // 2^32 images of 16 pixels are claimed, three are there: no more than a chunk may be allocated.
                    BadIdx{"HugeCount", idx_images(0x803, 0xffffffff, 4, 48), idx_labels(0x801, 0xffffffff, {9, 0, 4}),
                           "truncated"}),
    [](const auto& info) { return info.param.name; });

TEST(IdxReader, ReportsACompressedFileThatWasCutShort) {
  const TemporaryFolder folder;
  Bytes noise = idx_images(0x803, 30, 28, 0);
  std::mt19937 generator{5};
  for (int i = 0; i < 30 * 28 * 28; ++i) noise.push_back(static_cast<std::uint8_t>(generator()));
  const std::string images = folder.file(std::string{kImages} + ".gz");
  test::write_gzip(images, noise);
  std::filesystem::resize_file(images, std::filesystem::file_size(images) / 2);
  write_file(folder.file(kLabels), idx_labels(0x801, 30, Bytes(30, 1)));
  EXPECT_THAT(sentence_of(Fault::data, [&] { (void)read_idx_pair(folder.path(), "train"); }), HasSubstr("cut short"));
}

Bytes cifar_records(const Bytes& labels) {
  Bytes bytes;
  for (const auto label : labels) {
    bytes.push_back(label);
    for (std::size_t i = 0; i < 3072; ++i) bytes.push_back(static_cast<std::uint8_t>(label + i));
  }
  return bytes;
}

TEST(Cifar10Reader, ReadsAllBatchesInOrderOfTheirNames) {
  const TemporaryFolder folder;
  write_file(folder.file("data_batch_2.bin"), cifar_records({3}));
  write_file(folder.file("data_batch_1.bin"), cifar_records({1, 2}));
  write_file(folder.file("batches.meta.txt"), {1, 2, 3});
  const Dataset dataset = load_training_set("cifar10", folder.path());
  EXPECT_EQ(dataset.labels, (Bytes{1, 2, 3}));
  EXPECT_EQ(dataset.channels, 3);
  ASSERT_EQ(dataset.pixels.size(), 3U * 3072);
  EXPECT_EQ(dataset.pixels[0], 1);
  EXPECT_EQ(dataset.pixels[3072 + 5], 7);
  EXPECT_FALSE(load_test_set("cifar10", folder.path()).has_value());
  write_file(folder.file("test_batch.bin"), cifar_records({9}));
  EXPECT_EQ(load_test_set("cifar10", folder.path())->labels, Bytes{9});
}

TEST(Cifar10Reader, RefusesWhatIsNotCifar10) {
  const TemporaryFolder folder;
  const auto load = [&] { (void)load_training_set("cifar10", folder.path()); };
  EXPECT_THAT(sentence_of(Fault::data, load), HasSubstr("--data-dir"));
  write_file(folder.file("data_batch_1.bin"), {});
  EXPECT_THAT(sentence_of(Fault::data, load), HasSubstr("no CIFAR-10 record"));
  write_file(folder.file("data_batch_1.bin"), cut(cifar_records({1, 2}), 1));
  EXPECT_THAT(sentence_of(Fault::data, load), HasSubstr("no whole number of CIFAR-10 records"));
  write_file(folder.file("data_batch_1.bin"), cifar_records({1, 10}));
  EXPECT_THAT(sentence_of(Fault::data, load), HasSubstr("label 10 in record 1"));
}

TEST(Cifar100Reader, UsesTheFineLabel) {
  const TemporaryFolder folder;
  const auto record = [](std::uint8_t coarse, std::uint8_t fine) {
    Bytes bytes{coarse};
    const Bytes rest = cifar_records({fine});
    bytes.insert(bytes.end(), rest.begin(), rest.end());
    return bytes;
  };
  Bytes two = record(7, 99);
  const Bytes second = record(8, 3);
  two.insert(two.end(), second.begin(), second.end());
  write_file(folder.file("train.bin"), two);
  const Dataset dataset = load_training_set("cifar100", folder.path());
  EXPECT_EQ(dataset.classes, 100);
  EXPECT_EQ(dataset.labels, (Bytes{99, 3}));
  EXPECT_EQ(dataset.pixels[0], 99) << "the first pixel, as cifar_records makes it";
  EXPECT_EQ(dataset.pixels.size(), 2U * 3072);
  EXPECT_FALSE(load_test_set("cifar100", folder.path()).has_value());
  write_file(folder.file("test.bin"), record(1, 5));
  EXPECT_EQ(load_test_set("cifar100", folder.path())->labels, Bytes{5});

  const auto load = [&] { (void)load_training_set("cifar100", folder.path()); };
  write_file(folder.file("train.bin"), record(1, 100));
  EXPECT_THAT(sentence_of(Fault::data, load), HasSubstr("label 100 in record 0; labels are 0 to 99"));
  write_file(folder.file("train.bin"), cifar_records({1, 2}));
  EXPECT_THAT(sentence_of(Fault::data, load), HasSubstr("no whole number of CIFAR-100 records of 3074 bytes"));
  std::filesystem::remove(folder.file("train.bin"));
  EXPECT_THAT(sentence_of(Fault::data, load), HasSubstr("cifar-100-binary.tar.gz"));
}

Bytes counting(std::size_t count) {
  Bytes bytes(count);
  for (std::size_t i = 0; i < count; ++i) bytes[i] = static_cast<std::uint8_t>(i);
  return bytes;
}

TEST(Text, TrainsOnNineTenthsAndTestsOnTheRest) {
  const TemporaryFolder folder;
  const std::string file = folder.file("text");
  write_file(file, counting(200));
  const Dataset training = load_training_set("text", file, 9);
  EXPECT_EQ(training.tokens, counting(180));
  EXPECT_EQ(training.classes, 256);
  EXPECT_EQ(training.size(), 19U) << "19 x 9 tokens and the one behind them; 8 are left over";
  const auto test = load_test_set("text", file, 9);
  ASSERT_TRUE(test.has_value());
  EXPECT_EQ(test->tokens.front(), 180);
  EXPECT_EQ(test->tokens.back(), 199);
  EXPECT_EQ(test->size(), 2U);
  EXPECT_FALSE(load_test_set("text", file, 20).has_value()) << "20 tokens, and none behind them";
}

TEST(Text, OfAFolderIsThatOfItsFilesInOrder) {
  const TemporaryFolder folder;
  write_file(folder.file("b"), {3, 4});
  test::write_gzip(folder.file("a.gz"), {1, 2});
  write_file(folder.file(".hidden"), {9});
  std::filesystem::create_directory(folder.file("c"));
  EXPECT_EQ(read_text(folder.path()), (Bytes{1, 2, 3, 4}));
  EXPECT_EQ(dataset_files("text", folder.path()), (std::vector<std::string>{folder.file("a.gz"), folder.file("b")}));
}

TEST(Text, RefusesWhatIsNone) {
  const TemporaryFolder folder;
  const auto load = [](const std::string& path) {
    return sentence_of(Fault::data, [&] { (void)load_training_set("text", path, 10); });
  };
  EXPECT_THAT(load(folder.path()), HasSubstr("holds no text"));
  EXPECT_THAT(load(folder.file("absent")), HasSubstr("does not exist"));
  EXPECT_THAT(load("/dev/null"), HasSubstr("is no file"));
  write_file(folder.file("short"), counting(11));
  EXPECT_THAT(load(folder.path()), HasSubstr("11 bytes, too few for a sequence of 10 tokens"));
  write_file(folder.file("short"), counting(12));
  EXPECT_EQ(load_training_set("text", folder.path(), 10).size(), 1U);
  std::filesystem::resize_file(folder.file("short"), std::uintmax_t{4} << 30);  // a hole, which takes no room
  EXPECT_THAT(load(folder.path()), HasSubstr("short' has 4 GiB or more"));
}

TEST(Datasets, SayWhetherTheyAreThere) {
  const TemporaryFolder folder;
  for (const auto& set : datasets()) {
    const std::string name{set.name};
    EXPECT_EQ(&find_dataset(name), &set);
    EXPECT_EQ(has_training_set(name, folder.path()), set.is_text) << name;
    EXPECT_EQ(default_data_dir(name).empty(), set.is_text) << name;
  }
  write_file(folder.file("train.bin"), {1});
  EXPECT_TRUE(has_training_set("cifar100", folder.path()));
}

TEST(ChannelStatistics, AreTheMeanAndDeviationOfEachChannel) {
  Dataset dataset;
  dataset.channels = 2;
  dataset.height = 1;
  dataset.width = 2;
  dataset.classes = 10;
  dataset.pixels = {0, 255, 10, 10, 255, 0, 10, 10};
  dataset.labels = {0, 1};
  const ChannelStatistics statistics = channel_statistics(dataset);
  EXPECT_DOUBLE_EQ(statistics.mean[0], 0.5);
  EXPECT_DOUBLE_EQ(statistics.deviation[0], 0.5);
  EXPECT_DOUBLE_EQ(statistics.mean[1], 10.0 / 255.0);
  EXPECT_DOUBLE_EQ(statistics.deviation[1], 1.0 / 255.0) << "a constant channel must not be divided by 0";
}

}  // namespace
}  // namespace gradtool
