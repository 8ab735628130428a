// gradtool_microbench: encode and decode of every codec in the registry, on Google Benchmark.
//
// Counters: raw = raw fp32 bytes a second; of_memcpy = raw over memcpy's bytes a second, measured first in the same run
// with the same threads. Flags of its own, before Google Benchmark's: --file=CAPTURE.h5 (real gradients and tensors
// instead of synthetic ones), --elements=N (16 Mi), --threads=N (all cores), --codec=SPEC (repeatable; the defaults of
// all codecs), --settle=N (104): steps that a method between ranks makes before it is measured. With the fft codec
// comes FFTW alone, fftw/forward+inverse. --device=cuda: the codecs' CUDA versions on GPU 0 instead
// (microbench_cuda.hpp), and beside methods of matrix products and transforms the libraries alone
// (microbench_cuda_products.hpp); with --tensors=resnet50 a model's tensors one by one, in batches and fused
// (microbench_tensors.hpp).
#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <memory>
#include <thread>

#include "apps/microbench_feed.hpp"
#if GT_HAS_FFTW
#include "apps/microbench_fftw.hpp"
#endif
#include "apps/microbench_reducers.hpp"
#if GT_HAS_CUDA
#include "apps/microbench_cuda.hpp"
#include "apps/microbench_cuda_products.hpp"
#include "apps/microbench_tensors.hpp"
#endif
#include "lib/bench/copy_rate.hpp"
#include "lib/codecs/registry.hpp"
#include "lib/core/arena.hpp"
#include "lib/core/error.hpp"
#include "lib/core/task_pool.hpp"
#include "lib/core/text.hpp"

namespace gradtool {
namespace {

struct Settings {
  std::string file;
  std::size_t elements = 16U << 20;
  std::size_t settling = 104;  // more than the sampling steps of gradiveq
  int threads = static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
  std::vector<CodecSpec> codecs;
  bool cuda = false;
  bool tensors = false;
};

/// A capture starts each turn at another step, so that codecs with a memory see what they see in training.
class Feeds {
 public:
  static constexpr std::size_t kTurns = 4;
  explicit Feeds(const Settings& settings) : settings_{settings} {}
  /// Made when first asked for: only codecs with a memory go beyond turn 0.
  const Feed& turn(std::size_t t) {
    while (feeds_.size() <= t) {
      feeds_.push_back(settings_.file.empty()
                           ? synthetic_feed(settings_.elements, static_cast<std::uint32_t>(feeds_.size()))
                           : captured_feed(settings_.file, settings_.elements, feeds_.size()));
    }
    return feeds_[t];
  }

 private:
  const Settings& settings_;
  std::deque<Feed> feeds_;  // references stay valid
};

/// One codec with its buffers, shared by its encode and its decode benchmark.
struct Setup {
  Setup(const CodecSpec& spec, Feeds& all, const Layout& layout, TaskPool& workers)
      : feeds{all},
        codec{spec.descriptor->make_host(spec.params, layout)},
        encoder{codec->make_encoder(layout.elements, 1, {&workers})},
        plan{codec->plan(layout.elements)},
        pool{workers},
        arena{Arena<Space::host>::padded_size(plan.payload_bytes) +
              Arena<Space::host>::padded_size(plan.scratch_bytes)},
        payload{arena.take_bytes(plan.payload_bytes)},
        scratch{arena.take_bytes(plan.scratch_bytes)},
        out(layout.elements) {
    for (std::size_t t = 0; t < (encoder ? 2 * Feeds::kTurns : 1); ++t) encode();
  }
  void encode() {
    const Feed& feed = feeds.turn(encoder ? turn++ % Feeds::kTurns : 0);
    const HostView<const float> gradient{feed.gradient.data(), feed.gradient.size()};
    if (encoder == nullptr) {
      codec->encode({&pool}, gradient, {}, payload, scratch);
      return;
    }
    const SideInputs<Space::host> side{.weight = {feed.weight.data(), feed.weight.size()},
                                       .second_moment = {feed.second_moment.data(), feed.second_moment.size()}};
    encoder->encode({&pool}, gradient, side, {.key = {.step = static_cast<std::uint32_t>(turn)}}, payload, scratch);
  }
  /// The payload of the last encode; codecs with a memory write another one each time.
  void decode() {
    std::uint64_t bytes = plan.payload_bytes;
    if (!plan.exact) std::memcpy(&bytes, payload.data(), sizeof bytes);
    codec->decode_add({&pool}, payload.first(bytes), 1.0F, {out.data(), out.size()}, scratch);
  }

  Feeds& feeds;
  std::size_t turn = 0;
  std::unique_ptr<Codec<Space::host>> codec;
  std::unique_ptr<Encoder<Space::host>> encoder;
  Footprint plan;
  TaskPool& pool;
  Arena<Space::host> arena;
  HostView<std::byte> payload, scratch;
  std::vector<float> out;
};

void count(benchmark::State& state, std::size_t elements, double copy_rate) {
  const double raw = 4.0 * static_cast<double>(elements) * static_cast<double>(state.iterations());
  state.counters["raw"] = benchmark::Counter(raw, benchmark::Counter::kIsRate, benchmark::Counter::kIs1000);
  state.counters["of_memcpy"] = benchmark::Counter(raw / copy_rate, benchmark::Counter::kIsRate);
}

void register_codec(const CodecSpec& spec, Feeds& feeds, const Layout& layout, TaskPool& pool, double copy_rate) {
  const std::size_t n = layout.elements;
  auto setup = std::make_shared<std::unique_ptr<Setup>>();  // made when first run, so that a filter costs nothing
  const auto get = [setup, &spec, &feeds, &layout, &pool]() -> Setup& {
    if (*setup == nullptr) *setup = std::make_unique<Setup>(spec, feeds, layout, pool);
    return **setup;
  };
  const std::string params = spec.params_text();
  const std::string name = spec.name() + (params.empty() ? "" : ":" + params);
  benchmark::RegisterBenchmark((name + "/encode").c_str(),
                               [get, n, copy_rate](benchmark::State& state) {
                                 Setup& s = get();
                                 for ([[maybe_unused]] auto _ : state) s.encode();
                                 count(state, n, copy_rate);
                               })
      ->UseRealTime()
      ->Unit(benchmark::kMillisecond);
  benchmark::RegisterBenchmark((name + "/decode").c_str(),
                               [get, setup, n, copy_rate](benchmark::State& state) {
                                 Setup& s = get();
                                 for ([[maybe_unused]] auto _ : state) s.decode();
                                 count(state, n, copy_rate);
                                 benchmark::ClobberMemory();
                               })
      ->UseRealTime()
      ->Unit(benchmark::kMillisecond);
}

Settings take_flags(int& argc, char** argv) {
  Settings settings;
  int kept = 1;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    const auto value = [&](const char* flag) { return argument.substr(std::strlen(flag)); };
    if (argument.starts_with("--file="))
      settings.file = value("--file=");
    else if (argument.starts_with("--elements="))
      settings.elements = parse_bytes(value("--elements="), "--elements");
    else if (argument.starts_with("--threads="))
      settings.threads = static_cast<int>(parse_bytes(value("--threads="), "--threads"));
    else if (argument.starts_with("--settle="))
      settings.settling = parse_bytes(value("--settle="), "--settle");
    else if (argument == "--device=cuda")
      settings.cuda = true;
    else if (argument == "--tensors=resnet50")
      settings.tensors = true;
    else if (argument.starts_with("--codec="))
      settings.codecs.push_back(parse_codec(value("--codec=")));
    else
      argv[kept++] = argv[i];
  }
  argc = kept;
  if (settings.codecs.empty()) settings.codecs = all_codecs();
  return settings;
}

int run_cuda(const Settings& settings) {
#if GT_HAS_CUDA
  if (settings.tensors) {
    register_cuda_tensors(settings.codecs);
    benchmark::RunSpecifiedBenchmarks();
    benchmark::Shutdown();
    return 0;
  }
  const double copy_rate = register_cuda(settings.codecs, settings.elements);
  register_cuda_products(settings.codecs, settings.elements, copy_rate);
  benchmark::AddCustomContext("copy_gbps", fmt::format("{:.1f}", copy_rate / 1e9));
  benchmark::AddCustomContext("elements", fmt::format("{}", settings.elements));
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
#else
  static_cast<void>(settings);
  throw Error{Fault::unavailable, "--device=cuda: this build has no CUDA"};
#endif
}

int run(int argc, char** argv) {
  const Settings settings = take_flags(argc, argv);
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return static_cast<int>(Fault::usage);
  if (settings.tensors && !settings.cuda) throw Error{Fault::usage, "--tensors is for --device=cuda: add that"};
  if (settings.cuda) return run_cuda(settings);
  Feeds feeds{settings};
  const Layout layout = benchmark_layout(settings.file, settings.elements);
  TaskPool pool{settings.threads};
  // Of the same size, so that caches help memcpy as much as they help a codec.
  const double copy_rate = measure_copy_rate({&pool}, 4 * settings.elements);
  benchmark::AddCustomContext("memcpy_gbps", fmt::format("{:.2f}", copy_rate / 1e9));
  benchmark::AddCustomContext("codec_threads", fmt::format("{}", settings.threads));
  benchmark::AddCustomContext("gradients", settings.file.empty() ? "synthetic" : settings.file);
  for (const auto& spec : settings.codecs) {
    if (has_codec(*spec.descriptor))
      register_codec(spec, feeds, layout, pool, copy_rate);
    else
      register_reducer({spec, feeds.turn(0), layout, pool, copy_rate, settings.settling});
  }
#if GT_HAS_FFTW
  const auto is_fft = [](const CodecSpec& spec) { return spec.name() == "fft"; };
  if (std::any_of(settings.codecs.begin(), settings.codecs.end(), is_fft)) {
    register_fftw(feeds.turn(0).gradient, pool,
                  [&](benchmark::State& state) { count(state, settings.elements, copy_rate); });
  }
#endif
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}

}  // namespace
}  // namespace gradtool

int main(int argc, char** argv) {
  try {
    return gradtool::run(argc, argv);
  } catch (const gradtool::Error& error) {
    fmt::print(stderr, "gradtool_microbench: {}\n", error.what());
    return static_cast<int>(error.fault());
  }
}
