// gradtool_microbench: encode and decode of every codec in the registry, on Google Benchmark.
//
// Its own flags are in kHelp; all others are Google Benchmark's. What the benchmarks and their counters mean is in
// microbench.hpp.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <thread>

#if GT_HAS_CUDA
#include "apps/microbench/device_timer.hpp"
#endif
#include "apps/microbench/microbench.hpp"
#include "lib/bench/copy_rate.hpp"
#include "lib/core/error.hpp"
#include "lib/core/text.hpp"

namespace gradtool {
namespace {

constexpr const char* kHelp = R"(Times every codec's encode and decode alone, as a share of memcpy.
Usage: gradtool_microbench [OPTIONS]

Options:
  --file=CAPTURE.h5   Real gradients and tensors instead of synthetic ones
  --elements=N        Elements of the gradient [16M]
  --threads=N         Threads that codecs compute on [all cores]
  --codec=SPEC        A codec as gradtool bench takes it; repeatable
                      [every codec with its defaults]
  --settle=N          Steps that a method between ranks makes before it is
                      measured [104]
  --device=cuda       The codecs' CUDA versions on GPU 0, and beside methods of
                      matrix products and transforms the libraries alone
  --tensors=resnet50  With --device=cuda: a model's tensors one by one, in
                      batches and fused
  --once              With --device=cuda: execute everything once, for a profiler
  --help              This text

Example:
  gradtool_microbench --codec=topk:ratio=0.01 --elements=4M \
      --benchmark_filter=encode

Google Benchmark runs the benchmarks and takes these options beside:
)";

/// Google Benchmark calls this for --help, before it ends the program.
void print_help() {
  fmt::print("{}", kHelp);
  benchmark::PrintDefaultHelp();
}

struct Settings {
  std::string file;
  std::size_t elements = 16U << 20;
  std::size_t settling = 104;  // more than the sampling steps of gradiveq
  int threads = static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
  std::vector<CodecSpec> codecs;
  bool cuda = false;
  bool tensors = false;
  bool once = false;
};

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
    else if (argument == "--once")
      settings.once = true;
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
  if (settings.once) DeviceTimer::execute_once();
  if (settings.tensors) {
    register_cuda_tensors(settings.codecs);
    benchmark::RunSpecifiedBenchmarks();
    benchmark::Shutdown();
    return failed_on_device() ? static_cast<int>(Fault::backend) : 0;
  }
  const double copy_rate = register_cuda(settings.codecs, settings.elements);
  register_cuda_products(settings.codecs, settings.elements, copy_rate);
  register_device_copy(settings.elements);
  benchmark::AddCustomContext("copy_gbps", fmt::format("{:.1f}", copy_rate / 1e9));
  benchmark::AddCustomContext("elements", fmt::format("{}", settings.elements));
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return failed_on_device() ? static_cast<int>(Fault::backend) : 0;
#else
  static_cast<void>(settings);
  throw Error{Fault::unavailable, "--device=cuda: this build has no CUDA"};
#endif
}

int run(int argc, char** argv) {
  const Settings settings = take_flags(argc, argv);
  benchmark::Initialize(&argc, argv, print_help);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return static_cast<int>(Fault::usage);
  if ((settings.tensors || settings.once) && !settings.cuda)
    throw Error{Fault::usage, "--tensors and --once are for --device=cuda: add that"};
  if (settings.cuda) return run_cuda(settings);
  const Layout layout = benchmark_layout(settings.file, settings.elements);
  TaskPool pool{settings.threads};
  const HostSetting setting{.file = settings.file,
                            .elements = settings.elements,
                            .layout = layout,
                            .pool = pool,
                            .copy_rate = measure_copy_rate({&pool}, 4 * settings.elements),
                            .settling = settings.settling};
  benchmark::AddCustomContext("memcpy_gbps", fmt::format("{:.2f}", setting.copy_rate / 1e9));
  benchmark::AddCustomContext("codec_threads", fmt::format("{}", settings.threads));
  benchmark::AddCustomContext("gradients", settings.file.empty() ? "synthetic" : settings.file);
  register_host(settings.codecs, setting);
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
    return exit_status(error.fault());
  }
}
