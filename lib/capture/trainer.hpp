#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "lib/capture/dataset.hpp"
#include "lib/io/gradient_file.hpp"

// No LibTorch here: what includes this header compiles without it.
namespace gradtool {

struct TrainerOptions {
  std::string model;              ///< one of model_names()
  std::string device = "cpu";     ///< cpu, cuda or cuda:INDEX
  std::int64_t seed = 1;          ///< of the initial weights
  std::size_t workers = 1;        ///< W
  std::size_t batch_size = 32;    ///< per worker
  std::size_t micro_batches = 1;  ///< K, divides batch_size
  int threads = 1;                ///< on the CPU: up to W for as many workers at a time, more for their operators
  double momentum = 0.9;
  double weight_decay = 1e-4;
};

/// Data-parallel training of one model by W workers that live in one process: they share the weights, and each computes
/// the gradient of its own mini-batch.
///
/// A worker's batch is K micro-batches, each with a forward and a backward pass of its own; its gradient is the mean of
/// theirs. Batch normalisation sees one micro-batch at a time, as it does on a GPU of its own, and only worker 0
/// updates the running statistics: those are the ones that PyTorch's DistributedDataParallel keeps.
///
/// Everything is deterministic for the same options, data, number of threads and machine.
/// Spans that a member returns stay valid until the next call of compute, update or set_weights.
class Trainer {
 public:
  virtual ~Trainer() = default;
  Trainer(const Trainer&) = delete;
  Trainer& operator=(const Trainer&) = delete;

  /// Name, shape, kind, layout and elements of every parameter, in forward order. They lie in that order, without gaps,
  /// in what gradient(), second_moment() and weights() return.
  [[nodiscard]] const std::vector<TensorInfo>& parameters() const noexcept { return parameters_; }
  [[nodiscard]] std::size_t elements() const noexcept { return elements_; }

  /// Forward and backward for every worker. `samples`: positions in the training set, worker-major [W, batch_size].
  /// The second moments cost one more pass over the gradients of each micro-batch.
  virtual void compute(std::span<const std::uint32_t> samples, bool with_second_moments) = 0;

  /// Of the last compute(): each worker's mean cross-entropy over its batch.
  [[nodiscard]] virtual std::span<const float> losses() const = 0;
  /// Of the last compute(): seconds of each worker's forward and backward passes, without loading its images.
  [[nodiscard]] virtual std::span<const double> compute_seconds() const = 0;
  /// A worker's own gradient, before averaging.
  [[nodiscard]] virtual std::span<const float> gradient(std::size_t worker) = 0;
  /// sum over the K micro-batches of (their mean gradient / K)^2. Throws Fault::usage when compute() left it out.
  [[nodiscard]] virtual std::span<const float> second_moment(std::size_t worker) = 0;

  /// One step of SGD (as PyTorch's: d = g + decay w; v = momentum v + d; w -= rate v) with g the mean over workers,
  /// summed in float64 in the order of the workers.
  virtual void update(double learning_rate) = 0;

  [[nodiscard]] virtual std::span<const float> weights() = 0;
  virtual void set_weights(std::span<const float> values) = 0;

  /// Mean cross-entropy and share of right answers on the first `count` images, with the running statistics.
  struct Score {
    double loss = 0.0;
    double accuracy = 0.0;
  };
  [[nodiscard]] virtual Score evaluate(const Dataset& dataset, std::size_t count) = 0;

 protected:
  Trainer() = default;
  std::vector<TensorInfo> parameters_;
  std::size_t elements_ = 0;
};

/// Returns when trainers can be made; else throws Fault::unavailable with the reason: gradtool was built without
/// LibTorch, or it cannot be loaded here.
void require_trainer();

/// `training_set` must outlive the trainer. Throws Fault::unavailable without LibTorch, or when the device is not
/// there, Fault::usage when the model cannot take the images, and Fault::backend for what LibTorch reports.
[[nodiscard]] std::unique_ptr<Trainer> make_trainer(const TrainerOptions& options, const Dataset& training_set);

}  // namespace gradtool
