#include "apps/microbench/device_timer.hpp"

#include <algorithm>
#include <string_view>
#include <utility>
#include <vector>

#include "lib/core/error.hpp"
#include "lib/model/statistics.hpp"

namespace gradtool {
namespace {

bool g_once = false;
bool g_failed = false;

}  // namespace

void DeviceTimer::execute_once() {
  g_once = true;
}

DeviceTimer::Times DeviceTimer::time(const std::function<void()>& work, const std::function<void()>& prepare) const {
  struct Sample {
    cuda::Event begin{cuda::Event::Timing::on}, end{cuda::Event::Timing::on};
  };
  std::vector<Sample> samples(1);
  const auto batch = [&](std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) {
      prepare();
      flush_(queue_);
      samples[i].begin.record(queue_);
      work();
      samples[i].end.record(queue_);
    }
    cuda::synchronize(queue_);
    double seconds = 0.0;
    for (std::size_t i = 0; i < count; ++i) seconds += cuda::elapsed_seconds(samples[i].begin, samples[i].end);
    return seconds / static_cast<double>(count);
  };
  // An emulated GPU is no clock either.
  if (g_once || cuda::emulated()) return {batch(1), 0.0};
  batch(1);
  const double once = batch(1);
  constexpr double kBatchSeconds = 0.01;
  constexpr double kMost = 32.0;
  const auto count = static_cast<std::size_t>(std::clamp(kBatchSeconds / once, 3.0, kMost));
  samples.resize(count);
  std::vector<double> means;
  for (int i = 0; i < 5; ++i) means.push_back(batch(count));
  const double median = summarise(means).median;
  const auto [low, high] = std::minmax_element(means.begin(), means.end());
  return {median, (*high - *low) / median};
}

void report(benchmark::State& state, const DeviceTimer::Times& times, double raw, double traffic, double copy_rate) {
  using benchmark::Counter;
  for ([[maybe_unused]] auto _ : state) state.SetIterationTime(times.seconds);
  state.counters["raw"] = Counter(raw / times.seconds, Counter::kDefaults, Counter::kIs1000);
  state.counters["spread"] = times.spread;
  if (traffic > 0.0) state.counters["of_copy"] = traffic / times.seconds / (2.0 * copy_rate);
}

bool failed_on_device() {
  return g_failed;
}

void register_on_device(const std::string& name, std::function<void(benchmark::State&)> body) {
  benchmark::RegisterBenchmark(name.c_str(),
                               [body = std::move(body)](benchmark::State& state) {
                                 try {
                                   body(state);
                                 } catch (const Error& error) {
                                   if (std::string_view{error.what()}.find("out of memory") == std::string_view::npos)
                                     g_failed = true;
                                   state.SkipWithError(error.what());
                                 }
                               })
      ->Iterations(1)
      ->UseManualTime()
      ->Unit(benchmark::kMicrosecond);
}

}  // namespace gradtool
