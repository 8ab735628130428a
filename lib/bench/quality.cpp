#include "lib/bench/quality.hpp"

#include <algorithm>
#include <cstring>

#include "lib/bench/step_loader.hpp"
#include "lib/core/arena.hpp"
#include "lib/reduce/reducer.hpp"

namespace gradtool {
namespace {

constexpr int kSeeds = 30;

struct Sums {
  double energy = 0.0;
  double error = 0.0;     ///< of the first seed
  double bias = 0.0;      ///< sum (mean y - x)^2
  double variance = 0.0;  ///< sum of the unbiased variance of y
};

class UnitProbe {
 public:
  UnitProbe(const Codec<Space::host>& codec, std::size_t n, const SideInputs<Space::host>& side)
      : codec_{codec},
        encoder_{codec.make_encoder(n, 1, {})},
        side_{side},
        plan_{codec.plan(n)},
        arena_{Arena<Space::host>::padded_size(plan_.payload_bytes) +
               Arena<Space::host>::padded_size(plan_.scratch_bytes)},
        payload_{arena_.take_bytes(plan_.payload_bytes)},
        scratch_{arena_.take_bytes(plan_.scratch_bytes)},
        out_(n) {}

  std::span<const float> round_trip(std::span<const float> x, const EncodeContext& context) {
    if (encoder_) {
      encoder_->reset({});
      encoder_->encode({}, {x.data(), x.size()}, side_, context, payload_, scratch_);
    } else {
      codec_.encode({}, {x.data(), x.size()}, context, payload_, scratch_);
    }
    std::uint64_t bytes = plan_.payload_bytes;
    if (!plan_.exact) std::memcpy(&bytes, payload_.data(), sizeof bytes);
    std::fill(out_.begin(), out_.end(), 0.0F);
    codec_.decode_add({}, payload_.first(bytes), 1.0F, {out_.data(), out_.size()}, scratch_);
    return out_;
  }

 private:
  const Codec<Space::host>& codec_;
  std::unique_ptr<Encoder<Space::host>> encoder_;  ///< always in its first step
  SideInputs<Space::host> side_;
  Footprint plan_;
  Arena<Space::host> arena_;
  HostView<std::byte> payload_, scratch_;
  std::vector<float> out_;
};

void probe(const Codec<Space::host>& codec, std::span<const float> x, const SideInputs<Space::host>& side,
           EncodeContext context, int seeds, Sums& sums) {
  UnitProbe unit{codec, x.size(), side};
  std::vector<double> mean(x.size(), 0.0);
  std::vector<double> spread(x.size(), 0.0);  // Welford: sum of squared distances from the running mean
  const std::uint64_t base = context.key.seed;
  for (int seed = 0; seed < seeds; ++seed) {
    context.key.seed = base + static_cast<std::uint64_t>(seed) * 0x9E3779B97F4A7C15ULL;
    const auto y = unit.round_trip(x, context);
    for (std::size_t i = 0; i < x.size(); ++i) {
      const double value = static_cast<double>(y[i]);
      const double before = value - mean[i];
      mean[i] += before / (seed + 1);
      spread[i] += before * (value - mean[i]);
      if (seed > 0) continue;
      const double error = value - static_cast<double>(x[i]);
      sums.error += error * error;
      sums.energy += static_cast<double>(x[i]) * static_cast<double>(x[i]);
    }
  }
  if (seeds < 2) return;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double off = mean[i] - static_cast<double>(x[i]);
    const double variance = spread[i] / (seeds - 1);
    sums.bias += off * off - variance / seeds;  // E (mean - x)^2 = bias^2 + variance / seeds
    sums.variance += variance;
  }
}

}  // namespace

CodecQuality measure_quality(const GradientReader& reader, const std::vector<Unit>& units, const CodecSpec& spec,
                             std::uint64_t seed) {
  const CodecDescriptor& descriptor = *spec.descriptor;
  if (!has_codec(descriptor)) return {};
  std::size_t largest = 0;
  for (const auto& unit : units) largest = std::max(largest, unit.elements);
  StepLoader loader{
      reader, 1, largest, {.weight = descriptor.needs_weight, .second_moment = descriptor.needs_second_moment}};
  Sums sums;
  const int seeds = spec.descriptor->unbiased ? kSeeds : 1;
  for (std::size_t u = 0; u < units.size(); ++u) {
    const auto codec = make_codec<Space::host>(spec, layout_of(units[u], reader.tensors()));
    loader.load(units[u], 0);
    const SideInputs<Space::host> side{.weight = loader.weight(), .second_moment = loader.second_moment(0)};
    const EncodeContext context{.key = {.seed = seed, .tensor = static_cast<std::uint32_t>(u)},
                                .iteration = reader.steps().front().iteration};
    probe(*codec, loader.gradient(0), side, context, seeds, sums);
  }
  CodecQuality quality;
  if (sums.energy <= 0.0) return quality;
  quality.nmse = sums.error / sums.energy;
  if (seeds > 1) {
    quality.bias_nmse = sums.bias / sums.energy;
    quality.variance_nmse = sums.variance / sums.energy;
  }
  return quality;
}

}  // namespace gradtool
