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
constexpr float kRaise = 1.3F;       // a threshold that lets more than 1.3 k pass is too low,
constexpr float kLower = 0.8F;       // one that lets less than 0.8 k pass too high
constexpr int kTries = 10;           // corrections of the threshold
constexpr double kWarmupStages = 4;  // 25 %, 6.25 %, 1.5625 %, 0.4 % on the way to 0.1 %
constexpr std::uint32_t kMagnitude = 0x7fffffffU;
constexpr std::uint32_t kInfinity = 0x7f800000U;

/// 1.3 k.
std::size_t raised(std::size_t k) {
  return static_cast<std::size_t>(static_cast<double>(kRaise) * static_cast<double>(k));
}

}  // namespace

DgcThreshold::DgcThreshold(const Params& params, const DgcRuns& runs)
    : runs_{runs},
      ratio_{params.real("ratio")},
      scales_{params.is("over", "scale")},
      warmup_{params.integer("warmup")},
      most_kept_{kept(warmup_ > 0 ? std::pow(ratio_, 1.0 / (kWarmupStages + 1.0)) : ratio_)} {
  const std::size_t sampled = std::max(samples(ratio_).count, samples(density(0)).count);
  const auto take = [this](std::size_t size) {
    return std::exchange(places_.bytes, places_.bytes + (size + 63) / 64 * 64);
  };
  places_.select = take(host::BlockSelect::scratch_bytes(runs_.pieces.size()));
  places_.sample = take(4 * sampled);
  places_.sample_places = take(4 * sampled);
  places_.sample_values = take(4 * sampled);
  places_.candidates = take(4 * raised(most_kept_));
  places_.candidate_values = take(4 * raised(most_kept_));
  places_.largest = take(host::Largest::scratch_bytes(std::max(sampled, raised(most_kept_))));
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

/// The magnitude that the sample's share `density` reaches, as a pattern; at least that of the smallest number, so
/// that zeros are never sent, and at most infinity, so that NaNs are.
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
  const auto wanted = static_cast<std::size_t>(std::ceil(density * static_cast<double>(taken)));
  const std::size_t top = std::clamp<std::size_t>(wanted, 1, taken);
  const HostView<std::uint32_t> places{section<std::uint32_t>(scratch, places_.sample_places), top};
  auto* values = section<float>(scratch, places_.sample_values);
  const auto bytes = scratch.part(places_.largest, host::Largest::scratch_bytes(taken));
  host::Largest{queue, {sample, taken}, bytes}.select(places, values);
  std::uint32_t threshold = kMagnitude;
  for (std::size_t i = 0; i < top; ++i) threshold = std::min(threshold, law::bits_of(values[i]) & kMagnitude);
  return std::clamp(threshold, 1U, kInfinity);
}

std::size_t DgcThreshold::choose(Queue<Space::host> queue, const EncodeContext& context, const float* v,
                                 const std::uint32_t* maxima, HostView<std::byte> scratch, std::uint32_t* positions,
                                 float* values) const {
  const double now = density(context.iteration);
  const std::size_t k = kept(now);
  const std::size_t most = raised(k);
  host::BlockSelect select{queue, host::Pieces{runs_.pieces.data(), runs_.pieces.size(), runs_.sparse}, v, maxima,
                           scratch.data() + places_.select};
  std::uint32_t threshold = k == runs_.sparse ? 1U : sampled_threshold(queue, context, now, v, scratch);
  auto cut = select.at_least(threshold);
  for (int tries = 0; tries < kTries; ++tries) {
    const bool many = cut.count > most;
    if (many && !scales_) break;  // the exact cut below
    if (!many && static_cast<double>(cut.count) >= static_cast<double>(kLower) * static_cast<double>(k)) break;
    const float moved = law::float_of(threshold) * (many ? kRaise : kLower);
    const std::uint32_t next = std::clamp(law::bits_of(moved), 1U, kInfinity);
    if (next == threshold) break;
    const auto other = select.at_least(next);
    if (many && static_cast<double>(other.count) < static_cast<double>(kLower) * static_cast<double>(k))
      break;  // nothing lies between: the exact cut of the too many
    threshold = next;
    cut = other;
  }
  if (cut.count > k && cut.count <= most) {  // few too many: cut their list
    auto* candidates = section<std::uint32_t>(scratch, places_.candidates);
    auto* sizes = section<float>(scratch, places_.candidate_values);
    select.collect(cut, candidates, sizes);
    const auto bytes = scratch.part(places_.largest, host::Largest::scratch_bytes(cut.count));
    host::Largest{queue, {sizes, cut.count}, bytes}.select({positions, k}, values);
    for (std::size_t i = 0; i < k; ++i) positions[i] = candidates[positions[i]];
    return k;
  }
  if (cut.count > k) cut = select.largest(k, threshold);
  if (cut.count > 0) select.collect(cut, positions, values);
  return cut.count;
}

}  // namespace gradtool
