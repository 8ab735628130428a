#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "lib/capture/dataset.hpp"
#include "lib/capture/readiness.hpp"
#include "lib/core/state.hpp"
#include "lib/io/gradient_file.hpp"

// This header does not include LibTorch, so that code which uses it compiles without LibTorch.
namespace gradtool {

struct TrainerOptions {
  std::string model;              ///< one of model_names()
  std::string device = "cpu";     ///< cpu, cuda or cuda:INDEX
  std::int64_t image_size = 0;    ///< pixels a side to which images are enlarged; 0: as they are
  std::int64_t seed = 1;          ///< of the initial weights
  std::size_t workers = 1;        ///< W
  std::size_t batch_size = 32;    ///< per worker
  std::size_t micro_batches = 1;  ///< K, divides batch_size
  int threads = 1;                ///< on the CPU: up to W of them run workers; the others speed up their operators
  std::string optimizer = "sgd";  ///< sgd, adam or adamw; see make_optimizer()
  double weight_decay = 1e-4;
  double momentum = 0.9;                              ///< of sgd
  bool nesterov = false;                              ///< of sgd
  double beta1 = 0.9, beta2 = 0.999, epsilon = 1e-8;  ///< of adam and adamw
  std::size_t inner_steps = 0;                        ///< H of DiLoCo; 0: workers exchange every step's gradient
  double outer_momentum = 0.9;                        ///< of DiLoCo's outer step, which is Nesterov's
};

/// Data-parallel training of one model by W workers that live in one process: they share the weights, and each computes
/// the gradient of its own mini-batch.
///
/// A worker's batch consists of K micro-batches, each with a forward and a backward pass of its own; the worker's
/// gradient is the mean of their gradients. Batch normalisation sees one micro-batch at a time, as it would on separate
/// GPUs. Each replica keeps running statistics; those of worker 0 count, as in PyTorch's DistributedDataParallel.
///
/// Everything is deterministic for the same options, data, number of threads and machine, but for alexnet and vgg16 on
/// a GPU with images of some sizes; see make_model(). Spans that a member returns stay valid until the next call of
/// compute, update, apply or set_weights.
class Trainer {
 public:
  virtual ~Trainer() = default;
  Trainer(const Trainer&) = delete;
  Trainer& operator=(const Trainer&) = delete;

  /// Name, shape, kind, layout and elements of every parameter, in forward order. The vectors that gradient(),
  /// second_moment() and weights() return hold the parameters in that order, without gaps.
  [[nodiscard]] const std::vector<TensorInfo>& parameters() const noexcept { return parameters_; }
  [[nodiscard]] std::size_t elements() const noexcept { return elements_; }

  /// Runs the forward and backward passes of every worker. `samples` are positions in the training set, worker-major
  /// [W, batch_size]. Second moments cost one more pass over the gradients of each micro-batch.
  virtual void compute(std::span<const std::uint32_t> samples, bool with_second_moments) = 0;

  /// DiLoCo (Douillard et al. 2023, arXiv 2311.08105, algorithm 1), for options with inner_steps H: every worker takes
  /// H steps of an optimizer of its own, which goes on from round to round, from the shared weights. `samples` is [H,
  /// W, batch_size]. Afterwards gradient() is the worker's pseudo-gradient, the shared weights minus its own, losses()
  /// are means over the H steps, and update() makes the outer step, SGD with Nesterov momentum.
  virtual void compute_rounds(std::span<const std::uint32_t> samples, double learning_rate) = 0;

  /// Each worker's mean cross-entropy over the images or tokens of its batch in the last compute().
  [[nodiscard]] virtual std::span<const float> losses() const = 0;
  /// The seconds that each worker's forward and backward passes took in the last compute(), without loading its batch,
  /// and that the optimizer's step took if it was made since.
  [[nodiscard]] virtual std::span<const double> compute_seconds() const = 0;
  /// The worker's own gradient, before averaging over workers.
  [[nodiscard]] virtual std::span<const float> gradient(std::size_t worker) = 0;
  /// The sum over the K micro-batches of (mean gradient of the micro-batch / K)^2. Throws Fault::internal when the last
  /// compute() was called without second moments.
  [[nodiscard]] virtual std::span<const float> second_moment(std::size_t worker) = 0;

  /// One step of the optimizer, as PyTorch defines it, with the mean gradient over workers, summed in float64 in the
  /// order of the workers.
  virtual void update(double learning_rate) = 0;
  /// Takes the step with this mean gradient, one value for every element, instead of the exact one.
  virtual void apply(std::span<const float> mean, double learning_rate) = 0;

  /// Shows all that later steps depend on and that workers share: weights, optimiser, random generator of the CPU. A
  /// new trainer of the same options to which it is given, with visit_replica() of every worker, goes on with the same
  /// bits on the CPU.
  virtual void visit_state(StateVisitor& visitor) = 0;
  /// Visits the state that a worker's replica keeps for itself: running statistics.
  virtual void visit_replica(std::size_t worker, StateVisitor& visitor) = 0;

  [[nodiscard]] virtual std::span<const float> weights() = 0;
  virtual void set_weights(std::span<const float> values) = 0;

  /// Mean cross-entropy and share of correct answers on the first `count` samples, over their images or tokens, with
  /// the running statistics.
  struct Score {
    double loss = 0.0;
    double accuracy = 0.0;
  };
  [[nodiscard]] virtual Score evaluate(const Dataset& dataset, std::size_t count) = 0;

  /// The last backward pass of each worker in the last compute(), with an entry of `ready` for each parameter. Not
  /// known on a GPU, whose work has not been done when LibTorch says that a gradient is there, nor for DiLoCo, whose
  /// workers do not exchange gradients.
  [[nodiscard]] virtual std::span<const BackwardTimes> backward_times() const = 0;

 protected:
  Trainer() = default;
  std::vector<TensorInfo> parameters_;
  std::size_t elements_ = 0;
};

/// Throws Fault::unavailable with the reason when no trainer can be made: gradtool was built without LibTorch, or its
/// training module is not here. Loads nothing, so that a mistake in the options is told at once; whether LibTorch can
/// be loaded is known when make_trainer() has loaded it.
void require_trainer();

/// `training_set` must outlive the trainer. Throws Fault::unavailable without LibTorch, or when the device is not
/// there, Fault::usage when the model cannot take the data (see model_input()), and Fault::backend for what LibTorch
/// reports.
[[nodiscard]] std::unique_ptr<Trainer> make_trainer(const TrainerOptions& options, const Dataset& training_set);

}  // namespace gradtool
