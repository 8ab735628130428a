#include "apps/microbench_reducers.hpp"

#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <memory>

#include "kernels/host/blas.hpp"
#include "lib/bench/units.hpp"
#include "lib/comm/threads.hpp"
#include "lib/core/arena.hpp"
#include "lib/reduce/gradiveq_layers.hpp"
#include "lib/reduce/reducer.hpp"

namespace gradtool {
namespace {

TensorShape tensor(std::vector<std::int64_t> shape, std::string kind) {
  std::size_t elements = 1;
  for (const auto extent : shape) elements *= static_cast<std::size_t>(extent);
  return {.shape = std::move(shape), .kind = std::move(kind), .layout = "OIHW", .elements = elements};
}

std::vector<TensorShape> resnet20() {
  std::vector<TensorShape> tensors;
  const auto add = [&](std::int64_t out, std::int64_t in) {
    tensors.push_back(tensor({out, in, 3, 3}, "conv"));
    tensors.push_back(tensor({out}, "norm"));
    tensors.push_back(tensor({out}, "bias"));
  };
  add(16, 3);
  for (const std::int64_t width : {16, 32, 64}) {
    for (int i = 0; i < 6; ++i) add(width, i == 0 && width > 16 ? width / 2 : width);
  }
  tensors.push_back(tensor({10, 64}, "linear"));
  tensors.push_back(tensor({10}, "bias"));
  return tensors;
}

/// Seconds of each phase since the last `clear`.
class Stopwatch final : public PhaseClock<Space::host> {
 public:
  void begin(Phase /*phase*/, Queue<Space::host> /*queue*/) override { start_ = std::chrono::steady_clock::now(); }
  void end(Phase phase, Queue<Space::host> /*queue*/) override {
    const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - start_;
    seconds_[static_cast<std::size_t>(phase)] += passed.count();
  }
  void clear() { seconds_ = {}; }
  [[nodiscard]] double seconds(Phase phase) const { return seconds_[static_cast<std::size_t>(phase)]; }

 private:
  std::chrono::steady_clock::time_point start_{};
  std::array<double, 3> seconds_{};
};

/// One rank that reduces alone.
class OneRank {
 public:
  explicit OneRank(const ReducerBenchmark& given)
      : feed_{given.feed},
        queue_{&given.pool},
        reducer_{make_reducer<Space::host>(given.spec, make_codec<Space::host>(given.spec, given.layout),
                                           Scheme::automatic, given.layout, 1, queue_)},
        arena_{Arena<Space::host>::padded_size(reducer_->workspace_bytes())},
        workspace_{arena_.take_bytes(reducer_->workspace_bytes())},
        gradient_(feed_.gradient.size()) {
    for (std::size_t i = 0; i < given.settling; ++i) step();
  }

  /// Every step has the gradient turned by some elements, so that methods that learn see variance.
  void step() {
    const auto& x = feed_.gradient;
    const auto turn = static_cast<std::ptrdiff_t>(977 * ++steps_ % x.size());
    std::rotate_copy(x.begin(), x.begin() + turn, x.end(), gradient_.begin());
    clock_.clear();
    const EncodeContext context{.key = {.seed = 1, .step = static_cast<std::uint32_t>(steps_)},
                                .iteration = static_cast<std::int64_t>(steps_)};
    const SideInputs<Space::host> side{.weight = {feed_.weight.data(), feed_.weight.size()},
                                       .second_moment = {feed_.second_moment.data(), feed_.second_moment.size()}};
    reducer_->reduce(comm_, queue_, {gradient_.data(), gradient_.size()}, side, context, workspace_, clock_);
  }
  [[nodiscard]] double seconds(Phase phase) const { return clock_.seconds(phase); }
  [[nodiscard]] std::uint64_t payload_bytes() const { return reducer_->payload_bytes(); }

 private:
  const Feed& feed_;
  Queue<Space::host> queue_;
  std::unique_ptr<Reducer<Space::host>> reducer_;
  Arena<Space::host> arena_;
  HostView<std::byte> workspace_;
  std::vector<float> gradient_;
  RankGroup group_{1, 60.0};
  ThreadsCommunicator comm_{group_, 0};
  Stopwatch clock_;
  std::size_t steps_ = 0;
};

/// Steps that are measured: a number, because a phase may take no time at all.
constexpr int kSteps = 16;

void count(benchmark::State& state, const ReducerBenchmark& given) {
  const double raw = 4.0 * static_cast<double>(given.layout.elements) * static_cast<double>(state.iterations());
  state.counters["raw"] = benchmark::Counter(raw, benchmark::Counter::kIsRate, benchmark::Counter::kIs1000);
  state.counters["of_memcpy"] = benchmark::Counter(raw / given.copy_rate, benchmark::Counter::kIsRate);
}

/// The products of a compressed step as SGEMM sees them, layer by layer, with as many components as there can be.
class GradiVeqProducts {
 public:
  explicit GradiVeqProducts(const ReducerBenchmark& given)
      : pool_{given.pool}, layers_{gradiveq::layers_of(given.layout, given.spec.params)} {
    const auto most = static_cast<std::size_t>(given.spec.params.integer("lt")) - 1;
    for (const auto& layer : layers_) {
      const std::size_t k = layer.coordinates();
      components_.push_back(std::min(most, k));
      bases_.emplace_back(k * components_.back(), 0.01F);
      slices_.emplace_back(layer.sliced(), 0.01F);
      coefficients_.emplace_back(layer.slices * components_.back(), 0.01F);
    }
  }
  void project() {
    parallel_parts({&pool_}, layers_.size(), layers_.size(), 1, [&](std::size_t l, std::size_t, std::size_t) {
      host::multiply_transposed(bases_[l].data(), slices_[l].data(), components_[l], layers_[l].coordinates(),
                                layers_[l].slices, coefficients_[l].data());
    });
  }
  void rebuild() {
    parallel_parts({&pool_}, layers_.size(), layers_.size(), 1, [&](std::size_t l, std::size_t, std::size_t) {
      host::multiply(coefficients_[l].data(), bases_[l].data(), layers_[l].slices, components_[l],
                     layers_[l].coordinates(), slices_[l].data());
    });
  }

 private:
  TaskPool& pool_;
  std::vector<gradiveq::Layer> layers_;
  std::vector<std::size_t> components_;
  std::vector<std::vector<float>> bases_, slices_, coefficients_;
};

/// Made when first run, so that a filter costs nothing.
template <class T>
auto later(const ReducerBenchmark& given) {
  return [given, made = std::make_shared<std::unique_ptr<T>>()]() -> T& {
    if (*made == nullptr) *made = std::make_unique<T>(given);
    return **made;
  };
}

}  // namespace

Layout benchmark_layout(const std::string& file, std::size_t n) {
  std::vector<TensorShape> tensors = resnet20();
  if (!file.empty()) {
    tensors.clear();
    const GradientReader reader{file};
    for (const auto& info : reader.tensors())
      tensors.push_back({.shape = info.shape, .kind = info.kind, .layout = info.layout, .elements = info.elements});
  }
  Layout layout;
  const auto add = [&](TensorShape one) {
    one.first = layout.elements;
    layout.elements += one.elements;
    layout.tensors.push_back(std::move(one));
  };
  for (std::size_t t = 0; layout.elements + tensors[t].elements <= n; t = (t + 1) % tensors.size()) add(tensors[t]);
  if (layout.elements < n) add(tensor({static_cast<std::int64_t>(n - layout.elements)}, "other"));
  return layout;
}

void register_reducer(const ReducerBenchmark& given) {
  const std::string params = given.spec.params_text();
  const std::string name = given.spec.name() + (params.empty() ? "" : ":" + params);
  const auto rank = later<OneRank>(given);
  for (const auto& [phase, word] : {std::pair{Phase::encode, "/encode"}, {Phase::decode, "/decode"}}) {
    benchmark::RegisterBenchmark((name + word).c_str(),
                                 [rank, given, phase = phase](benchmark::State& state) {
                                   OneRank& one = rank();
                                   for ([[maybe_unused]] auto _ : state) {
                                     one.step();
                                     state.SetIterationTime(one.seconds(phase));
                                   }
                                   count(state, given);
                                   state.counters["payload_ratio"] =
                                       4.0 * static_cast<double>(given.layout.elements) /
                                       static_cast<double>(std::max<std::uint64_t>(one.payload_bytes(), 1));
                                 })
        ->UseManualTime()
        ->Iterations(kSteps)
        ->Unit(benchmark::kMillisecond);
  }
  if (given.spec.name() != "gradiveq") return;
  const auto products = later<GradiVeqProducts>(given);
  const auto add = [&](const char* word, auto&& work) {
    benchmark::RegisterBenchmark((std::string{"gradiveq_products_by_blas"} + word).c_str(),
                                 [products, given, work](benchmark::State& state) {
                                   GradiVeqProducts& made = products();
                                   for ([[maybe_unused]] auto _ : state) work(made);
                                   count(state, given);
                                 })
        ->UseRealTime()
        ->Unit(benchmark::kMillisecond);
  };
  add("/encode", [](GradiVeqProducts& by_blas) { by_blas.project(); });
  add("/decode", [](GradiVeqProducts& by_blas) { by_blas.rebuild(); });
}

}  // namespace gradtool
