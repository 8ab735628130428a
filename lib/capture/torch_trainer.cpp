#include "lib/capture/torch_trainer.hpp"

#include <torch/nn/functional.h>
#include <torch/utils.h>

#include <algorithm>
#include <chrono>

#include "gradtool_version.hpp"
#include "lib/capture/torch_call.hpp"
#include "lib/capture/torch_device.hpp"
#include "lib/capture/torch_module.hpp"
#include "lib/core/error.hpp"

namespace gradtool {
namespace {

int concurrent_workers(const TrainerOptions& options) {
  return options.device == "cpu" ? std::clamp(options.threads, 1, static_cast<int>(options.workers)) : 1;
}

std::shared_ptr<Model> build_replica(const TrainerOptions& options, const Dataset& dataset, torch::Device device) {
  torch::manual_seed(static_cast<std::uint64_t>(options.seed));
  auto model = make_model(options.model, {dataset.channels, dataset.height, dataset.width, dataset.classes});
  model->to(device);  // drawn on the CPU first: the same weights on every device
  return model;
}

torch::Tensor cross_entropy(const torch::Tensor& logits, const torch::Tensor& labels) {
  return torch::nll_loss(torch::log_softmax(logits, 1), labels);
}

}  // namespace

TorchTrainer::TorchTrainer(const TrainerOptions& options, const Dataset& training_set,
                           const ChannelStatistics& statistics)
    : options_{options},
      training_set_{training_set},
      batches_{statistics},
      device_{open_device(options.device, std::max(1, options.threads / concurrent_workers(options)))},
      workers_(options.workers),
      flat_{*build_replica(options, training_set, device_)},
      momentum_{flat_.zeros()},
      losses_(options.workers),
      compute_seconds_(options.workers),
      pool_{concurrent_workers(options)} {
  expects(options.micro_batches >= 1 && options.batch_size % options.micro_batches == 0,
          "a batch must be a whole number of micro-batches");
  for (auto& worker : workers_) {
    worker.replica = build_replica(options, training_set, device_);
    worker.gradient = flat_.zeros();
    flat_.bind(*worker.replica, worker.gradient);
  }
  parameters_ = flat_.infos();
  elements_ = static_cast<std::size_t>(flat_.values().numel());
}

float TorchTrainer::run_batch(Worker& worker, std::span<const std::uint32_t> samples) const {
  const auto [images, labels] = batches_.make(training_set_, samples);
  worker.gradient.zero_();
  const torch::Tensor inputs = images.to(device_);
  const torch::Tensor classes = labels.to(device_);
  wait_for(device_);  // the images are there; what is timed is the network
  const auto start = std::chrono::steady_clock::now();
  const torch::Tensor loss = cross_entropy(worker.replica->forward(inputs), classes);
  loss.backward();
  const auto value = loss.item<float>();  // on a GPU this waits until the backward pass is over
  worker.compute_seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return value;
}

float TorchTrainer::run_worker(Worker& worker, std::span<const std::uint32_t> samples, bool with_second_moments) const {
  worker.replica->train();
  const std::size_t parts = options_.micro_batches;
  if (parts == 1) {
    const float loss = run_batch(worker, samples);
    if (with_second_moments) worker.second_moment = worker.gradient.square();
    return loss;
  }
  // Micro-batch by micro-batch in float64, the same way whether the step is captured or not: capturing changes no bit.
  const std::size_t size = samples.size() / parts;
  torch::Tensor mean = torch::zeros_like(worker.gradient, torch::kFloat64);
  torch::Tensor squares = with_second_moments ? torch::zeros_like(mean) : torch::Tensor{};
  double loss = 0.0;
  for (std::size_t part = 0; part < parts; ++part) {
    loss += run_batch(worker, samples.subspan(part * size, size));
    const torch::Tensor share = worker.gradient.to(torch::kFloat64).div_(static_cast<double>(parts));
    mean.add_(share);
    if (with_second_moments) squares.addcmul_(share, share);
  }
  worker.gradient.copy_(mean);
  if (with_second_moments) worker.second_moment = squares.to(torch::kFloat32);
  return static_cast<float>(loss / static_cast<double>(parts));
}

void TorchTrainer::compute(std::span<const std::uint32_t> samples, bool with_second_moments) {
  expects(samples.size() == options_.workers * options_.batch_size, "compute() takes workers x batch_size samples");
  auto run_one = [&](std::size_t w) {
    join_device();
    const auto mine = samples.subspan(w * options_.batch_size, options_.batch_size);
    workers_[w].compute_seconds = 0.0;
    losses_[w] = run_worker(workers_[w], mine, with_second_moments);
    compute_seconds_[w] = workers_[w].compute_seconds;
  };
  using RunOne = decltype(run_one);
  torch_call([&] {
    pool_.run(
        workers_.size(), [](void* context, std::size_t w) { (*static_cast<RunOne*>(context))(w); }, &run_one);
  });
  second_moments_ready_ = with_second_moments;
}

void TorchTrainer::update(double learning_rate) {
  torch_call([&] {
    const torch::NoGradGuard no_grad;
    torch::Tensor sum = workers_.front().gradient.to(torch::kFloat64);
    for (std::size_t w = 1; w < workers_.size(); ++w) sum.add_(workers_[w].gradient);
    const torch::Tensor mean = sum.div_(static_cast<double>(workers_.size())).to(torch::kFloat32);
    momentum_.mul_(options_.momentum).add_(mean.add_(flat_.values(), options_.weight_decay));
    flat_.values().sub_(momentum_, learning_rate);
  });
}

std::span<const float> TorchTrainer::on_host(const torch::Tensor& flat, torch::Tensor& copy) const {
  return torch_call([&]() -> std::span<const float> {
    if (device_.is_cuda()) {  // through pinned memory, which is kept
      if (!copy.defined()) {
        copy = torch::empty(flat.sizes(), torch::TensorOptions{}.dtype(torch::kFloat32).pinned_memory(true));
      }
      copy.copy_(flat);
    }
    const torch::Tensor& host = device_.is_cuda() ? copy : flat;
    return {host.data_ptr<float>(), static_cast<std::size_t>(host.numel())};
  });
}

std::span<const float> TorchTrainer::gradient(std::size_t worker) {
  return on_host(workers_.at(worker).gradient, workers_.at(worker).host_gradient);
}

std::span<const float> TorchTrainer::second_moment(std::size_t worker) {
  expects(second_moments_ready_, "compute() was called without second moments");
  return on_host(workers_.at(worker).second_moment, workers_.at(worker).host_second_moment);
}

std::span<const float> TorchTrainer::weights() {
  return on_host(flat_.values(), host_weights_);
}

void TorchTrainer::set_weights(std::span<const float> values) {
  expects(values.size() == elements_, "set_weights() takes one value for every element");
  const torch::NoGradGuard no_grad;
  torch::Tensor host = torch::empty({static_cast<std::int64_t>(values.size())}, torch::kFloat32);
  std::copy(values.begin(), values.end(), host.data_ptr<float>());
  torch_call([&] { flat_.values().copy_(host); });
}

Trainer::Score TorchTrainer::evaluate(const Dataset& dataset, std::size_t count) {
  return torch_call([&] {
    constexpr std::size_t kBatch = 250;
    const torch::NoGradGuard no_grad;
    Model& model = *workers_.front().replica;
    model.eval();
    Score score;
    count = std::min(count, dataset.size());
    for (std::size_t first = 0; first < count; first += kBatch) {
      std::vector<std::uint32_t> samples(std::min(kBatch, count - first));
      for (std::size_t i = 0; i < samples.size(); ++i) samples[i] = static_cast<std::uint32_t>(first + i);
      const auto [images, labels] = batches_.make(dataset, samples);
      const torch::Tensor logits = model.forward(images.to(device_)).to(torch::kCPU);
      score.loss += cross_entropy(logits, labels).item<double>() * static_cast<double>(samples.size());
      score.accuracy += logits.argmax(1).eq(labels).sum().item<double>();
    }
    score.loss /= static_cast<double>(count);
    score.accuracy /= static_cast<double>(count);
    return score;
  });
}

}  // namespace gradtool

extern "C" __attribute__((visibility("default"))) const gradtool::TorchModule* gradtool_torch_module() {
  using namespace gradtool;
  static constexpr TorchModule kModule{
      GRADTOOL_VERSION,
      [](const TrainerOptions& options, const Dataset& training_set,
         const ChannelStatistics& statistics) -> std::unique_ptr<Trainer> {
        return torch_call([&] { return std::make_unique<TorchTrainer>(options, training_set, statistics); });
      }};
  return &kModule;
}
