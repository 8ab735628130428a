#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <c10/util/Exception.h>
#include <dlfcn.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/cuda.h>
#include <torch/nn/functional.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>
#ifdef __GLIBC__
#include <malloc.h>
#endif

#include "gradtool_version.hpp"
#include "lib/capture/batches.hpp"
#include "lib/capture/dataset.hpp"
#include "lib/capture/models.hpp"
#include "lib/capture/optimizer.hpp"
#include "lib/capture/torch_module.hpp"
#include "lib/capture/trainer.hpp"
#include "lib/core/device.hpp"
#include "lib/core/task_pool.hpp"
#include "lib/core/throw_error.hpp"
#include "lib/io/gradient_file.hpp"

namespace gradtool {
namespace {

/// Runs `body` and turns an exception of LibTorch into Error{Fault::backend} with the first line of its message, so
/// that no type of LibTorch leaves this file.
template <class F>
decltype(auto) torch_call(F&& body) {
  try {
    return std::forward<F>(body)();
  } catch (const c10::Error& error) {
    const std::string text = error.what_without_backtrace();
    throw Error{Fault::backend, "LibTorch: " + text.substr(0, text.find('\n'))};
  }
}

/// Makes malloc keep freed memory. Every training step allocates the same megabytes again; if they were returned to the
/// system in between, page faults would take a fifth of the time of a ResNet-20 step.
void keep_freed_memory() {
#ifdef __GLIBC__
  mallopt(M_MMAP_THRESHOLD, 32 << 20);
  mallopt(M_TRIM_THRESHOLD, 1 << 30);
  mallopt(M_TOP_PAD, 64 << 20);
#endif
}

/// Makes convolutions and matrix products on a GPU use float32 and repeat exactly.
void repeatable_float32() {
  auto& context = at::globalContext();
  context.setDeterministicCuDNN(true);
  context.setBenchmarkCuDNN(false);
  context.setAllowTF32CuDNN(false);
  context.setAllowTF32CuBLAS(false);
  // cuBLAS sums in the same order every time only with a workspace of fixed size. It reads this variable when it is
  // first used.
  setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", 0);
}

/// Prepares LibTorch in this process and returns the device `name`, which is cpu, cuda or cuda:INDEX: deterministic
/// algorithms, `operator_threads` threads inside one operator on the CPU, and a malloc that keeps freed memory for the
/// next step. On a GPU convolutions and matrix products use float32 (LibTorch's default, TF32, rounds their factors to
/// 10 bits) and give the same result in every run. Throws Fault::unavailable when LibTorch sees no such GPU.
torch::Device open_device(const std::string& name, int operator_threads) {
  keep_freed_memory();
  at::set_num_threads(operator_threads);
  // OpenBLAS has threads of its own, which LibTorch does not control. With another BLAS this symbol does not exist.
  if (void* setter = dlsym(RTLD_DEFAULT, "openblas_set_num_threads")) {
    reinterpret_cast<void (*)(int)>(setter)(operator_threads);
  }
  const DeviceChoice wanted = parse_device(name);
  if (!wanted.cuda) return torch::kCPU;
  if (!torch::cuda::is_available())
    throw_error(Fault::unavailable, "--device {}: LibTorch finds no CUDA device here, or was built without CUDA", name);
  const auto count = static_cast<int>(torch::cuda::device_count());
  if (wanted.index >= count)
    throw_error(Fault::unavailable, "--device {}: LibTorch sees GPUs 0 to {} on this machine", name, count - 1);
  repeatable_float32();
  return {torch::kCUDA, static_cast<c10::DeviceIndex>(wanted.index)};
}

/// Waits until a GPU has done all its work; returns at once on the CPU.
void wait_for(const torch::Device& device) {
  if (device.is_cuda()) torch::cuda::synchronize(device.index());
}

/// Must be called first on every thread but the one of open_device, because LibTorch keeps its number of threads for
/// each calling thread.
void join_device() {
  thread_local bool joined = false;
  if (!joined) at::init_num_threads();
  joined = true;
}

/// The parameters of a network as one flat vector, in forward order and without gaps, which all workers' replicas
/// share. So averaging, updating and storing work on whole vectors, and replicas cannot drift apart.
class FlatParameters {
 public:
  /// Takes the initial values from `model`, on its device.
  explicit FlatParameters(const Model& model);

  [[nodiscard]] const std::vector<TensorInfo>& infos() const noexcept { return infos_; }
  [[nodiscard]] torch::Tensor& values() noexcept { return values_; }  ///< float32 [elements]
  /// A zeroed vector of that size on the same device.
  [[nodiscard]] torch::Tensor zeros() const { return torch::zeros_like(values_); }

  /// Makes the parameters of `replica` (same architecture and device) views of `values`, mostly values(), and their
  /// gradients views of `gradient`, to which its backward passes add from now on.
  static void bind(Model& replica, const torch::Tensor& values, const torch::Tensor& gradient);

 private:
  std::vector<TensorInfo> infos_;
  torch::Tensor values_;
};

FlatParameters::FlatParameters(const Model& model) {
  const auto kinds = parameter_kinds(model);
  std::vector<torch::Tensor> pieces;
  for (const auto& named : model.named_parameters()) {
    const torch::Tensor& parameter = named.value();
    TensorInfo info;
    info.name = named.key();
    info.shape = parameter.sizes().vec();
    info.kind = kinds[infos_.size()].kind;
    info.layout = kinds[infos_.size()].layout;
    info.elements = static_cast<std::uint64_t>(parameter.numel());
    infos_.push_back(std::move(info));
    pieces.push_back(parameter.detach().reshape({-1}));
  }
  values_ = torch::cat(pieces);
}

void FlatParameters::bind(Model& replica, const torch::Tensor& values, const torch::Tensor& gradient) {
  std::int64_t first = 0;
  for (auto& parameter : replica.parameters()) {
    const auto view_of = [&](const torch::Tensor& flat) {
      return flat.narrow(0, first, parameter.numel()).view(parameter.sizes());
    };
    const torch::Tensor gradient_view = view_of(gradient);
    parameter.set_data(view_of(values));
    parameter.mutable_grad() = gradient_view;
    first += parameter.numel();
  }
}

using Clock = std::chrono::steady_clock;

double seconds_between(Clock::time_point begin, Clock::time_point end) {
  return std::chrono::duration<double>(end - begin).count();
}

/// Notes when a gradient was last complete. It costs one reading of the clock for each parameter and backward pass.
class ReadyHook final : public torch::autograd::FunctionPostHook {
 public:
  explicit ReadyHook(Clock::time_point& ready) : ready_{ready} {}
  torch::autograd::variable_list operator()(const torch::autograd::variable_list& outputs,
                                            const torch::autograd::variable_list&) override {
    ready_ = Clock::now();
    return outputs;
  }

 private:
  Clock::time_point& ready_;
};

/// When a replica's gradients were last complete, in the order of its parameters.
class ReadyStamps {
 public:
  /// Must stay where it is as long as `replica` runs backward passes.
  void watch(const Model& replica) {
    const auto parameters = replica.parameters();
    stamps_.resize(parameters.size());
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      // The node that adds to a parameter's gradient lives only as long as somebody holds it.
      accumulators_.push_back(torch::autograd::impl::grad_accumulator(parameters[i]));
      accumulators_.back()->add_post_hook(std::make_unique<ReadyHook>(stamps_[i]));
    }
  }
  /// Those of a pass from `begin` to `end`; NaN where a gradient was not touched by it.
  [[nodiscard]] BackwardTimes of_pass(Clock::time_point begin, Clock::time_point end) const {
    BackwardTimes times{.seconds = seconds_between(begin, end), .ready = {}};
    times.ready.reserve(stamps_.size());
    for (const auto stamp : stamps_) {
      times.ready.push_back(stamp < begin ? std::numeric_limits<double>::quiet_NaN() : seconds_between(begin, stamp));
    }
    return times;
  }

 private:
  std::vector<Clock::time_point> stamps_;
  std::vector<std::shared_ptr<torch::autograd::Node>> accumulators_;
};

/// Shows the values of a tensor on any device to `visitor`, and takes over what it restores.
void visit_tensor(StateVisitor& visitor, const std::string& name, torch::Tensor& tensor) {
  const torch::NoGradGuard no_grad;
  const torch::Tensor host = tensor.detach().to(torch::kCPU).contiguous();  // `tensor` itself where it is that already
  visitor.block(name, {static_cast<std::byte*>(host.data_ptr()), host.nbytes()});
  if (visitor.restores()) tensor.copy_(host);
}

/// The only implementation of Trainer. It lies in the module that torch_module.hpp describes.
///
/// On the CPU several workers run at the same time, each on a thread of its own. Such threads do not wait for each
/// other inside an operator, so they stay fast on a machine that is busy with other work, where OpenMP's threads, which
/// spin at barriers, become ten times slower. On a GPU one worker runs after the other.
class TorchTrainer final : public Trainer {
 public:
  TorchTrainer(const TrainerOptions& options, const ModelInput& input, const Dataset& training_set,
               const ChannelStatistics& statistics);

  void compute(std::span<const std::uint32_t> samples, bool with_second_moments) override;
  void compute_rounds(std::span<const std::uint32_t> samples, double learning_rate) override;
  [[nodiscard]] std::span<const float> losses() const override { return losses_; }
  [[nodiscard]] std::span<const double> compute_seconds() const override { return compute_seconds_; }
  [[nodiscard]] std::span<const float> gradient(std::size_t worker) override;
  [[nodiscard]] std::span<const float> second_moment(std::size_t worker) override;
  void update(double learning_rate) override;
  void apply(std::span<const float> mean, double learning_rate) override;
  void visit_state(StateVisitor& visitor) override;
  void visit_replica(std::size_t worker, StateVisitor& visitor) override;
  [[nodiscard]] std::span<const float> weights() override;
  void set_weights(std::span<const float> values) override;
  [[nodiscard]] Score evaluate(const Dataset& dataset, std::size_t count) override;
  [[nodiscard]] std::span<const BackwardTimes> backward_times() const override { return backward_times_; }

 private:
  struct Worker {
    std::shared_ptr<Model> replica;  ///< shares its parameters with the others, but has its own running statistics
    torch::Tensor gradient;          ///< flat vector to which the backward pass adds
    torch::Tensor second_moment;     ///< flat vector; undefined until second moments are requested
    torch::Tensor host_gradient, host_second_moment;  ///< copies, used when the device is not the CPU
    /// DiLoCo only: the weights of this worker's own replica, their optimizer, and the pseudo-gradient that followed.
    torch::Tensor weights;
    std::unique_ptr<Optimizer> optimizer;
    torch::Tensor pseudo_gradient;
    double compute_seconds = 0.0;  ///< since the batch began
    ReadyStamps stamps;
    BackwardTimes backward;  ///< the last pass
  };

  float run_worker(Worker& worker, std::span<const std::uint32_t> samples, bool with_second_moments) const;
  float run_batch(Worker& worker, std::span<const std::uint32_t> samples) const;
  void step(const torch::Tensor& mean, double learning_rate);
  /// Runs work(w) for every worker, as many at a time as there are threads for them.
  template <class Work>
  void for_each_worker(Work&& work);
  [[nodiscard]] bool diloco() const { return options_.inner_steps > 0; }
  /// The tensor that workers exchange.
  [[nodiscard]] static const torch::Tensor& exchanged(const Worker& worker) {
    return worker.pseudo_gradient.defined() ? worker.pseudo_gradient : worker.gradient;
  }
  [[nodiscard]] std::span<const float> on_host(const torch::Tensor& flat, torch::Tensor& copy) const;

  TrainerOptions options_;
  const Dataset& training_set_;
  Batches batches_;
  torch::Device device_;
  std::vector<Worker> workers_;
  FlatParameters flat_;
  std::unique_ptr<Optimizer> optimizer_;
  torch::Tensor host_weights_;
  std::vector<float> losses_;
  std::vector<double> compute_seconds_;
  std::vector<BackwardTimes> backward_times_;
  bool second_moments_ready_ = false;
  TaskPool pool_;
};

/// The optimizer of the shared weights.
std::unique_ptr<Optimizer> make_shared_optimizer(const TrainerOptions& options, const torch::Tensor& values) {
  if (options.inner_steps == 0) return make_optimizer(options, values);
  TrainerOptions outer = options;
  outer.optimizer = "sgd";
  outer.momentum = options.outer_momentum;
  outer.nesterov = options.outer_momentum > 0.0;
  outer.weight_decay = 0.0;  // the inner optimizer has it
  return make_optimizer(outer, values);
}

int concurrent_workers(const TrainerOptions& options) {
  return options.device == "cpu" ? std::clamp(options.threads, 1, static_cast<int>(options.workers)) : 1;
}

std::shared_ptr<Model> build_replica(const TrainerOptions& options, const ModelInput& input, torch::Device device) {
  torch::manual_seed(static_cast<std::uint64_t>(options.seed));
  auto model = make_model(options.model, input);
  model->to(device);  // The weights were drawn on the CPU, so they are the same on every device.
  return model;
}

/// The mean over all labels; `logits` has one more axis than `labels`.
torch::Tensor cross_entropy(const torch::Tensor& logits, const torch::Tensor& labels) {
  return torch::nll_loss(torch::log_softmax(logits, -1).flatten(0, -2), labels.flatten());
}

TorchTrainer::TorchTrainer(const TrainerOptions& options, const ModelInput& input, const Dataset& training_set,
                           const ChannelStatistics& statistics)
    : options_{options},
      training_set_{training_set},
      batches_{input, statistics},
      device_{open_device(options.device, std::max(1, options.threads / concurrent_workers(options)))},
      workers_(options.workers),
      flat_{*build_replica(options, input, device_)},
      optimizer_{make_shared_optimizer(options, flat_.values())},
      losses_(options.workers),
      compute_seconds_(options.workers),
      backward_times_(options.workers),
      pool_{concurrent_workers(options)} {
  expect_valid(options.micro_batches >= 1 && options.batch_size % options.micro_batches == 0,
               "a batch must be a whole number of micro-batches");
  for (auto& worker : workers_) {
    worker.replica = build_replica(options, input, device_);
    worker.gradient = flat_.zeros();
    if (diloco()) {
      worker.weights = flat_.values().clone();
      worker.optimizer = make_optimizer(options, worker.weights);
      worker.pseudo_gradient = flat_.zeros();
    }
    FlatParameters::bind(*worker.replica, diloco() ? worker.weights : flat_.values(), worker.gradient);
    if (device_.is_cpu() && !diloco()) worker.stamps.watch(*worker.replica);
  }
  parameters_ = flat_.infos();
  elements_ = static_cast<std::size_t>(flat_.values().numel());
}

float TorchTrainer::run_batch(Worker& worker, std::span<const std::uint32_t> samples) const {
  const auto [inputs, labels] = batches_.make(training_set_, samples, device_);
  worker.gradient.zero_();
  wait_for(device_);  // The time of copying the batch is not part of the measured time.
  const auto start = Clock::now();
  const torch::Tensor loss = cross_entropy(worker.replica->forward(inputs), labels);
  const auto turned = Clock::now();
  loss.backward();
  if (device_.is_cpu() && !diloco()) worker.backward = worker.stamps.of_pass(turned, Clock::now());
  const auto value = loss.item<float>();  // On a GPU this waits until the backward pass has finished.
  worker.compute_seconds += seconds_between(start, Clock::now());
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
  // Micro-batches are added in float64 whether the step is captured or not, so that capturing does not change a bit of
  // the training.
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
  for_each_worker([&](std::size_t w) {
    const auto mine = samples.subspan(w * options_.batch_size, options_.batch_size);
    workers_[w].compute_seconds = 0.0;
    losses_[w] = run_worker(workers_[w], mine, with_second_moments);
    compute_seconds_[w] = workers_[w].compute_seconds;
    backward_times_[w] = workers_[w].backward;
  });
  second_moments_ready_ = with_second_moments;
}

template <class Work>
void TorchTrainer::for_each_worker(Work&& work) {
  auto run_one = [&](std::size_t w) {
    join_device();
    work(w);
  };
  using RunOne = decltype(run_one);
  torch_call([&] {
    pool_.run(
        workers_.size(), [](void* context, std::size_t w) { (*static_cast<RunOne*>(context))(w); }, &run_one);
  });
}

void TorchTrainer::compute_rounds(std::span<const std::uint32_t> samples, double learning_rate) {
  const std::size_t rounds = options_.inner_steps;
  const std::size_t all = options_.workers * options_.batch_size;
  expects(diloco() && samples.size() == rounds * all,
          "compute_rounds() takes inner_steps x workers x batch_size samples");
  for_each_worker([&](std::size_t w) {
    Worker& worker = workers_[w];
    worker.compute_seconds = 0.0;
    {
      const torch::NoGradGuard no_grad;
      worker.weights.copy_(flat_.values());
    }
    double loss = 0.0;
    for (std::size_t round = 0; round < rounds; ++round) {
      loss += run_worker(worker, samples.subspan(round * all + w * options_.batch_size, options_.batch_size), false);
      const torch::NoGradGuard no_grad;
      const auto start = std::chrono::steady_clock::now();
      worker.optimizer->step(worker.weights, worker.gradient, learning_rate);
      wait_for(device_);
      worker.compute_seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    }
    const torch::NoGradGuard no_grad;
    torch::sub_out(worker.pseudo_gradient, flat_.values(), worker.weights);
    losses_[w] = static_cast<float>(loss / static_cast<double>(rounds));
    compute_seconds_[w] = worker.compute_seconds;
  });
  second_moments_ready_ = false;
}

void TorchTrainer::update(double learning_rate) {
  torch_call([&] {
    const torch::NoGradGuard no_grad;
    torch::Tensor sum = exchanged(workers_.front()).to(torch::kFloat64);
    for (std::size_t w = 1; w < workers_.size(); ++w) sum.add_(exchanged(workers_[w]));
    step(sum.div_(static_cast<double>(workers_.size())).to(torch::kFloat32), learning_rate);
  });
}

void TorchTrainer::apply(std::span<const float> mean, double learning_rate) {
  expects(mean.size() == elements_, "apply() takes one value for every element");
  torch_call([&] {
    const torch::NoGradGuard no_grad;
    // LibTorch has no tensors of constants; no optimizer writes to this one.
    const torch::Tensor host =
        torch::from_blob(const_cast<float*>(mean.data()), {static_cast<std::int64_t>(mean.size())}, torch::kFloat32);
    step(host.to(device_), learning_rate);
  });
}

void TorchTrainer::step(const torch::Tensor& mean, double learning_rate) {
  wait_for(device_);
  const auto start = std::chrono::steady_clock::now();
  optimizer_->step(flat_.values(), mean, learning_rate);
  wait_for(device_);
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  for (double& worker : compute_seconds_) worker += seconds;  // each would make this step for itself
}

void TorchTrainer::visit_state(StateVisitor& visitor) {
  torch_call([&] {
    visit_tensor(visitor, "weights", flat_.values());
    for (auto& [name, values] : optimizer_->state()) visit_tensor(visitor, name, values);
    std::int64_t steps = optimizer_->steps();
    visitor.value("optimizer steps", steps);
    optimizer_->set_steps(steps);
    const at::Generator generator = at::detail::getDefaultCPUGenerator();
    torch::Tensor drawn = generator.get_state();
    visit_tensor(visitor, "generator", drawn);
    if (visitor.restores()) at::Generator{generator}.set_state(drawn);
  });
}

void TorchTrainer::visit_replica(std::size_t worker, StateVisitor& visitor) {
  torch_call([&] {
    for (auto& buffer : workers_.at(worker).replica->named_buffers())
      visit_tensor(visitor, buffer.key(), buffer.value());
    if (!diloco()) return;
    Optimizer& own = *workers_[worker].optimizer;
    for (auto& [name, values] : own.state()) visit_tensor(visitor, name, values);
    std::int64_t steps = own.steps();
    visitor.value("optimizer steps", steps);
    own.set_steps(steps);
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
  return on_host(exchanged(workers_.at(worker)), workers_.at(worker).host_gradient);
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
    // No more samples at a time than the training has in memory: those of a large model could be too many.
    const std::size_t most = options_.batch_size / options_.micro_batches;
    const torch::NoGradGuard no_grad;
    Model& model = *workers_.front().replica;
    if (diloco()) workers_.front().weights.copy_(flat_.values());
    model.eval();
    Score score;
    std::int64_t answers = 0;
    count = std::min(count, dataset.size());
    for (std::size_t first = 0; first < count; first += most) {
      std::vector<std::uint32_t> samples(std::min(most, count - first));
      for (std::size_t i = 0; i < samples.size(); ++i) samples[i] = static_cast<std::uint32_t>(first + i);
      const auto [inputs, labels] = batches_.make(dataset, samples, device_);
      const torch::Tensor logits = model.forward(inputs);
      score.loss += cross_entropy(logits, labels).item<double>() * static_cast<double>(labels.numel());
      score.accuracy += logits.argmax(-1).eq(labels).sum().item<double>();
      answers += labels.numel();
    }
    score.loss /= static_cast<double>(answers);
    score.accuracy /= static_cast<double>(answers);
    return score;
  });
}

}  // namespace
}  // namespace gradtool

extern "C" __attribute__((visibility("default"), used)) const char gradtool_torch_stamp[] =
    GRADTOOL_TORCH_STAMP GRADTOOL_VERSION;

extern "C" __attribute__((visibility("default"))) const gradtool::TorchModule* gradtool_torch_module() {
  using namespace gradtool;
  static constexpr TorchModule kModule{[](const TrainerOptions& options, const ModelInput& input,
                                          const Dataset& training_set,
                                          const ChannelStatistics& statistics) -> std::unique_ptr<Trainer> {
    return torch_call([&] { return std::make_unique<TorchTrainer>(options, input, training_set, statistics); });
  }};
  return &kModule;
}
