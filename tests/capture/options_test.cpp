#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <functional>

#include "lib/capture/capture.hpp"
#include "tests/capture/test_data.hpp"

namespace gradtool {
namespace {

using testing::HasSubstr;

CaptureOptions good_options() {
  CaptureOptions options;
  options.model = "resnet20";
  options.out = "no-such-file-here.h5";
  return options;
}

TEST(CaptureOptions, DefaultsFillInEachOther) {
  const CaptureOptions plain = check_options(good_options());
  EXPECT_EQ(plain.end_step, 20);
  EXPECT_EQ(plain.steps, 20);
  EXPECT_EQ(plain.learning_rate, 0.1);
  EXPECT_EQ(plain.data_dir, "/usr/share/datasets/fashion-mnist");

  CaptureOptions sparse = good_options();
  sparse.start_step = 100;
  sparse.every = 10;
  EXPECT_EQ(check_options(sparse).end_step, 291) << "20 captured steps: 100, 110, ... 290";
  sparse.steps = 150;
  EXPECT_EQ(check_options(sparse).end_step, 150);
  sparse.end_step = 120;
  EXPECT_EQ(check_options(sparse).steps, 150);
}

TEST(CaptureOptions, PlaceWindowsBehindATwentiethOfTheTraining) {
  CaptureOptions options = good_options();
  options.windows = 3;
  options.steps = 300;
  const CaptureOptions filled = check_options(options);
  EXPECT_EQ(filled.start_step, 15);
  EXPECT_EQ(filled.end_step, 300);
  EXPECT_EQ(schedule_of(filled).count(), 24);
  options.start_step = 0;
  options.end_step = 26;
  EXPECT_EQ(check_options(options).start_step, 0) << "26 iterations hold three windows of 8 with gaps";
  EXPECT_EQ(check_options(options).steps, 300);
}

TEST(CaptureOptions, DependOnTheOptimizer) {
  CaptureOptions options = good_options();
  EXPECT_EQ(check_options(options).momentum, 0.9);
  EXPECT_EQ(check_options(options).weight_decay, 1e-4);
  options.optimizer = "adamw";
  const CaptureOptions adamw = check_options(options);
  EXPECT_EQ(adamw.learning_rate, 1e-3);
  EXPECT_EQ(adamw.weight_decay, 0.01);
  EXPECT_EQ(adamw.betas, (std::vector<double>{0.9, 0.999}));
  EXPECT_FALSE(adamw.momentum.has_value());
  options.optimizer = "adam";
  EXPECT_EQ(check_options(options).weight_decay, 0.0);
}

TEST(CaptureOptions, OfALanguageModelAreItsText) {
  CaptureOptions options = good_options();
  options.model = "lstm";
  options.data_dir = "text.txt";
  const CaptureOptions filled = check_options(options);
  EXPECT_EQ(filled.dataset, "text");
  EXPECT_EQ(filled.sequence_length, 35);
  EXPECT_EQ(check_options(good_options()).dataset, "fashion-mnist");
  EXPECT_FALSE(check_options(good_options()).sequence_length.has_value());
}

struct Refused {
  const char* name;
  std::function<void(CaptureOptions&)> change;
  const char* says;

  friend void PrintTo(const Refused& one, std::ostream* out) { *out << one.name; }
};

class BadCaptureOptions : public testing::TestWithParam<Refused> {};

TEST_P(BadCaptureOptions, AreOneSentence) {
  CaptureOptions options = good_options();
  GetParam().change(options);
  EXPECT_THAT(test::sentence_of(Fault::usage, [&] { (void)check_options(options); }), HasSubstr(GetParam().says));
}

INSTANTIATE_TEST_SUITE_P(
    All, BadCaptureOptions,
    testing::Values(
        Refused{"NoModel", [](auto& o) { o.model = ""; }, "--model is missing"},
        Refused{"Model", [](auto& o) { o.model = "resnet-20"; }, "did you mean 'resnet20'?"},
        Refused{"FarModel", [](auto& o) { o.model = "perceiver"; }, "one of mlp, lenet5, alexnet"},
        Refused{"Dataset", [](auto& o) { o.dataset = "cifar-10"; }, "did you mean 'cifar10'?"},
        Refused{"ImagesForText", [](auto& o) { o.model = "gpt2", o.dataset = "cifar10"; }, "gpt2 takes text"},
        Refused{"TextForImages", [](auto& o) { o.dataset = "text"; }, "resnet20 takes images"},
        Refused{"NoText", [](auto& o) { o.model = "gpt2"; }, "--data-dir is missing"},
        Refused{"LongText", [](auto& o) { o.model = "gpt2", o.data_dir = "x", o.sequence_length = 1025; },
                "--sequence-length 1025 is not between 1 and 1024"},
        Refused{"LengthOfImages", [](auto& o) { o.sequence_length = 8; }, "--sequence-length is for text"},
        Refused{"SizeOfText", [](auto& o) { o.model = "gpt2", o.data_dir = "x", o.image_size = 64; },
                "--image-size is for images"},
        Refused{"ImageSize", [](auto& o) { o.image_size = -1; }, "--image-size"},
        Refused{"Optimizer", [](auto& o) { o.optimizer = "adamx"; }, "did you mean 'adam'?"},
        Refused{"MomentumOfAdam", [](auto& o) { o.optimizer = "adam", o.momentum = 0.9; }, "--momentum is for sgd"},
        Refused{"NesterovOfAdam", [](auto& o) { o.optimizer = "adamw", o.nesterov = true; }, "--nesterov is for sgd"},
        Refused{"NesterovAlone", [](auto& o) { o.nesterov = true, o.momentum = 0.0; }, "--nesterov needs"},
        Refused{"BetasOfSgd",
                [](auto& o) {
                  o.betas = {0.9, 0.99};
                },
                "--betas is for adam and adamw"},
        Refused{"EpsilonOfSgd", [](auto& o) { o.epsilon = 1e-8; }, "--epsilon is for adam and adamw"},
        Refused{"OneBeta", [](auto& o) { o.optimizer = "adam", o.betas = {0.9}; }, "two values, not 1"},
        Refused{"Beta",
                [](auto& o) {
                  o.optimizer = "adam", o.betas = {0.9, 1.0};
                },
                "--betas 1"},
        Refused{"Epsilon", [](auto& o) { o.optimizer = "adam", o.epsilon = 0.0; }, "--epsilon"},
        Refused{"Device", [](auto& o) { o.device = "gpu"; }, "write cpu, cuda or cuda:INDEX"},
        Refused{"DeviceIndex", [](auto& o) { o.device = "cuda:one"; }, "write cpu, cuda or cuda:INDEX"},
        Refused{"Dtype", [](auto& o) { o.dtype = "fp16"; }, "did you mean 'f16'?"},
        Refused{"With", [](auto& o) { o.with = {"weights"}; }, "did you mean 'weight'?"},
        Refused{"SecondMoment", [](auto& o) { o.with = {"second_moment"}; }, "--micro-batches"},
        Refused{"Workers", [](auto& o) { o.workers = 0; }, "--workers"},
        Refused{"BatchSize", [](auto& o) { o.batch_size = -3; }, "--batch-size"},
        Refused{"MicroBatches", [](auto& o) { o.micro_batches = 5; }, "does not divide"},
        Refused{"TooManyMicroBatches", [](auto& o) { o.micro_batches = 64; }, "between 1 and 32"},
        Refused{"OneImageForBatchNorm", [](auto& o) { o.micro_batches = 32; }, "take at most 16"},
        Refused{"StartStep", [](auto& o) { o.start_step = -1; }, "--start-step"},
        Refused{"EndBeforeStart", [](auto& o) { o.start_step = 9, o.end_step = 9; }, "--start-step 9 is not below"},
        Refused{"StartBehindSteps", [](auto& o) { o.start_step = 30, o.steps = 30; }, "no step would be captured"},
        Refused{"StepsBeforeEnd", [](auto& o) { o.steps = 5, o.end_step = 6; }, "ends the training before"},
        Refused{"NoSteps", [](auto& o) { o.steps = 0; }, "--steps"},
        Refused{"Every", [](auto& o) { o.every = 0; }, "--every"},
        Refused{"OneWindow", [](auto& o) { o.windows = 1, o.steps = 300; }, "--windows 1 is not between 2 and 1000"},
        Refused{"WindowOfOneStep", [](auto& o) { o.windows = 3, o.steps = 300, o.window_steps = 1; },
                "--window-steps 1 is not between 2"},
        Refused{"WindowStepsAlone", [](auto& o) { o.window_steps = 8; }, "add --windows"},
        Refused{"WindowsAndEvery", [](auto& o) { o.windows = 3, o.steps = 300, o.every = 2; },
                "--every 2 goes without --windows"},
        Refused{"WindowsOfNoLength", [](auto& o) { o.windows = 3; }, "--windows needs the length"},
        Refused{"WindowsDoNotFit", [](auto& o) { o.windows = 3, o.start_step = 0, o.steps = 25; },
                "need 26 iterations with the gaps between them, and from --start-step 0 to the end at 25 there are 25"},
        Refused{"Threads", [](auto& o) { o.threads = 0; }, "--threads"},
        Refused{"Seed", [](auto& o) { o.seed = -1; }, "--seed"},
        Refused{"LearningRate", [](auto& o) { o.learning_rate = 0.0; }, "--learning-rate"},
        Refused{"NanLearningRate", [](auto& o) { o.learning_rate = std::nan(""); }, "--learning-rate"},
        Refused{"Momentum", [](auto& o) { o.momentum = 1.0; }, "--momentum"},
        Refused{"WeightDecay", [](auto& o) { o.weight_decay = -1e-4; }, "--weight-decay"},
        Refused{"Schedule", [](auto& o) { o.lr_schedule = "linear"; }, "--lr-schedule"},
        Refused{"Layers", [](auto& o) { o.layers = "conv("; }, "not a regular expression"},
        Refused{"NoOut", [](auto& o) { o.out = ""; }, "--out FILE is missing"},
        Refused{"OutIsFolder", [](auto& o) { o.out = "/tmp", o.force = true; }, "is a folder"},
        Refused{"OutExists", [](auto& o) { o.out = "/proc/self/exe"; }, "exists already; --force"},
        Refused{"LogExists", [](auto& o) { o.train_log = "/proc/self/exe"; }, "--train-log '/proc/self/exe' exists"},
        Refused{"LogIsOut", [](auto& o) { o.train_log = "./no-such-file-here.h5"; }, "are the same file"}),
    [](const auto& info) { return info.param.name; });

TEST(Selection, GathersTheTensorsThatMatch) {
  std::vector<TensorInfo> all(3);
  all[0].name = "conv1.weight", all[0].elements = 2;
  all[1].name = "bn1.weight", all[1].elements = 1;
  all[2].name = "conv2.weight", all[2].elements = 3;
  const Selection selection = select_tensors(all, "^conv");
  ASSERT_EQ(selection.tensors.size(), 2U);
  EXPECT_EQ(selection.elements, 5U);
  const std::vector<float> flat{0, 1, 2, 3, 4, 5};
  std::vector<float> out(7, -1);
  EXPECT_EQ(selection.gather(flat, out).size(), 2U);
  EXPECT_EQ(out, (std::vector<float>{0, 1, 3, 4, 5, -1, -1}));
  EXPECT_EQ(select_tensors(all, "").elements, 6U);
  EXPECT_THAT(test::sentence_of(Fault::usage, [&] { (void)select_tensors(all, "fc"); }),
              HasSubstr("called 'conv1.weight' to 'conv2.weight'"));
}

}  // namespace
}  // namespace gradtool
