#include "lib/capture/recorder.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <future>

#include "tests/capture/test_data.hpp"

namespace gradtool {
namespace {

WriterOptions two_tensors() {
  WriterOptions options;
  options.info.workers = 2;
  options.tensors.resize(2);
  options.tensors[0].name = "a";
  options.tensors[0].shape = {3};
  options.tensors[0].elements = 3;
  options.tensors[0].has_weight = options.tensors[0].has_second_moment = true;
  options.tensors[1].name = "b";
  options.tensors[1].shape = {2};
  options.tensors[1].elements = 2;
  return options;
}

void fill(RecordedStep& step, int number) {
  step.info.iteration = number;
  step.info.epoch = 0.5;
  step.info.learning_rate = 0.1;
  step.info.loss = {1.0F, 2.0F};
  float value = 100.0F * number;
  for (auto* values : {&step.gradients, &step.second_moments, &step.weights}) {
    for (float* out = values->data(); out != values->data() + values->size(); ++out) *out = value++;
    value = 100.0F * number;
  }
}

TEST(Recorder, WritesEveryValueWhereItBelongs) {
  const test::TemporaryFolder folder;
  const std::string path = folder.file("out.h5");
  std::vector<std::int64_t> written;
  {
    Recorder recorder{path, two_tensors(), [&](const StepInfo& step) { written.push_back(step.iteration); }};
    for (int number = 0; number < 7; ++number) {
      RecordedStep& step = recorder.next();
      ASSERT_EQ(step.gradients.size(), 10U);
      ASSERT_EQ(step.second_moments.size(), 6U);
      ASSERT_EQ(step.weights.size(), 3U);
      fill(step, number);
      recorder.submit();
    }
    recorder.finish(true);
    EXPECT_EQ(recorder.bytes(), 7 * (10 + 6 + 3) * sizeof(float));
  }
  EXPECT_EQ(written, (std::vector<std::int64_t>{0, 1, 2, 3, 4, 5, 6}));
  const GradientReader reader{path};
  EXPECT_TRUE(reader.info().complete);
  ASSERT_EQ(reader.steps().size(), 7U);
  std::vector<float> a(3), b(2);
  reader.read_gradient(0, 6, 1, a);  // worker 1 lies behind both tensors of worker 0
  EXPECT_EQ(a, (std::vector<float>{605, 606, 607}));
  reader.read_gradient(1, 6, 1, b);
  EXPECT_EQ(b, (std::vector<float>{608, 609}));
  reader.read_gradient(1, 2, 0, b);
  EXPECT_EQ(b, (std::vector<float>{203, 204}));
  reader.read_second_moment(0, 3, 1, a);
  EXPECT_EQ(a, (std::vector<float>{303, 304, 305}));
  reader.read_weight(0, 4, a);
  EXPECT_EQ(a, (std::vector<float>{400, 401, 402}));
}

TEST(Recorder, LeavesAReadableIncompleteFileWithoutFinish) {
  const test::TemporaryFolder folder;
  {
    Recorder recorder{folder.file("out.h5"), two_tensors()};
    fill(recorder.next(), 1);
    recorder.submit();
  }
  const GradientReader reader{folder.file("out.h5")};
  EXPECT_EQ(reader.steps().size(), 1U);
  EXPECT_FALSE(reader.info().complete);
}

TEST(Recorder, HoldsTwoStepsAndThenWaits) {
  const test::TemporaryFolder folder;
  std::promise<void> may_write;
  const auto gate = may_write.get_future().share();
  Recorder recorder{folder.file("out.h5"), two_tensors(), [gate](const StepInfo&) { gate.wait(); }};
  for (int number = 0; number < 2; ++number) {
    fill(recorder.next(), number);
    recorder.submit();
  }
  auto third = std::async(std::launch::async, [&] { fill(recorder.next(), 2), recorder.submit(); });
  EXPECT_EQ(third.wait_for(std::chrono::milliseconds{100}), std::future_status::timeout);
  may_write.set_value();
  third.get();
  recorder.finish(true);
}

TEST(Recorder, PassesOnWhatTheWriterMeets) {
  const test::TemporaryFolder folder;
  Recorder recorder{folder.file("out.h5"), two_tensors(), [](const StepInfo&) {
                      throw Error{Fault::backend, "the disk is full"};
                    }};
  fill(recorder.next(), 0);
  recorder.submit();
  const auto until_it_throws = [&] {
    for (int number = 1; number < 10; ++number) {
      fill(recorder.next(), number);
      recorder.submit();
    }
    recorder.finish(true);
  };
  EXPECT_EQ(test::sentence_of(Fault::backend, until_it_throws), "the disk is full");
}

TEST(Recorder, SaysAtOnceWhenTheFileCannotBeMade) {
  const test::TemporaryFolder folder;
  test::sentence_of(Fault::backend, [&] { Recorder{folder.file("missing/out.h5"), two_tensors()}; });
}

}  // namespace
}  // namespace gradtool
