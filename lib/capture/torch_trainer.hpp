#pragma once

#include <torch/types.h>

#include <memory>
#include <vector>

#include "lib/capture/flat_parameters.hpp"
#include "lib/capture/image_batch.hpp"
#include "lib/capture/models.hpp"
#include "lib/capture/trainer.hpp"
#include "lib/core/task_pool.hpp"

namespace gradtool {

/// The only implementation of Trainer; lives in the module (torch_module.hpp).
///
/// On the CPU several workers run at a time, each on a thread of its own. That needs no barrier inside an operator, so
/// it keeps its pace on a machine that is busy with other things, where OpenMP's threads, which spin at barriers, lose
/// a factor of ten. On a GPU one worker runs after the other.
class TorchTrainer final : public Trainer {
 public:
  TorchTrainer(const TrainerOptions& options, const Dataset& training_set, const ChannelStatistics& statistics);

  void compute(std::span<const std::uint32_t> samples, bool with_second_moments) override;
  [[nodiscard]] std::span<const float> losses() const override { return losses_; }
  [[nodiscard]] std::span<const double> compute_seconds() const override { return compute_seconds_; }
  [[nodiscard]] std::span<const float> gradient(std::size_t worker) override;
  [[nodiscard]] std::span<const float> second_moment(std::size_t worker) override;
  void update(double learning_rate) override;
  [[nodiscard]] std::span<const float> weights() override;
  void set_weights(std::span<const float> values) override;
  [[nodiscard]] Score evaluate(const Dataset& dataset, std::size_t count) override;

 private:
  struct Worker {
    std::shared_ptr<Model> replica;  ///< shares its parameters with the others; running statistics of its own
    torch::Tensor gradient;          ///< flat; what backward adds to
    torch::Tensor second_moment;     ///< flat; undefined until wanted
    torch::Tensor host_gradient, host_second_moment;  ///< copies, used when the device is not the CPU
    double compute_seconds = 0.0;                     ///< since the batch began
  };

  float run_worker(Worker& worker, std::span<const std::uint32_t> samples, bool with_second_moments) const;
  float run_batch(Worker& worker, std::span<const std::uint32_t> samples) const;
  [[nodiscard]] std::span<const float> on_host(const torch::Tensor& flat, torch::Tensor& copy) const;

  TrainerOptions options_;
  const Dataset& training_set_;
  ImageBatch batches_;
  torch::Device device_;
  std::vector<Worker> workers_;
  FlatParameters flat_;
  torch::Tensor momentum_, host_weights_;
  std::vector<float> losses_;
  std::vector<double> compute_seconds_;
  bool second_moments_ready_ = false;
  TaskPool pool_;
};

}  // namespace gradtool
