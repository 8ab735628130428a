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

template <auto Type>
class Mx final : public BlockCodec<format::MxFormat<Type>> {
  using Format = format::MxFormat<Type>;

 public:
  explicit Mx(const Params& params)
      : BlockCodec<Format>{"mx", {}, Format::kBlock, params.is("rounding", "stochastic")} {}

  /// Rounding of one element, or saturation of the block's largest, which is below 2^(emax+1) in units of the scale.
  [[nodiscard]] ErrorBound bound(std::size_t n) const override {
    const Resolution r = resolution(Type);
    const double steps = this->stochastic() ? 1.0 : 0.5;
    const double power = std::ldexp(1.0, Type.largest_exponent);  // The block's largest is at least this.
    const double relative = std::max(steps * r.relative, 1.0 - r.largest / (2.0 * power));
    const double quantum = steps * r.quantum / power;
    const auto in_block = static_cast<double>(std::min(n, Format::kBlock));
    return {.nmse = relative * relative + in_block * quantum * quantum,
            .of_largest = std::max(relative, quantum),
            .absolute = std::ldexp(1.0, -126)};
  }
};

constexpr ParamInfo kParams[] = {{.name = "format",
                                  .kind = ParamInfo::Kind::choice,
                                  .default_value = "e4m3",
                                  .choices = "e4m3|e5m2|e3m2|e2m3|e2m1|int8",
                                  .search = "e4m3|e5m2|e3m2|e2m3|e2m1|int8",
                                  .meaning = "element format: MXFP8, MXFP6, MXFP4 or MXINT8"},
                                 {.name = "rounding",
                                  .kind = ParamInfo::Kind::choice,
                                  .default_value = "nearest",
                                  .choices = "nearest|stochastic",
                                  .meaning = "to nearest even, or up with the probability of what is cut off"}};

std::unique_ptr<Codec<Space::host>> make(const Params& p) {
  if (p.is("format", "e5m2")) return std::make_unique<Mx<format::kE5M2>>(p);
  if (p.is("format", "e3m2")) return std::make_unique<Mx<format::kE3M2>>(p);
  if (p.is("format", "e2m3")) return std::make_unique<Mx<format::kE2M3>>(p);
  if (p.is("format", "e2m1")) return std::make_unique<Mx<format::kE2M1>>(p);
  if (p.is("format", "int8")) return std::make_unique<Mx<format::SmallFixed{}>>(p);
  return std::make_unique<Mx<format::kE4M3>>(p);
}

}  // namespace

extern constinit const CodecDescriptor mx_codec{
    .name = "mx",
    .summary = "OCP microscaling formats: 4 to 8 bits with a power-of-two scale per 32 elements",
    .reference = "OCP Microscaling Formats (MX) v1.0, 2023; Rouhani et al., arXiv 2310.10537",
    .description =
        "Blocks of 32 elements share a power of two, one byte: floor(log2 of the largest magnitude) minus the "
        "largest exponent of the element format. Elements are rounded to nearest even in that unit and saturate, so "
        "a block's largest element may lose up to a quarter (E2M1) of itself; that is the standard's rule. A block "
        "that holds a value that is not finite gets scale 255 and decodes to NaN. Four bits (e2m1) need ef=on or "
        "rounding=stochastic to be usable for gradients. Stochastic rounding is unbiased but for that. The formats "
        "pay where hardware has them; sums do not stay in the format, so payloads are gathered or encoded again at "
        "every hop.",
    .params = kParams,
    .aggregation = Aggregation::gather,
    .payload = "bits n + 8 ceil(n/32) bits; bits = 8, 6 or 4",
    .make_host = [](const Params& p, const Layout&) { return make(p); },
};

}  // namespace gradtool
