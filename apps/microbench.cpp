// gradtool_microbench: encode and decode of every codec in the registry, on Google Benchmark.
//
// Counters: raw = raw fp32 bytes a second; of_memcpy = raw over memcpy's bytes a second, measured first in the same run
// with the same threads. Flags of its own, before Google Benchmark's: --file=CAPTURE.h5 (real gradients instead of
// synthetic ones), --elements=N (16 Mi), --threads=N (all cores), --codec=SPEC (repeatable; the defaults of all
// codecs).
#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include <cmath>
#include <cstring>
#include <memory>
#include <thread>

#include "kernels/law/philox.hpp"
#include "lib/bench/copy_rate.hpp"
#include "lib/codecs/registry.hpp"
#include "lib/core/arena.hpp"
#include "lib/core/error.hpp"
#include "lib/core/task_pool.hpp"
#include "lib/core/text.hpp"
#include "lib/io/gradient_file.hpp"

namespace gradtool {
namespace {

struct Settings {
  std::string file;
  std::size_t elements = 16U << 20;
  int threads = static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
  std::vector<CodecSpec> codecs;
};

/// Heavy-tailed values of both signs, about 1e-3: the product of a bell and a lognormal, like a real gradient.
std::vector<float> synthetic(std::size_t n) {
  std::vector<float> x(n);
  for (std::size_t i = 0; i < n; ++i) {
    const auto draws = law::draw4({.seed = 1}, i);
    const float bell = law::uniform(draws.bits[0]) + law::uniform(draws.bits[1]) + law::uniform(draws.bits[2]) - 1.5F;
    x[i] = 1e-3F * bell * std::exp(2.0F * law::uniform(draws.bits[3]) - 1.0F);
  }
  return x;
}

/// The gradients of a capture, worker after worker, step after step, repeated until n are there.
std::vector<float> captured(const std::string& path, std::size_t n) {
  const GradientReader reader{path};
  std::vector<float> x;
  x.reserve(n);
  std::vector<float> tensor;
  for (std::size_t round = 0; x.size() < n; ++round) {
    const std::size_t step = round / reader.workers() % reader.steps().size();
    for (std::size_t t = 0; t < reader.tensors().size() && x.size() < n; ++t) {
      tensor.resize(reader.tensors()[t].elements);
      reader.read_gradient(t, step, round % reader.workers(), tensor);
      x.insert(x.end(), tensor.begin(),
               tensor.begin() + static_cast<std::ptrdiff_t>(std::min(tensor.size(), n - x.size())));
    }
  }
  return x;
}

/// One codec with its buffers, shared by its encode and its decode benchmark.
struct Setup {
  Setup(const CodecSpec& spec, const std::vector<float>& x, TaskPool& workers)
      : gradient{x},
        codec{spec.descriptor->make_host(spec.params, Layout::flat(x.size()))},
        encoder{codec->make_encoder(x.size(), 1, {&workers})},
        plan{codec->plan(x.size())},
        pool{workers},
        arena{Arena<Space::host>::padded_size(plan.payload_bytes) +
              Arena<Space::host>::padded_size(plan.scratch_bytes)},
        payload{arena.take_bytes(plan.payload_bytes)},
        scratch{arena.take_bytes(plan.scratch_bytes)},
        out(x.size()) {
    encode();
  }
  void encode() const {
    if (encoder)
      encoder->encode({&pool}, {gradient.data(), gradient.size()}, {}, {}, payload, scratch);
    else
      codec->encode({&pool}, {gradient.data(), gradient.size()}, {}, payload, scratch);
  }
  /// The payload of the last encode; codecs with a memory write another one each time.
  void decode() {
    std::uint64_t bytes = plan.payload_bytes;
    if (!plan.exact) std::memcpy(&bytes, payload.data(), sizeof bytes);
    codec->decode_add({&pool}, payload.first(bytes), 1.0F, {out.data(), out.size()}, scratch);
  }

  const std::vector<float>& gradient;
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

void register_codec(const CodecSpec& spec, const std::vector<float>& x, TaskPool& pool, double copy_rate) {
  auto setup = std::make_shared<std::unique_ptr<Setup>>();  // made when first run, so that a filter costs nothing
  const auto get = [setup, &spec, &x, &pool]() -> Setup& {
    if (*setup == nullptr) *setup = std::make_unique<Setup>(spec, x, pool);
    return **setup;
  };
  const std::string params = spec.params_text();
  const std::string name = spec.name() + (params.empty() ? "" : ":" + params);
  benchmark::RegisterBenchmark((name + "/encode").c_str(),
                               [get, &x, copy_rate](benchmark::State& state) {
                                 Setup& s = get();
                                 for ([[maybe_unused]] auto _ : state) s.encode();
                                 count(state, x.size(), copy_rate);
                               })
      ->UseRealTime()
      ->Unit(benchmark::kMillisecond);
  benchmark::RegisterBenchmark((name + "/decode").c_str(),
                               [get, setup, &x, copy_rate](benchmark::State& state) {
                                 Setup& s = get();
                                 for ([[maybe_unused]] auto _ : state) s.decode();
                                 count(state, x.size(), copy_rate);
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
    else if (argument.starts_with("--codec="))
      settings.codecs.push_back(parse_codec(value("--codec=")));
    else
      argv[kept++] = argv[i];
  }
  argc = kept;
  if (settings.codecs.empty()) settings.codecs = all_codecs();
  return settings;
}

int run(int argc, char** argv) {
  const Settings settings = take_flags(argc, argv);
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return static_cast<int>(Fault::usage);
  const std::vector<float> x =
      settings.file.empty() ? synthetic(settings.elements) : captured(settings.file, settings.elements);
  TaskPool pool{settings.threads};
  // Of the same size, so that caches help memcpy as much as they help a codec.
  const double copy_rate = measure_copy_rate({&pool}, 4 * x.size());
  benchmark::AddCustomContext("memcpy_gbps", fmt::format("{:.2f}", copy_rate / 1e9));
  benchmark::AddCustomContext("codec_threads", fmt::format("{}", settings.threads));
  benchmark::AddCustomContext("gradients", settings.file.empty() ? "synthetic" : settings.file);
  for (const auto& spec : settings.codecs) {
    if (has_codec(*spec.descriptor)) register_codec(spec, x, pool, copy_rate);
  }
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
