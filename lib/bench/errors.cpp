#include "lib/bench/errors.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <numeric>

#include "kernels/float_bits.hpp"
#include "lib/codecs/reducer.hpp"
#include "lib/core/arena.hpp"

namespace gradtool {
namespace {

constexpr int kSeeds = 30;

struct Sums {
  double energy = 0.0;
  double error = 0.0;         ///< of the first seed
  double seeds_energy = 0.0;  ///< of the elements that several seeds were tried on
  double bias = 0.0;          ///< of these, sum (mean y - x)^2
  double variance = 0.0;      ///< of these, sum of the unbiased variance of y
};

class UnitProbe {
 public:
  UnitProbe(const Codec<Space::host>& codec, std::size_t n, const SideInputs<Space::host>& side)
      : codec_{codec},
        encoder_{codec.make_encoder(n, 1, {})},
        side_{side},
        plan_{codec.plan(n)},
        arena_{Arena<Space::host>::padded_size(plan_.payload_bytes) +
               Arena<Space::host>::padded_size(plan_.scratch_bytes) + Arena<Space::host>::padded_size(4 * n)},
        payload_{arena_.take_bytes(plan_.payload_bytes)},
        scratch_{arena_.take_bytes(plan_.scratch_bytes)},
        out_{arena_.take<float>(n)} {}

  std::span<const float> round_trip(std::span<const float> x, const EncodeContext& context) {
    if (encoder_) {
      encoder_->reset({});
      encoder_->encode({}, {x.data(), x.size()}, side_, context, payload_, scratch_);
    } else {
      codec_.encode({}, {x.data(), x.size()}, context, payload_, scratch_);
    }
    std::uint64_t bytes = plan_.payload_bytes;
    if (!plan_.exact) std::memcpy(&bytes, payload_.data(), sizeof bytes);
    std::fill_n(out_.data(), out_.size(), 0.0F);
    codec_.decode_add({}, payload_.first(bytes), 1.0F, out_, scratch_);
    return out_.span();
  }

 private:
  const Codec<Space::host>& codec_;
  std::unique_ptr<Encoder<Space::host>> encoder_;  ///< always in its first step
  SideInputs<Space::host> side_;
  Footprint plan_;
  Arena<Space::host> arena_;
  HostView<std::byte> payload_, scratch_;
  HostView<float> out_;
};

/// Adds (y - x)^2 and x^2 up in lanes, and (y - x) of each element to `off` unless that is null.
GT_SIMD_CLONES void add_errors(std::span<const float> x, const float* y, double* off, double& error, double& energy) {
  constexpr std::size_t kLanes = 8;
  std::array<double, kLanes> errors{}, energies{};
  const auto add = [&](std::size_t i, std::size_t lane) {
    const double exact = static_cast<double>(x[i]);
    const double difference = static_cast<double>(y[i]) - exact;
    errors[lane] += difference * difference;
    energies[lane] += exact * exact;
    if (off != nullptr) off[i] += difference;
  };
  std::size_t i = 0;
  for (; i + kLanes <= x.size(); i += kLanes) {
    for (std::size_t lane = 0; lane < kLanes; ++lane) add(i + lane, lane);
  }
  for (; i < x.size(); ++i) add(i, 0);
  error += std::accumulate(errors.begin(), errors.end(), 0.0);
  energy += std::accumulate(energies.begin(), energies.end(), 0.0);
}

/// One encode, or `seeds` of them. Of S seeds with differences d to x the mean is x + b, b = sum d / S, and the
/// variance (sum d^2 - S b^2) / (S - 1), of which only sum d is kept for each element.
void probe(const Codec<Space::host>& codec, std::span<const float> x, const SideInputs<Space::host>& side,
           EncodeContext context, int seeds, Sums& sums) {
  UnitProbe unit{codec, x.size(), side};
  const bool several = seeds > 1;
  Arena<Space::host> arena{several ? sizeof(double) * x.size() : 0};
  const auto off = arena.take<double>(several ? x.size() : 0).span();
  std::fill(off.begin(), off.end(), 0.0);
  const std::uint64_t base = context.key.seed;
  double squares = 0.0, energy = 0.0, of_seeds = 0.0;  // `energy` counts each seed
  for (int seed = 0; seed < seeds; ++seed) {
    context.key.seed = base + static_cast<std::uint64_t>(seed) * 0x9E3779B97F4A7C15ULL;
    const auto y = unit.round_trip(x, context);
    add_errors(x, y.data(), several ? off.data() : nullptr, squares, energy);
    if (seed == 0) sums.error += squares, sums.energy += energy, of_seeds = energy;
  }
  if (!several) return;
  const double bias = std::inner_product(off.begin(), off.end(), off.begin(), 0.0) / seeds / seeds;
  const double spread = squares - seeds * bias;
  const double variance = (spread < 0.0 ? 0.0 : spread) / (seeds - 1);  // below 0 by rounding alone; a NaN stays
  sums.bias += bias - variance / seeds;                                 // E (mean - x)^2 = bias^2 + variance / seeds
  sums.variance += variance;
  sums.seeds_energy += of_seeds;
}

/// Adds up as many elements as make whole vectors, in four lanes, and returns how many those are.
GT_SIMD_CLONES std::size_t observe_fours(std::span<const double> x, std::span<const float> y, ErrorSums& sums) {
  using Four = double __attribute__((vector_size(32)));
  using Flags = std::int64_t __attribute__((vector_size(32)));  // 0 or -1
  using Floats = float __attribute__((vector_size(16)));
  Four xx{}, yy{}, xy{}, error{}, largest{}, least = Four{} + sums.x_min, most = Four{} + sums.x_max;
  Flags kept{}, zeroed{}, agreed{};
  std::size_t i = 0;
  for (; i + 4 <= x.size(); i += 4) {
    Four exact;
    Floats received;
    std::memcpy(&exact, &x[i], sizeof exact);
    std::memcpy(&received, &y[i], sizeof received);
    const Four got = __builtin_convertvector(received, Four);
    const Four off = exact - got;
    xx += exact * exact;
    yy += got * got;
    xy += exact * got;
    error += off * off;
    const Four size = off < 0.0 ? -off : off;
    largest = largest < size ? size : largest;
    least = exact < least ? exact : least;
    most = most < exact ? exact : most;
    kept += got != 0.0;
    zeroed += (got == 0.0) & (exact != 0.0);
    agreed += ((exact > 0.0) & (got > 0.0)) | ((exact < 0.0) & (got < 0.0));
  }
  for (int lane = 0; lane < 4; ++lane) {
    sums.xx += xx[lane];
    sums.yy += yy[lane];
    sums.xy += xy[lane];
    sums.error += error[lane];
    sums.largest_error = std::max(sums.largest_error, largest[lane]);
    sums.x_min = std::min(sums.x_min, least[lane]);
    sums.x_max = std::max(sums.x_max, most[lane]);
    sums.kept -= static_cast<std::uint64_t>(kept[lane]);
    sums.zeroed -= static_cast<std::uint64_t>(zeroed[lane]);
    sums.sign_agreements -= static_cast<std::uint64_t>(agreed[lane]);
  }
  return i;
}

}  // namespace

void ErrorSums::observe(std::span<const double> x, std::span<const float> y) {
  if (x.empty()) return;
  // Sums of its own, which no store to `x` could change, stay in registers; signs are counted without branches, because
  // nothing foretells them.
  ErrorSums sums = *this;
  if (elements == 0) sums.x_min = sums.x_max = x[0];
  for (std::size_t i = observe_fours(x, y, sums); i < x.size(); ++i) {
    const double exact = x[i];
    const double got = static_cast<double>(y[i]);
    const double difference = exact - got;
    sums.xx += exact * exact;
    sums.yy += got * got;
    sums.xy += exact * got;
    sums.error += difference * difference;
    sums.largest_error = std::max(sums.largest_error, std::abs(difference));
    sums.x_min = std::min(sums.x_min, exact);
    sums.x_max = std::max(sums.x_max, exact);
    sums.kept += std::uint64_t{got != 0.0};
    sums.zeroed += std::uint64_t{got == 0.0} & std::uint64_t{exact != 0.0};
    sums.sign_agreements += (std::uint64_t{exact > 0.0} & std::uint64_t{got > 0.0}) |
                            (std::uint64_t{exact < 0.0} & std::uint64_t{got < 0.0});
  }
  sums.elements += x.size();
  if (std::isnan(sums.error)) sums.largest_error = sums.error;  // a comparison with NaN finds nothing larger
  *this = sums;
}

void ErrorSums::merge(const ErrorSums& other) {
  if (other.elements == 0) return;
  x_min = elements == 0 ? other.x_min : std::min(x_min, other.x_min);
  x_max = elements == 0 ? other.x_max : std::max(x_max, other.x_max);
  elements += other.elements;
  xx += other.xx;
  yy += other.yy;
  xy += other.xy;
  error += other.error;
  largest_error = std::isnan(other.largest_error) ? other.largest_error : std::max(largest_error, other.largest_error);
  sign_agreements += other.sign_agreements;
  kept += other.kept;
  zeroed += other.zeroed;
}

double ErrorSums::nmse() const {
  if (xx > 0.0) return error / xx;
  return error == 0.0 ? 0.0 : std::numeric_limits<double>::infinity();
}

double ErrorSums::snr_db() const {
  return -10.0 * std::log10(nmse());
}

std::optional<double> ErrorSums::cosine() const {
  if (xx == 0.0 || yy == 0.0) return std::nullopt;
  return xy / (std::sqrt(xx) * std::sqrt(yy));
}

std::optional<double> ErrorSums::relative_bias() const {
  if (xx == 0.0) return std::nullopt;
  return xy / xx - 1.0;
}

std::optional<double> ErrorSums::sign_agreement() const {
  if (kept == 0) return std::nullopt;
  return static_cast<double>(sign_agreements) / static_cast<double>(kept);
}

double ErrorSums::zeroed_fraction() const {
  return elements == 0 ? 0.0 : static_cast<double>(zeroed) / static_cast<double>(elements);
}

double ErrorSums::lost_signs() const {
  return elements == 0 ? 0.0 : static_cast<double>(kept + zeroed - sign_agreements) / static_cast<double>(elements);
}

std::optional<double> ErrorSums::nrmse() const {
  if (elements == 0 || !(x_max > x_min)) return std::nullopt;
  return std::sqrt(error / static_cast<double>(elements)) / (x_max - x_min);
}

std::optional<double> ErrorSums::psnr_db() const {
  const auto ratio = nrmse();
  if (!ratio) return std::nullopt;
  return -20.0 * std::log10(*ratio);
}

CodecQuality measure_quality(const GradientSource& reader, const std::vector<Unit>& units, const CodecSpec& spec,
                             std::uint64_t seed) {
  const CodecDescriptor& descriptor = *spec.descriptor;
  if (!has_codec(descriptor)) return {};
  std::size_t largest = 0;
  for (const auto& unit : units) largest = std::max(largest, unit.elements);
  StepLoader loader{
      reader, 1, largest, {.weight = descriptor.needs_weight, .second_moment = descriptor.needs_second_moment}};
  CodecQuality quality;
  Sums sums;
  std::uint64_t tried = 0;  // elements with several seeds
  const std::vector<double> depths = depths_of(reader.tensors());
  for (std::size_t u = 0; u < units.size(); ++u) {
    const auto codec = make_codec<Space::host>(spec, layout_of(units[u], reader.tensors(), depths));
    loader.load(units[u], 0);
    if (spec.gates(units[u].elements * size_of(units[u].dtype))) {  // no codec touches it
      for (const float x : loader.gradient(0)) sums.energy += static_cast<double>(x) * static_cast<double>(x);
      continue;
    }
    const SideInputs<Space::host> side{.weight = loader.weight(), .second_moment = loader.second_moment(0)};
    const EncodeContext context{.key = {.seed = seed, .tensor = static_cast<std::uint32_t>(u)},
                                .iteration = reader.steps().front().iteration};
    const bool several = descriptor.unbiased && (u == 0 || tried + units[u].elements <= kSeedElements);
    if (several) tried += units[u].elements, ++quality.seed_units;
    probe(*codec, loader.gradient(0), side, context, several ? kSeeds : 1, sums);
  }
  if (sums.energy <= 0.0) return quality;
  quality.nmse = sums.error / sums.energy;
  if (sums.seeds_energy > 0.0) {
    quality.bias_nmse = sums.bias / sums.seeds_energy;
    quality.variance_nmse = sums.variance / sums.seeds_energy;
  }
  return quality;
}

}  // namespace gradtool
