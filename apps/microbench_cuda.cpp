#include "apps/microbench_cuda.hpp"

#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include <array>
#include <memory>

#include "apps/microbench_feed.hpp"
#include "kernels/cuda/runtime.hpp"
#include "lib/bench/copy_rate.hpp"
#include "lib/core/error.hpp"

namespace gradtool {
namespace {

using DeviceBytes = View<std::byte, Space::cuda>;

/// Inputs and the output are shared by all codecs.
struct Gradients {
  explicit Gradients(std::size_t elements) : n{elements}, out{4 * elements} {
    // Synthetic values of a few million elements, over and over: more would take the host longer than the GPU.
    const Feed feed = synthetic_feed(std::min<std::size_t>(n, 4U << 20), 0);
    for (auto& input : inputs) {
      input = cuda::DeviceBuffer{4 * n};
      for (std::size_t first = 0; first < n; first += feed.gradient.size()) {
        const std::size_t count = std::min(feed.gradient.size(), n - first);
        cuda::copy(stream.queue(), input.bytes().part(4 * first, 4 * count),
                   as_bytes(HostView<const float>{feed.gradient.data(), count}));
        cuda::synchronize(stream.queue());
      }
    }
    cuda::fill(stream.queue(), out.bytes(), 0);
    cuda::synchronize(stream.queue());
  }
  View<const float, Space::cuda> next() { return inputs[turn++ % inputs.size()].as<const float>(); }

  std::size_t n;
  cuda::Stream stream;
  std::array<cuda::DeviceBuffer, 2> inputs;
  cuda::DeviceBuffer out;
  std::size_t turn = 0;
};

/// One codec with its buffers, shared by its encode and its decode benchmark.
struct DeviceSetup {
  DeviceSetup(const CodecSpec& spec, Gradients& all)
      : gradients{all},
        codec{spec.descriptor->make_cuda(spec.params, Layout::flat(all.n))},
        plan{codec->plan(all.n)},
        payload{plan.payload_bytes},
        scratch{plan.scratch_bytes} {
    encode();
    if (!plan.exact) {
      std::uint64_t stated = 0;
      cuda::copy(queue(), as_writable_bytes(HostView<std::uint64_t>{&stated, 1}), payload.bytes().first(8));
      cuda::synchronize(queue());
      bytes = static_cast<std::size_t>(stated);
    } else {
      bytes = plan.payload_bytes;
    }
  }
  void encode() { codec->encode(queue(), gradients.next(), {}, payload.bytes(), scratch.bytes()); }
  void decode() {
    codec->decode_add(queue(), payload.bytes().first(bytes), 1.0F, gradients.out.as<float>(), scratch.bytes());
  }
  [[nodiscard]] Queue<Space::cuda> queue() const { return gradients.stream.queue(); }

  Gradients& gradients;
  std::unique_ptr<Codec<Space::cuda>> codec;
  Footprint plan;
  cuda::DeviceBuffer payload, scratch;
  std::size_t bytes = 0;
  cuda::Event begin{cuda::Event::Timing::on}, end{cuda::Event::Timing::on};
};

template <class Work>
void measure(benchmark::State& state, DeviceSetup& setup, double traffic, double copy_rate, const Work& work) {
  for (int i = 0; i < 3; ++i) work();
  double seconds = 0.0;
  for ([[maybe_unused]] auto _ : state) {
    setup.begin.record(setup.queue());
    work();
    setup.end.record(setup.queue());
    setup.end.synchronize();
    const double once = cuda::elapsed_seconds(setup.begin, setup.end);
    state.SetIterationTime(once);
    seconds += once;
  }
  const auto times = static_cast<double>(state.iterations());
  const double raw = 4.0 * static_cast<double>(setup.gradients.n);
  using benchmark::Counter;
  state.counters["raw"] = Counter(raw * times / seconds, Counter::kDefaults, Counter::kIs1000);
  state.counters["of_copy"] = Counter(traffic * times / seconds / (2.0 * copy_rate));
  state.counters["payload_ratio"] = Counter(raw / static_cast<double>(std::max<std::size_t>(setup.bytes, 1)));
}

}  // namespace

double register_cuda(const std::vector<CodecSpec>& specs, std::size_t elements) {
  cuda::require_device(0, "gradtool_microbench --device=cuda");
  const double copy_rate = measure_device_copy_rate(0, 4 * elements);
  auto gradients = std::make_shared<Gradients>(elements);
  for (const auto& spec : specs) {
    if (spec.descriptor->make_cuda == nullptr || spec.name() == "noop") continue;
    auto setup = std::make_shared<std::unique_ptr<DeviceSetup>>();  // made when first run, freed after its decode
    const auto get = [setup, gradients, spec]() -> DeviceSetup& {
      if (*setup == nullptr) *setup = std::make_unique<DeviceSetup>(spec, *gradients);
      return **setup;
    };
    const std::string params = spec.params_text();
    const std::string name = fmt::format("cuda/{}{}{}", spec.name(), params.empty() ? "" : ":", params);
    const double raw = 4.0 * static_cast<double>(elements);
    const auto add = [&](const char* what, auto body) {
      benchmark::RegisterBenchmark((name + what).c_str(), body)->UseManualTime()->Unit(benchmark::kMicrosecond);
    };
    add("/encode", [get, raw, copy_rate](benchmark::State& state) {
      DeviceSetup& s = get();
      measure(state, s, raw + static_cast<double>(s.bytes), copy_rate, [&] { s.encode(); });
    });
    // out is read and written.
    add("/decode", [get, setup, raw, copy_rate](benchmark::State& state) {
      DeviceSetup& s = get();
      measure(state, s, 2.0 * raw + static_cast<double>(s.bytes), copy_rate, [&] { s.decode(); });
    });
  }
  return copy_rate;
}

}  // namespace gradtool
