#include "lib/capture/optimizer.hpp"

#include <ATen/Functions.h>

#include <cmath>

#include "lib/core/error.hpp"

namespace gradtool {
namespace {

/// The gradient of the loss with an L2 penalty.
torch::Tensor with_decay(const torch::Tensor& gradient, const torch::Tensor& values, double decay) {
  return decay == 0.0 ? gradient : gradient.add(values, decay);
}

class Sgd final : public Optimizer {
 public:
  Sgd(const TrainerOptions& options, const torch::Tensor& values)
      : momentum_{options.momentum}, decay_{options.weight_decay}, nesterov_{options.nesterov} {
    if (momentum_ != 0.0) velocity_ = torch::zeros_like(values);
  }

  [[nodiscard]] std::vector<State> state() const override {
    return velocity_.defined() ? std::vector<State>{{"momentum_buffer", velocity_}} : std::vector<State>{};
  }

 private:
  void apply(torch::Tensor& values, const torch::Tensor& gradient, double learning_rate) override {
    const torch::Tensor direction = with_decay(gradient, values, decay_);
    if (!velocity_.defined()) {
      values.sub_(direction, learning_rate);
      return;
    }
    velocity_.mul_(momentum_).add_(direction);
    values.sub_(nesterov_ ? direction.add(velocity_, momentum_) : velocity_, learning_rate);
  }

  double momentum_, decay_;
  bool nesterov_;
  torch::Tensor velocity_;
};

/// Adam (Kingma and Ba 2015), and AdamW (Loshchilov and Hutter 2019), whose decay is none of the gradient's.
class Adam final : public Optimizer {
 public:
  Adam(const TrainerOptions& options, const torch::Tensor& values, bool decoupled)
      : decoupled_{decoupled},
        decay_{options.weight_decay},
        beta1_{options.beta1},
        beta2_{options.beta2},
        epsilon_{options.epsilon},
        first_{torch::zeros_like(values)},
        second_{torch::zeros_like(values)} {}

  [[nodiscard]] std::vector<State> state() const override { return {{"exp_avg", first_}, {"exp_avg_sq", second_}}; }

 private:
  void apply(torch::Tensor& values, const torch::Tensor& gradient, double learning_rate) override {
    if (decoupled_ && decay_ != 0.0) values.mul_(1.0 - learning_rate * decay_);
    const torch::Tensor added = decoupled_ ? gradient : with_decay(gradient, values, decay_);
    first_.mul_(beta1_).add_(added, 1.0 - beta1_);
    second_.mul_(beta2_).addcmul_(added, added, 1.0 - beta2_);
    const double correction1 = 1.0 - std::pow(beta1_, static_cast<double>(steps()));
    const double correction2 = 1.0 - std::pow(beta2_, static_cast<double>(steps()));
    const torch::Tensor denominator = second_.sqrt().div_(std::sqrt(correction2)).add_(epsilon_);
    values.addcdiv_(first_, denominator, -learning_rate / correction1);
  }

  bool decoupled_;
  double decay_, beta1_, beta2_, epsilon_;
  torch::Tensor first_, second_;
};

}  // namespace

std::unique_ptr<Optimizer> make_optimizer(const TrainerOptions& options, const torch::Tensor& values) {
  if (options.optimizer == "sgd") return std::make_unique<Sgd>(options, values);
  if (options.optimizer == "adam") return std::make_unique<Adam>(options, values, false);
  expects(options.optimizer == "adamw", "make_optimizer was given a name that optimizer_names() does not have");
  return std::make_unique<Adam>(options, values, true);
}

}  // namespace gradtool
