#pragma once

#include <torch/types.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "lib/capture/trainer.hpp"

namespace gradtool {

/// Changes the weights by the mean gradient over the workers, all parameters as one flat vector. The arithmetic is that
/// of PyTorch's torch.optim, operation by operation, in float32.
class Optimizer {
 public:
  virtual ~Optimizer() = default;
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;

  /// One step. `values` and `gradient` are float32 [elements] on one device. No gradient may be recorded (NoGradGuard).
  void step(torch::Tensor& values, const torch::Tensor& gradient, double learning_rate) {
    ++steps_;
    apply(values, gradient, learning_rate);
  }

  /// A value that the optimizer keeps between steps, under PyTorch's name, as float32 [elements]. The tensors are not
  /// copies: an optimizer with the same options goes on exactly where this one stands once their values are copied into
  /// its own, and its number of steps is set.
  struct State {
    std::string name;
    torch::Tensor values;
  };
  [[nodiscard]] virtual std::vector<State> state() const = 0;
  [[nodiscard]] std::int64_t steps() const noexcept { return steps_; }
  void set_steps(std::int64_t steps) noexcept { steps_ = steps; }

 protected:
  Optimizer() = default;

 private:
  /// steps() counts the step that is being made.
  virtual void apply(torch::Tensor& values, const torch::Tensor& gradient, double learning_rate) = 0;

  std::int64_t steps_ = 0;
};

/// The optimizer that `options` name, for weights like `values`. With g the gradient, w the weights, t the step from 1:
///
/// sgd    d = g + decay w; v = momentum v + d; w -= rate v. With nesterov w -= rate (d + momentum v).
/// adam   d = g + decay w; m = beta1 m + (1 - beta1) d; s = beta2 s + (1 - beta2) d^2;
///        w -= rate m / (1 - beta1^t) / (sqrt(s / (1 - beta2^t)) + epsilon)   (Kingma and Ba 2015)
/// adamw  w -= rate decay w; then as adam with decay 0                        (Loshchilov and Hutter 2019)
[[nodiscard]] std::unique_ptr<Optimizer> make_optimizer(const TrainerOptions& options, const torch::Tensor& values);

}  // namespace gradtool
