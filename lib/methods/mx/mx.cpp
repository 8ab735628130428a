#include <algorithm>
#include <cmath>

#include "lib/codecs/block_codec.hpp"
#include "lib/codecs/registry.hpp"
#include "lib/methods/mx/format.hpp"

namespace gradtool {
namespace {

/// How finely an element type divides its range.
struct Resolution {
  double largest;   ///< its largest value
  double relative;  ///< a unit in the last place of a normal value, relative to the value
  double quantum;   ///< the spacing of its smallest values
};
constexpr Resolution resolution(const format::SmallFloat& type) {
  double quantum = 1.0;
  for (int i = 0; i < -type.quantum_exponent(); ++i) quantum /= 2.0;
  const double significand =
      static_cast<double>((1U << type.mantissa) + (type.max_code & ((1U << type.mantissa) - 1U)));
  double largest = significand;
  for (std::uint32_t i = 0; i < type.mantissa; ++i) largest /= 2.0;
  for (int i = 0; i < type.largest_exponent; ++i) largest *= 2.0;
  return {largest, 1.0 / static_cast<double>(1U << type.mantissa), quantum};
}
constexpr Resolution resolution(const format::SmallFixed&) {
  return {127.0 / 64.0, 0.0, 1.0 / 64.0};
}

/// Elements of `Type` in blocks that Format scales.
template <auto Type, class Format>
class Mx final : public BlockCodec<Format> {
 public:
  Mx(const Params& params, std::size_t block)
      : BlockCodec<Format>{"mx", {}, block, params.is("rounding", "stochastic")} {}

  /// Rounding of one element, or saturation of the block's largest, which lies from `low` to `high` in units of the
  /// scale.
  [[nodiscard]] ErrorBound bound(std::size_t n) const override {
    const Resolution r = resolution(Type);
    const double steps = this->stochastic() ? 1.0 : 0.5;
    const double power = std::ldexp(1.0, Type.largest_exponent);
    const double low = power * (format::rounds_scale<Type>() ? 0.75 : 1.0);
    const double high = power * (format::rounds_scale<Type>() ? 1.5 : 2.0);
    // Halfway between two neighbours the error is half a step, and the element is half a step above the lower one.
    const double rounded = this->stochastic() ? r.relative : steps * r.relative / (1.0 + steps * r.relative);
    const double relative = std::max(rounded, 1.0 - r.largest / high);
    const double quantum = steps * r.quantum / low;
    const auto in_block = static_cast<double>(this->block() == format::kWholeUnit ? n : std::min(n, this->block()));
    return {.nmse = relative * relative + in_block * quantum * quantum,
            .of_largest = std::max(relative, quantum),
            .absolute = std::ldexp(1.0, -126)};
  }
};

constexpr ParamInfo kParams[] = {
    choice_param("format", "e4m3", "e4m3|e5m2|e3m2|e2m3|e2m1|e3m0|int8",
                 "element format: MXFP8, MXFP6, MXFP4, a sign and an exponent (e3m0), or MXINT8")
        .searched("e4m3|e5m2|e3m2|e2m3|e2m1|e3m0|int8"),
    choice_param("rounding", "nearest", "nearest|stochastic",
                 "to nearest even, or up with the probability of what is cut off"),
    choice_param("scale", "block", "block|unit", "one for each block of 32 elements, or one for the whole unit")};

template <auto Type>
std::unique_ptr<Codec<Space::host>> make_of(const Params& p) {
  if (p.is("scale", "unit")) return std::make_unique<Mx<Type, format::MxWideFormat<Type>>>(p, format::kWholeUnit);
  return std::make_unique<Mx<Type, format::MxFormat<Type>>>(p, format::MxFormat<Type>::kBlock);
}

std::unique_ptr<Codec<Space::host>> make(const Params& p) {
  if (p.is("format", "e5m2")) return make_of<format::kE5M2>(p);
  if (p.is("format", "e3m2")) return make_of<format::kE3M2>(p);
  if (p.is("format", "e2m3")) return make_of<format::kE2M3>(p);
  if (p.is("format", "e2m1")) return make_of<format::kE2M1>(p);
  if (p.is("format", "e3m0")) return make_of<format::kE3M0>(p);
  if (p.is("format", "int8")) return make_of<format::SmallFixed{}>(p);
  return make_of<format::kE4M3>(p);
}

}  // namespace

extern constinit const CodecDescriptor mx_codec{
    .name = "mx",
    .summary = "sends OCP microscaling formats: 4 to 8 bits an element, and a power-of-two scale for every 32",
    .reference =
        "OCP Microscaling Formats (MX) v1.0, 2023; Rouhani et al., arXiv 2310.10537; e3m0: Douillard et al., Streaming "
        "DiLoCo, 2025, arXiv 2501.18512",
    .params = kParams,
    .payload = "bits n + 8 ceil(n/32) bits (scale=unit: bits n + 32); bits = 8, 6 or 4",
    .passes =
        [](const Params& p) {
          if (!p.is("scale", "unit")) return MemoryPasses{};
          return MemoryPasses{.again = ReadAgain::unit, .why = "codes need the largest magnitude first"};
        },
    .make_host = [](const Params& p, const Layout&) { return make(p); },
};

}  // namespace gradtool
