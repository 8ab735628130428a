// Training with nothing compressed, against LibTorch alone.
#include <gtest/gtest.h>
#include <torch/autograd.h>
#include <torch/nn.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <cmath>
#include <tuple>
#include <utility>

#include "lib/capture/sampler.hpp"
#include "lib/comm/launch.hpp"
#include "lib/train/run.hpp"
#include "tests/capture/trainer_fixture.hpp"

namespace gradtool {
namespace {

constexpr std::int64_t kTrainSteps = 25;

class TrainAlone : public test::TrainerTest {
 protected:
  static TrainOptions train_options(std::int64_t workers) {
    TrainOptions options;
    options.training.model = "lenet5";
    options.training.workers = workers;
    options.training.batch_size = 16;
    options.training.learning_rate = 0.05;
    options.training.momentum = 0.9;
    options.training.weight_decay = 1e-4;
    options.training.lr_schedule = "step:10:0.5";
    options.training.threads = 1;
    options.codecs = {parse_codec("none")};
    return options;
  }

  /// The weights at the end, and the run.
  static std::vector<float> train(const TrainOptions& options, const Dataset& images, const std::string& checkpoint,
                                  TrainRun& run) {
    const RunPlan plan{.options = options,
                       .training_set = images,
                       .test_set = nullptr,
                       .seed = 3,
                       .steps = kTrainSteps,
                       .checkpoint = checkpoint};
    const auto workers = static_cast<std::size_t>(options.training.workers);
    SharedTrainer shared;
    std::vector<TrainRun> runs(workers);
    std::vector<std::uint64_t> elements(workers);
    run_threads(static_cast<int>(workers), [&](Communicator<Space::host>& comm) {
      const auto rank = static_cast<std::size_t>(comm.rank());
      train_rank(plan, comm, shared, runs[rank], elements[rank]);
    });
    run = runs[0];
    return copy(shared.trainer->weights());
  }
};

/// LeNet-5 as a user of LibTorch writes it.
struct Net : torch::nn::Module {
  Net() {
    conv1 = register_module("conv1", torch::nn::Conv2d(torch::nn::Conv2dOptions(1, 6, 5).padding(2)));
    conv2 = register_module("conv2", torch::nn::Conv2d(6, 16, 5));
    fc1 = register_module("fc1", torch::nn::Linear(400, 120));
    fc2 = register_module("fc2", torch::nn::Linear(120, 84));
    fc3 = register_module("fc3", torch::nn::Linear(84, 10));
  }
  torch::Tensor forward(torch::Tensor x) {
    x = torch::max_pool2d(torch::relu(conv1(x)), 2);
    x = torch::max_pool2d(torch::relu(conv2(x)), 2);
    x = torch::relu(fc1(x.flatten(1)));
    return fc3(torch::relu(fc2(x)));
  }
  torch::nn::Conv2d conv1{nullptr}, conv2{nullptr};
  torch::nn::Linear fc1{nullptr}, fc2{nullptr}, fc3{nullptr};
};

/// The images at these positions, normalised, and their labels.
std::pair<torch::Tensor, torch::Tensor> batch_of(const Dataset& images, std::span<const std::uint32_t> samples) {
  const ChannelStatistics statistics = channel_statistics(images);
  const auto count = static_cast<std::int64_t>(samples.size());
  torch::Tensor x = torch::empty({count, 1, 28, 28});
  torch::Tensor y = torch::empty({count}, torch::kInt64);
  for (std::size_t i = 0; i < samples.size(); ++i) {
    for (std::size_t pixel = 0; pixel < 784; ++pixel) {
      const double value = images.pixels[samples[i] * 784 + pixel] / 255.0;
      x.data_ptr<float>()[784 * i + pixel] = static_cast<float>((value - statistics.mean[0]) / statistics.deviation[0]);
    }
    y.data_ptr<std::int64_t>()[i] = images.labels[samples[i]];
  }
  return {x, y};
}

torch::Tensor flat_weights(const Net& net) {
  std::vector<torch::Tensor> pieces;
  for (const auto& parameter : net.parameters()) pieces.push_back(parameter.detach().reshape({-1}));
  return torch::cat(pieces);
}

class EveryOptimizer : public TrainAlone, public testing::WithParamInterface<std::string> {
 protected:
  static std::unique_ptr<torch::optim::Optimizer> optimizer_of(const std::vector<torch::Tensor>& weights) {
    if (GetParam() == "adam")
      return std::make_unique<torch::optim::Adam>(weights, torch::optim::AdamOptions(0.05).weight_decay(1e-4));
    if (GetParam() == "adamw")
      return std::make_unique<torch::optim::AdamW>(weights, torch::optim::AdamWOptions(0.05).weight_decay(1e-4));
    return std::make_unique<torch::optim::SGD>(weights,
                                               torch::optim::SGDOptions(0.05).momentum(0.9).weight_decay(1e-4));
  }
};

TEST_P(EveryOptimizer, OneWorkerIsTorchsOwnLoop) {
  const Dataset images = test::striped_images(160, 1, 28);
  const test::TemporaryFolder folder;
  TrainRun run;
  TrainOptions options = train_options(1);
  options.training.optimizer = GetParam();
  const auto weights = train(options, images, folder.file("checkpoint"), run);

  at::set_num_threads(1);
  torch::manual_seed(3);
  Net net;
  const auto optimizer = optimizer_of(net.parameters());
  Sampler sampler{images.size(), 1, 16, 3};
  double loss_of_epoch = 0.0;
  for (std::int64_t step = 0; step < kTrainSteps; ++step) {
    const auto [x, y] = batch_of(images, sampler.batches(step));
    optimizer->param_groups()[0].options().set_lr(0.05 * std::pow(0.5, step / 10));
    optimizer->zero_grad();
    torch::Tensor loss = torch::nn::functional::cross_entropy(net.forward(x), y);
    loss.backward();
    optimizer->step();
    if (step >= 20) loss_of_epoch += loss.item<double>();
  }
  const torch::Tensor end = flat_weights(net);
  const std::vector<float> expected{end.data_ptr<float>(), end.data_ptr<float>() + end.numel()};
  EXPECT_TRUE(weights == expected) << "not the same bits";
  ASSERT_EQ(run.rows.size(), 3U);  // epochs of 10 steps
  EXPECT_EQ(run.rows.back().numbers.step, kTrainSteps);
  EXPECT_EQ(run.rows.back().numbers.train_loss, loss_of_epoch / 5.0);
  EXPECT_EQ(run.rows.back().numbers.costs.wire_bytes, 0.0);
}

INSTANTIATE_TEST_SUITE_P(Train, EveryOptimizer, testing::Values("sgd", "adam", "adamw"),
                         [](const auto& info) { return info.param; });

// The ring adds in float32, in an order of its own; update() adds in float64. So bits differ, by rounding: after 25
// steps by less than 1e-5 of the weights.
TEST_F(TrainAlone, FourWorkersTakeTheMeanGradient) {
  const Dataset images = test::striped_images(320, 1, 28);
  const test::TemporaryFolder folder;
  TrainRun run;
  const TrainOptions options = train_options(4);
  const auto weights = train(options, images, folder.file("checkpoint"), run);
  CaptureOptions capture = options.training;
  capture.seed = 3;
  const auto trainer = make_trainer(trainer_options(capture), images);
  Sampler sampler{images.size(), 4, 16, 3};
  const auto start = copy(trainer->weights());
  for (std::int64_t step = 0; step < kTrainSteps; ++step) {
    trainer->compute(sampler.batches(step), false);
    trainer->update(0.05 * std::pow(0.5, step / 10));
  }
  const std::vector<double> expected{trainer->weights().begin(), trainer->weights().end()};
  EXPECT_LT(test::relative_distance(weights, expected), 1e-5);
  EXPECT_GT(test::relative_distance(start, expected), 1e-2) << "nothing was learnt, so nothing was compared";
  // 2 (p-1)/p of 4 bytes for each of 61706 elements, which 4 does not divide: up to two elements more.
  EXPECT_NEAR(run.rows.back().numbers.costs.wire_bytes, kTrainSteps * 1.5 * 4.0 * 61706.0, kTrainSteps * 8.0);
}

// Top-k with error feedback, two workers and SGD with momentum, from the formulas: u = g + e is cut to the k elements
// of largest magnitude, what is cut off is the next e, and the optimiser takes the mean of what is left.
TEST_F(TrainAlone, TopkWithErrorFeedbackFollowsItsFormulas) {
  const Dataset images = test::striped_images(160, 1, 28);
  const test::TemporaryFolder folder;
  TrainOptions options = train_options(2);
  options.codecs = {parse_codec("topk:ratio=0.05")};
  options.granularity = Granularity::parse("model");
  TrainRun run;
  const auto weights = train(options, images, folder.file("checkpoint"), run);

  at::set_num_threads(1);
  torch::manual_seed(3);
  Net net;
  const auto parameters = net.parameters();
  Sampler sampler{images.size(), 2, 16, 3};
  torch::Tensor w = flat_weights(net);
  torch::Tensor momentum = torch::zeros_like(w);
  std::vector<torch::Tensor> residuals(2, torch::zeros_like(w));
  const auto k = static_cast<std::int64_t>(std::llround(0.05 * static_cast<double>(w.numel())));
  for (std::int64_t step = 0; step < kTrainSteps; ++step) {
    torch::Tensor mean = torch::zeros_like(w);
    for (std::size_t worker = 0; worker < 2; ++worker) {
      const auto [x, y] = batch_of(images, sampler.batches(step).subspan(16 * worker, 16));
      const auto loss = torch::nn::functional::cross_entropy(net.forward(x), y);
      std::vector<torch::Tensor> pieces;
      for (const auto& gradient : torch::autograd::grad({loss}, parameters)) pieces.push_back(gradient.reshape({-1}));
      const torch::Tensor u = torch::cat(pieces) + residuals[worker];
      const torch::Tensor largest = std::get<1>(u.abs().topk(k));
      const torch::Tensor sent = torch::zeros_like(u).index_copy(0, largest, u.index_select(0, largest));
      residuals[worker] = u - sent;
      mean += sent / 2.0;
    }
    momentum = 0.9 * momentum + mean + 1e-4 * w;
    w = w - 0.05 * std::pow(0.5, step / 10) * momentum;
    const torch::NoGradGuard no_grad;
    std::int64_t first = 0;
    for (auto parameter : parameters) {
      parameter.copy_(w.narrow(0, first, parameter.numel()).view(parameter.sizes()));
      first += parameter.numel();
    }
  }
  const std::vector<double> expected{w.data_ptr<float>(), w.data_ptr<float>() + w.numel()};
  EXPECT_LT(test::relative_distance(weights, expected), 1e-5);
  // Values, positions and headers of one rank: above 4 bytes for each of the k elements, below 8.
  EXPECT_GT(run.rows.back().numbers.costs.wire_bytes, kTrainSteps * 4.0 * static_cast<double>(k));
  EXPECT_LT(run.rows.back().numbers.costs.wire_bytes, kTrainSteps * 8.0 * static_cast<double>(k));
}

}  // namespace
}  // namespace gradtool
