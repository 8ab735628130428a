#include "lib/codecs/dgc_threshold.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "kernels/host/block_select.hpp"
#include "kernels/host/largest.hpp"
#include "kernels/law/half.hpp"
#include "lib/codecs/payload.hpp"

namespace gradtool {
namespace {

constexpr double kSampled = 0.01;    // share of the elements that the threshold is estimated from
constexpr double kWarmupStages = 4;  // 25 %, 6.25 %, 1.5625 %, 0.4 % on the way to 0.1 %
constexpr std::uint32_t kMagnitude = 0x7fffffffU;

}  // namespace

DgcThreshold::DgcThreshold(const Params& params, const DgcRuns& runs)
    : runs_{runs},
      ratio_{params.real("ratio")},
      scales_{params.is("over", "scale")},
      warmup_{params.integer("warmup")},
      most_kept_{kept(warmup_ > 0 ? std::pow(ratio_, 1.0 / (kWarmupStages + 1.0)) : ratio_)} {
  const std::size_t sampled = most_samples();
  const std::size_t most = law::DgcCorrection::most(most_kept_);
  const auto take = [this](std::size_t size) {
    return std::exchange(places_.bytes, places_.bytes + (size + 63) / 64 * 64);
  };
  places_.select = take(host::BlockSelect::scratch_bytes(runs_.pieces.size()));
  places_.sample = take(4 * sampled);
  places_.sample_places = take(4 * sampled);
  places_.sample_values = take(4 * sampled);
  places_.candidates = take(4 * most);
  places_.candidate_values = take(4 * most);
  places_.largest = take(host::Largest::scratch_bytes(std::max(sampled, most)));
}

std::size_t DgcThreshold::kept(double density) const {
  const auto wanted = static_cast<std::size_t>(std::llround(density * static_cast<double>(runs_.sparse)));
  return std::clamp<std::size_t>(wanted, std::min<std::size_t>(runs_.sparse, 1), runs_.sparse);
}

/// Warm-up: ratio^(1/5), ratio^(2/5), ... in four stages.
double DgcThreshold::density(std::int64_t iteration) const {
  if (iteration >= warmup_) return ratio_;
  const double stage = std::floor(kWarmupStages * static_cast<double>(iteration) / static_cast<double>(warmup_));
  return std::pow(ratio_, (stage + 1.0) / (kWarmupStages + 1.0));
}

/// Every `stride`-th of the elements that compete: 1 %, but enough for two values above the threshold.
DgcThreshold::Samples DgcThreshold::samples(double density) const {
  const double wanted = std::max(kSampled * static_cast<double>(runs_.sparse), 2.0 / std::max(density, 1e-12));
  const auto count =
      static_cast<std::size_t>(std::clamp(wanted, 1.0, static_cast<double>(std::max<std::size_t>(1, runs_.sparse))));
  const std::size_t stride = std::max<std::size_t>(1, runs_.sparse / count);
  return {stride, runs_.sparse / stride + 1};
}

std::size_t DgcThreshold::top(double density, std::size_t taken) {
  const auto wanted = static_cast<std::size_t>(std::ceil(density * static_cast<double>(taken)));
  return std::clamp<std::size_t>(wanted, 1, taken);
}

/// The magnitude that the sample's share `density` reaches, as a pattern.
std::uint32_t DgcThreshold::sampled_threshold(Queue<Space::host> queue, const EncodeContext& context, double density,
                                              const float* v, HostView<std::byte> scratch) const {
  const Samples plan = samples(density);
  auto* sample = section<float>(scratch, places_.sample);
  std::size_t taken = 0;
  std::size_t next = law::draw4(context.key, 0).bits[0] % plan.stride;  // among the elements that compete
  std::size_t before = 0;
  for (const auto& run : runs_.sparse_runs) {
    for (; next < before + run.count; next += plan.stride) sample[taken++] = v[run.first + (next - before)];
    before += run.count;
  }
  const std::size_t wanted = top(density, taken);
  const HostView<std::uint32_t> places{section<std::uint32_t>(scratch, places_.sample_places), wanted};
  auto* values = section<float>(scratch, places_.sample_values);
  const auto bytes = scratch.part(places_.largest, host::Largest::scratch_bytes(taken));
  host::Largest{queue, {sample, taken}, bytes}.select(places, values);
  std::uint32_t threshold = kMagnitude;
  for (std::size_t i = 0; i < wanted; ++i) threshold = std::min(threshold, law::bits_of(values[i]) & kMagnitude);
  return law::DgcCorrection::clamped(threshold);
}

std::size_t DgcThreshold::choose(Queue<Space::host> queue, const EncodeContext& context, const float* v,
                                 const std::uint32_t* maxima, HostView<std::byte> scratch, std::uint32_t* positions,
                                 float* values) const {
  const double now = density(context.iteration);
  const std::size_t k = kept(now);
  host::BlockSelect select{queue, host::Pieces{runs_.pieces.data(), runs_.pieces.size(), runs_.sparse}, v, maxima,
                           scratch.data() + places_.select};
  const std::uint32_t sampled = k == runs_.sparse ? 1U : sampled_threshold(queue, context, now, v, scratch);
  const auto counted = correction(k).settle(sampled, [&](std::uint32_t threshold) { return select.count(threshold); });
  host::BlockSelect::Cut cut{counted.pattern - 1, 0, counted.count};
  if (cut.count > k && !correction(k).many(cut.count)) {  // few too many: cut their list
    auto* candidates = section<std::uint32_t>(scratch, places_.candidates);
    auto* sizes = section<float>(scratch, places_.candidate_values);
    select.collect(cut, candidates, sizes);
    const auto bytes = scratch.part(places_.largest, host::Largest::scratch_bytes(cut.count));
    host::Largest{queue, {sizes, cut.count}, bytes}.select({positions, k}, values);
    for (std::size_t i = 0; i < k; ++i) positions[i] = candidates[positions[i]];
    return k;
  }
  if (cut.count > k) cut = select.largest(k, counted.pattern);
  if (cut.count > 0) select.collect(cut, positions, values);
  return cut.count;
}

}  // namespace gradtool
