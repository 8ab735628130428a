#include "lib/capture/optimizer.hpp"

#include <gtest/gtest.h>
#include <torch/optim.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace gradtool {
namespace {

constexpr std::int64_t kElements = 1003;
constexpr int kSteps = 20;

struct Case {
  const char* name;
  TrainerOptions options;
  std::function<std::unique_ptr<torch::optim::Optimizer>(std::vector<torch::Tensor>)> reference;

  friend void PrintTo(const Case& one, std::ostream* out) { *out << one.name; }
};

double rate(int step) {
  return 0.1 / (1.0 + step);
}

TrainerOptions sgd(double momentum, double decay, bool nesterov) {
  TrainerOptions options;
  options.optimizer = "sgd", options.momentum = momentum, options.weight_decay = decay, options.nesterov = nesterov;
  return options;
}

TrainerOptions adam(const char* name, double decay, double beta1 = 0.9, double epsilon = 1e-8) {
  TrainerOptions options;
  options.optimizer = name, options.weight_decay = decay, options.beta1 = beta1, options.epsilon = epsilon;
  return options;
}

Case sgd_case(const char* name, double momentum, double decay, bool nesterov) {
  return {name, sgd(momentum, decay, nesterov), [=](std::vector<torch::Tensor> parameters) {
            return std::make_unique<torch::optim::SGD>(
                std::move(parameters),
                torch::optim::SGDOptions{0.1}.momentum(momentum).weight_decay(decay).nesterov(nesterov));
          }};
}

template <class O, class Options>
Case adam_case(const char* name, const char* optimizer, double decay, double beta1, double epsilon) {
  return {name, adam(optimizer, decay, beta1, epsilon), [=](std::vector<torch::Tensor> parameters) {
            return std::make_unique<O>(
                std::move(parameters),
                Options{0.1}.betas(std::make_tuple(beta1, 0.999)).eps(epsilon).weight_decay(decay));
          }};
}

class Optimizers : public testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    torch::manual_seed(1);
    initial_ = torch::randn(kElements);
    for (int step = 0; step < kSteps; ++step) gradients_.push_back(torch::randn(kElements) * (step % 5 == 0 ? 10 : 1));
  }
  torch::Tensor initial_;
  std::vector<torch::Tensor> gradients_;
};

TEST_P(Optimizers, AreThoseOfTorch) {
  torch::Tensor parameter = initial_.clone().requires_grad_();
  const auto reference = GetParam().reference({parameter});
  torch::Tensor values = initial_.clone();
  const auto optimizer = make_optimizer(GetParam().options, values);
  for (int step = 0; step < kSteps; ++step) {
    reference->param_groups()[0].options().set_lr(rate(step));
    parameter.mutable_grad() = gradients_[step].clone();
    reference->step();
    const torch::NoGradGuard no_grad;
    optimizer->step(values, gradients_[step], rate(step));
    const double distance = (values - parameter).abs().max().item<double>();
    EXPECT_LE(distance, 1e-6) << "step " << step;
  }
  EXPECT_GT((values - initial_).norm().item<double>(), 1.0);
  EXPECT_EQ(optimizer->steps(), kSteps);
}

TEST_P(Optimizers, GoOnFromASavedState) {
  const torch::NoGradGuard no_grad;
  torch::Tensor whole = initial_.clone(), parts = initial_.clone();
  const auto undisturbed = make_optimizer(GetParam().options, whole);
  auto stopped = make_optimizer(GetParam().options, parts);
  for (int step = 0; step < kSteps; ++step) {
    if (step == kSteps / 2) {
      auto restored = make_optimizer(GetParam().options, parts);
      const auto from = stopped->state(), to = restored->state();
      ASSERT_EQ(from.size(), to.size());
      for (std::size_t i = 0; i < from.size(); ++i) {
        EXPECT_EQ(from[i].name, to[i].name);
        torch::Tensor target = to[i].values;
        target.copy_(from[i].values);
      }
      restored->set_steps(stopped->steps());
      stopped = std::move(restored);
    }
    undisturbed->step(whole, gradients_[step], rate(step));
    stopped->step(parts, gradients_[step], rate(step));
  }
  EXPECT_TRUE(torch::equal(whole, parts));
}

TEST_P(Optimizers, LeaveTheGradientAsItIs) {
  const torch::NoGradGuard no_grad;
  torch::Tensor values = initial_.clone();
  const torch::Tensor gradient = gradients_[0].clone();
  const auto optimizer = make_optimizer(GetParam().options, values);
  optimizer->step(values, gradient, 0.1);
  EXPECT_TRUE(torch::equal(gradient, gradients_[0]));
}

using torch::optim::AdamOptions;
using torch::optim::AdamWOptions;
INSTANTIATE_TEST_SUITE_P(
    All, Optimizers,
    testing::Values(sgd_case("Sgd", 0.0, 0.0, false), sgd_case("SgdDecay", 0.0, 0.01, false),
                    sgd_case("Momentum", 0.9, 1e-4, false), sgd_case("Nesterov", 0.9, 1e-4, true),
                    adam_case<torch::optim::Adam, AdamOptions>("Adam", "adam", 0.0, 0.9, 1e-8),
                    adam_case<torch::optim::Adam, AdamOptions>("AdamDecay", "adam", 0.01, 0.8, 1e-3),
                    adam_case<torch::optim::AdamW, AdamWOptions>("AdamW", "adamw", 0.01, 0.9, 1e-8),
                    adam_case<torch::optim::AdamW, AdamWOptions>("AdamWWithoutDecay", "adamw", 0.0, 0.5, 1e-6)),
    [](const auto& info) { return std::string{info.param.name}; });

}  // namespace
}  // namespace gradtool
