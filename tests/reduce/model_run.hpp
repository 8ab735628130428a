#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "lib/codecs/reducer.hpp"
#include "lib/comm/launch.hpp"
#include "lib/core/allocation_watch.hpp"
#include "lib/core/task_pool.hpp"
#include "tests/codecs/codec_run.hpp"
#include "tests/codecs/inputs.hpp"
#include "tests/reduce/recording.hpp"

namespace gradtool::test {

/// A small network's gradient as one unit: tensors of every kind that methods treat apart.
inline Layout small_model() {
  Layout layout;
  const auto add = [&](std::string name, std::vector<std::int64_t> shape, std::string kind, std::string order) {
    std::size_t elements = 1;
    for (const auto extent : shape) elements *= static_cast<std::size_t>(extent);
    layout.tensors.push_back({.name = std::move(name),
                              .shape = std::move(shape),
                              .kind = std::move(kind),
                              .layout = std::move(order),
                              .first = layout.elements,
                              .elements = elements});
    layout.elements += elements;
  };
  add("conv1.weight", {16, 3, 3, 3}, "conv", "OIHW");
  add("bn1.weight", {16}, "norm", "");
  add("bn1.bias", {16}, "bias", "");
  add("conv2.weight", {16, 16, 3, 3}, "conv", "OIHW");
  add("down.weight", {32, 16, 1, 1}, "conv", "OIHW");
  add("fc.weight", {10, 129}, "linear", "OI");
  add("fc.bias", {10}, "bias", "");
  for (auto& tensor : layout.tensors)
    tensor.depth = static_cast<double>(tensor.first) / static_cast<double>(layout.elements);
  return layout;
}

/// Methods that are reducers of their own: their defaults, and their variants.
inline std::vector<std::string> own_specs() {
  std::vector<std::string> specs;
  for (const auto* codec : codecs()) {
    if (codec->aggregation == Aggregation::own) specs.emplace_back(codec->name);
  }
  for (const auto* codec : codecs()) {
    if (codec->aggregation != Aggregation::own) continue;
    for (auto& variant : variants_of(*codec)) specs.push_back(std::move(variant));
  }
  return specs;
}

/// The results of a run, on every rank and in every step.
struct ModelOutcome {
  explicit ModelOutcome(int ranks)
      : inputs(static_cast<std::size_t>(ranks)),
        gradients(inputs.size()),
        results(inputs.size()),
        messages(inputs.size()),
        residuals(inputs.size()),
        payload(inputs.size()),
        wire(inputs.size()) {}
  /// [rank][step]. `inputs` is what the results should be the mean of: the gradients, or what a method has for a
  /// target.
  std::vector<std::vector<std::vector<float>>> inputs, gradients, results;
  std::vector<std::vector<std::vector<Message>>> messages;  ///< [rank][step]
  std::vector<std::vector<float>> residuals;                ///< [rank], after the last step
  std::vector<std::vector<std::uint64_t>> payload, wire;    ///< [rank][step]
  bool has_common_payloads = false;                         ///< of rank 0, after the last step
  std::uint64_t allocations = 0;                            ///< in all reduces; counted where hooks are linked
  std::string note;
  std::vector<Tally> tallies;
};

using GradientOf = std::function<std::vector<float>(int rank, int step)>;

/// Gradients of a network: correlated over steps and ranks, so that methods that learn have something to learn.
inline std::vector<float> model_gradient(std::size_t n, int rank, int step) {
  const auto common = gradient_like(n, 17);
  const auto drift = gradient_like(n, 1000U + static_cast<std::uint32_t>(step));
  const auto own = gradient_like(n, 5000U + static_cast<std::uint32_t>(100 * step + rank));
  std::vector<float> x(n);
  for (std::size_t i = 0; i < n; ++i) x[i] = common[i] + 0.25F * drift[i] + 0.5F * own[i];
  return x;
}
inline std::vector<float> model_weight(std::size_t n) {
  auto w = gradient_like(n, 77);
  for (auto& value : w) value *= 8.0F;
  return w;
}
/// A second moment as from 4 micro-batches that differ.
inline std::vector<float> model_second_moment(const std::vector<float>& gradient, std::uint32_t seed) {
  const auto noise = gradient_like(gradient.size(), seed);
  std::vector<float> v(gradient.size());
  for (std::size_t i = 0; i < v.size(); ++i) v[i] = 0.25F * gradient[i] * gradient[i] + noise[i] * noise[i];
  return v;
}

struct ModelSetup {
  std::string codec;
  int ranks = 3;
  int steps = 3;
  int threads = 1;
  bool side_inputs = true;
  Scheme scheme = Scheme::automatic;
  Layout layout = small_model();
  GradientOf gradient = nullptr;  ///< model_gradient when null
  int resets_at = -1;             ///< reset before this step
  bool restarts = false;          ///< gradients, draws and schedules begin again at the reset
  int saves_at = -1;              ///< before this step a new reducer takes the place of the old one, with its state
  bool saves_always = false;      ///< the same before every step but the first
  bool loses_state = false;       ///< the new reducer does not get that state
  bool settles = false;           ///< in front of every step; on a GPU only
  AllReduce all_reduce = AllReduce::ring;
  Collective op = Collective::all_reduce;
  bool spares_results = false;  ///< rank 0 alone needs its results
  int node = 1;                 ///< ranks of a machine, of an all-reduce in two levels; 1: in one
  std::string inner = "none";   ///< of two levels: the codec inside machines

  /// The number that a step has for gradients, draws and schedules.
  [[nodiscard]] int numbered(int step) const {
    return restarts && resets_at >= 0 && step >= resets_at ? step - resets_at : step;
  }
};

template <Space S>
std::unique_ptr<Reducer<S>> make_model_reducer(const ModelSetup& setup, Queue<S> queue) {
  const auto spec = parse_codec(setup.codec);
  if (setup.node > 1) {
    return make_levelled_reducer<S>(spec, parse_codec(setup.inner), setup.scheme, setup.layout.elements, Dtype::f32,
                                    setup.ranks, setup.node, queue);
  }
  return make_reducer<S>(spec, make_codec<S>(spec, setup.layout), setup.scheme, setup.layout, setup.ranks, queue,
                         setup.op);
}

inline ModelOutcome run_model(const ModelSetup& setup) {
  ModelOutcome out{setup.ranks};
  const std::size_t n = setup.layout.elements;
  std::vector<std::uint64_t> allocations(out.inputs.size(), 0);
  const auto spec = parse_codec(setup.codec);
  run_threads(setup.ranks, [&](Communicator<Space::host>& threads) {
    threads.set_all_reduce(setup.all_reduce);
    std::vector<Message> messages;
    const auto me = static_cast<std::size_t>(threads.rank());
    TaskPool pool{setup.threads};
    const Queue<Space::host> queue{setup.threads > 1 ? &pool : nullptr};
    const auto make = [&] { return make_model_reducer<Space::host>(setup, queue); };
    auto reducer = make();
    reducer->need_result(!setup.spares_results || me == 0);
    reducer->prepare(threads);
    RecordingCommunicator<Space::host> comm{threads, keep_in(messages)};
    Arena<Space::host> arena{reducer->workspace_bytes()};
    const auto workspace = arena.take_bytes(reducer->workspace_bytes());
    std::memset(workspace.data(), 0xA5, workspace.size());
    NoClock<Space::host> clock;
    const auto weight = model_weight(n);
    for (int step = 0; step < setup.steps; ++step) {
      if (step == setup.resets_at) reducer->reset(queue);
      if (step == setup.saves_at || (setup.saves_always && step > 0)) {
        const auto saved = save_state(*reducer);
        reducer = make();
        if (!setup.loses_state) restore_state(*reducer, saved);
        std::memset(workspace.data(), 0x5A, workspace.size());
      }
      const int number = setup.numbered(step);
      auto x = setup.gradient ? setup.gradient(threads.rank(), number) : model_gradient(n, threads.rank(), number);
      out.inputs[me].push_back(x);
      out.gradients[me].push_back(x);
      const auto moment = model_second_moment(x, 9000U + static_cast<std::uint32_t>(10 * number + threads.rank()));
      SideInputs<Space::host> side;
      if (setup.side_inputs) side = {.weight = {weight.data(), n}, .second_moment = {moment.data(), n}};
      const EncodeContext context{
          .key = {.seed = 9, .step = static_cast<std::uint32_t>(number), .rank = static_cast<std::uint32_t>(me)},
          .iteration = number};
      threads.reset_traffic();
      if (AllocationWatch::active()) {  // the recording allocates, so not while it records
        const AllocationWatch watch;
        reducer->reduce(threads, queue, {x.data(), n}, side, context, workspace, clock);
        allocations[me] += watch.on_this_thread();
      } else {
        messages.clear();
        reducer->reduce(comm, queue, {x.data(), n}, side, context, workspace, clock);
        out.messages[me].push_back(messages);
      }
      const auto result = reducer->result({x.data(), n});
      out.results[me].emplace_back(result.data(), result.data() + n);
      if (!spec.descriptor->target.empty()) {
        const auto target = reducer->target(queue);
        out.inputs[me].back().assign(target.data(), target.data() + target.size());
      }
      out.payload[me].push_back(reducer->payload_bytes());
      out.wire[me].push_back(threads.traffic().bytes_sent);
    }
    const auto residual = reducer->residual();
    out.residuals[me].assign(residual.data(), residual.data() + residual.size());
    if (me != 0) return;
    out.has_common_payloads = !reducer->common_payloads().empty();
    out.note = reducer->note();
    out.tallies = reducer->tallies();
  });
  for (const auto count : allocations) out.allocations += count;
  return out;
}

/// sum (x-y)^2 / sum x^2 for the means over ranks, of one step or of the sums over all steps.
inline double model_nmse(const ModelOutcome& out, int step = -1) {
  const std::size_t n = out.inputs[0][0].size();
  const std::size_t first = step < 0 ? 0 : static_cast<std::size_t>(step);
  const std::size_t last = step < 0 ? out.inputs[0].size() : first + 1;
  double error = 0.0;
  double energy = 0.0;
  for (std::size_t i = 0; i < n; ++i) {
    double x = 0.0;
    double y = 0.0;
    for (std::size_t s = first; s < last; ++s) {
      for (const auto& rank : out.inputs) x += static_cast<double>(rank[s][i]) / static_cast<double>(out.inputs.size());
      y += static_cast<double>(out.results[0][s][i]);
    }
    error += (x - y) * (x - y);
    energy += x * x;
  }
  return energy == 0.0 ? (error == 0.0 ? 0.0 : HUGE_VAL) : error / energy;
}

/// The largest difference, over elements, between what went in and what came out or is still held back: the mean over
/// ranks of all inputs, against the sum of the results plus the mean of the residuals.
inline double largest_loss(const ModelOutcome& out) {
  const auto p = static_cast<double>(out.inputs.size());
  double largest = 0.0;
  for (std::size_t i = 0; i < out.inputs[0][0].size(); ++i) {
    double lost = 0.0;
    for (std::size_t r = 0; r < out.inputs.size(); ++r) {
      for (const auto& step : out.inputs[r]) lost += static_cast<double>(step[i]) / p;
      lost -= static_cast<double>(out.residuals[r][i]) / p;
    }
    for (const auto& step : out.results[0]) lost -= static_cast<double>(step[i]);
    largest = std::max(largest, std::abs(lost));
  }
  return largest;
}

}  // namespace gradtool::test
