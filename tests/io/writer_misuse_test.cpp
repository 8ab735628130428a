#include <gtest/gtest.h>

#include <fstream>

#include "lib/core/error.hpp"
#include "tests/io/sample.hpp"

namespace gradtool {
namespace {

using namespace test;

template <class Call>
void expect_fault(Fault fault, Call call) {
  try {
    call();
    ADD_FAILURE() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(static_cast<int>(error.fault()), static_cast<int>(fault)) << error.what();
    EXPECT_EQ(std::string{error.what()}.find('\n'), std::string::npos);
  }
}

void expect_refused(const std::function<void(WriterOptions&)>& change) {
  TempFile file;
  WriterOptions options = sample_options(Dtype::f32);
  change(options);
  expect_fault(Fault::internal, [&] { GradientWriter{file.path(), options}; });
}

TEST(GradientWriter, RefusesWhatWouldNotConform) {
  expect_refused([](WriterOptions& o) { o.info.workers = 0; });
  expect_refused([](WriterOptions& o) { o.tensors.clear(); });
  expect_refused([](WriterOptions& o) { o.tensors[1].name = "conv"; });
  expect_refused([](WriterOptions& o) { o.tensors[1].name = ""; });
  expect_refused([](WriterOptions& o) { o.tensors[1].name = "a\nb"; });
  expect_refused([](WriterOptions& o) { o.tensors[1].kind = "convolution"; });
  expect_refused([](WriterOptions& o) { o.tensors[1].shape = {3, 0}; });
  expect_refused([](WriterOptions& o) { o.tensors[1].shape = {1LL << 40, 1LL << 40}; });
  expect_refused([](WriterOptions& o) { o.tensors[1].shape.assign(33, 1); });
}

TEST(GradientWriter, LeavesAnExistingFileAlone) {
  TempFile file;
  std::ofstream{file.path()} << "precious";
  expect_fault(Fault::usage, [&] { GradientWriter{file.path(), sample_options(Dtype::f32)}; });
  EXPECT_EQ(std::filesystem::file_size(file.path()), 8U);
}

TEST(GradientWriter, SaysWhenTheFileCannotBeMade) {
  expect_fault(Fault::backend, [] { GradientWriter{"/nonexistent/folder/x.h5", sample_options(Dtype::f32)}; });
}

TEST(GradientWriter, LeavesNoFileWithoutAStep) {
  TempFile file;
  { const GradientWriter writer{file.path(), sample_options(Dtype::f32)}; }
  EXPECT_FALSE(std::filesystem::exists(file.path()));
  {
    GradientWriter writer{file.path(), sample_options(Dtype::f32)};
    std::filesystem::remove(file.path());
    std::ofstream{file.path()} << "somebody else's";
  }
  EXPECT_TRUE(std::filesystem::exists(file.path()));
}

TEST(GradientWriter, IsNotReplacedWhileItWrites) {
  TempFile file;
  {
    GradientWriter writer{file.path(), sample_options(Dtype::f32)};
    expect_fault(Fault::usage, [&] { expect_replaceable(file.path()); });
    write_sample_step(writer, 0);
    EXPECT_EQ(GradientReader{file.path()}.steps().size(), 1U) << "others may read meanwhile";
  }
  expect_replaceable(file.path());
  EXPECT_TRUE(std::filesystem::exists(file.path()));
  expect_fault(Fault::usage, [] { expect_replaceable("/dev/null"); });
}

/// A file that is to be replaced stays until the new one has a step, and the new one grows under its name from then on.
TEST(GradientWriter, ReplacesAFileWithItsFirstStep) {
  TempFile file;
  std::ofstream{file.path()} << "the old one";
  const auto holds_old = [&] { return std::filesystem::file_size(file.path()) == 11; };
  {
    ReplacingFile place{file.path(), true};
    place.write([](const std::string& path) { const GradientWriter writer{path, sample_options(Dtype::f32)}; });
  }
  EXPECT_TRUE(holds_old()) << "nothing was captured";
  ReplacingFile place{file.path(), true};
  place.write([&](const std::string& path) {
    GradientWriter writer{path, sample_options(Dtype::f32)};
    EXPECT_TRUE(holds_old());
    write_sample_step(writer, 0);
    place.commit();
    EXPECT_EQ(GradientReader{file.path()}.steps().size(), 1U);
    expect_fault(Fault::usage, [&] { expect_replaceable(file.path()); });
    write_sample_step(writer, 1);
    writer.close();
  });
  EXPECT_EQ(GradientReader{file.path()}.steps().size(), 2U);
  EXPECT_FALSE(place.replaces());
}

TEST(GradientWriter, HoldsCallersToTheOrderOfCalls) {
  TempFile file;
  GradientWriter writer{file.path(), sample_options(Dtype::f32)};
  const std::vector<float> x(kElements[0]);
  const std::vector<float> short_x(kElements[0] - 1);
  expect_fault(Fault::internal, [&] { writer.put_gradient(0, 0, x); });
  expect_fault(Fault::internal, [&] { writer.end_step(); });
  expect_fault(Fault::internal, [&] { writer.begin_step({.loss = {1.0F}}); });
  expect_fault(Fault::internal, [&] { writer.begin_step({.compute_seconds = {1.0}}); });
  writer.begin_step({});
  expect_fault(Fault::internal, [&] { writer.begin_step({}); });
  expect_fault(Fault::internal, [&] { writer.close(); });
  expect_fault(Fault::internal, [&] { writer.put_gradient(3, 0, x); });
  expect_fault(Fault::internal, [&] { writer.put_gradient(0, kWorkers, x); });
  expect_fault(Fault::internal, [&] { writer.put_gradient(0, 0, short_x); });
  expect_fault(Fault::internal, [&] { writer.put_second_moment(1, 0, std::vector<float>(1)); });
  expect_fault(Fault::internal, [&] { writer.put_weight(1, std::vector<float>(1)); });
  writer.put_gradient(0, 0, x);
  expect_fault(Fault::internal, [&] { writer.put_gradient(0, 0, x); });
  expect_fault(Fault::internal, [&] { writer.end_step(); });  // most of it was never put
  EXPECT_EQ(writer.steps(), 0U);
}

TEST(GradientWriter, NothingFollowsClose) {
  TempFile file;
  GradientWriter writer{file.path(), sample_options(Dtype::f32)};
  write_sample_step(writer, 0);
  writer.close();
  expect_fault(Fault::internal, [&] { writer.begin_step({}); });
  expect_fault(Fault::internal, [&] { writer.close(); });
  EXPECT_EQ(GradientReader{file.path()}.steps().size(), 1U);
}

TEST(GradientReader, HoldsCallersToTheRanges) {
  TempFile file;
  write_sample(file.path(), Dtype::f32);
  const GradientReader reader{file.path()};
  std::vector<float> x(kElements[0]), scalar(1);
  expect_fault(Fault::internal, [&] { reader.read_gradient(3, 0, 0, x); });
  expect_fault(Fault::internal, [&] { reader.read_gradient(0, kSteps, 0, x); });
  expect_fault(Fault::internal, [&] { reader.read_gradient(0, 0, kWorkers, x); });
  expect_fault(Fault::internal, [&] { reader.read_gradient(0, 0, 0, scalar); });
  expect_fault(Fault::internal, [&] { reader.read_gradient_part(0, 0, 0, 1, x); });
  expect_fault(Fault::internal, [&] { reader.read_gradient_part(0, 0, 0, UINT64_MAX, scalar); });
  expect_fault(Fault::internal, [&] { reader.read_second_moment(1, 0, 0, scalar); });
  expect_fault(Fault::internal, [&] { reader.read_weight(1, 0, scalar); });
}

}  // namespace
}  // namespace gradtool
