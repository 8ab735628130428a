#include <algorithm>
#include <cmath>

#include "lib/codecs/block_codec.hpp"
#include "lib/codecs/cuda_factories.hpp"
#include "lib/codecs/registry.hpp"

namespace gradtool {
namespace {

template <auto Law>
using Format = OfLargest<law::MxFormat<Law>>;

/// Largest value of a format, and the error of its last place and of its smallest spacing, in the same unit.
struct Resolution {
  double largest, relative, quantum;
};
constexpr Resolution resolution(const law::SmallFloat& f) {
  double quantum = 1.0;
  for (int i = 0; i < -f.quantum_exponent(); ++i) quantum /= 2.0;
  const double significand = static_cast<double>((1U << f.mantissa) + (f.max_code & ((1U << f.mantissa) - 1U)));
  double largest = significand;
  for (std::uint32_t i = 0; i < f.mantissa; ++i) largest /= 2.0;
  for (int i = 0; i < f.largest_exponent; ++i) largest *= 2.0;
  return {largest, 1.0 / static_cast<double>(1U << f.mantissa), quantum};
}
constexpr Resolution resolution(const law::SmallFixed&) {
  return {127.0 / 64.0, 0.0, 1.0 / 64.0};
}

template <auto Law>
class Mx final : public BlockCodec<Format<Law>> {
 public:
  explicit Mx(const Params& params)
      : BlockCodec<Format<Law>>{{}, Format<Law>::kBlock, params.is("rounding", "stochastic")} {}

  /// Rounding of one element, or saturation of the block's largest, which is below 2^(emax+1) in units of the scale.
  [[nodiscard]] ErrorBound bound(std::size_t n) const override {
    const Resolution r = resolution(Law);
    const double steps = this->stochastic() ? 1.0 : 0.5;
    const double power = std::ldexp(1.0, Law.largest_exponent);  // at least this is the block's largest
    const double relative = std::max(steps * r.relative, 1.0 - r.largest / (2.0 * power));
    const double quantum = steps * r.quantum / power;
    const auto in_block = static_cast<double>(std::min(n, Format<Law>::kBlock));
    return {.nmse = relative * relative + in_block * quantum * quantum,
            .of_largest = std::max(relative, quantum),
            .absolute = std::ldexp(1.0, -126)};
  }

 private:
  [[nodiscard]] std::string_view name() const override { return "mx"; }
};

constexpr ParamInfo kParams[] = {{.name = "format",
                                  .kind = ParamInfo::Kind::choice,
                                  .default_value = "e4m3",
                                  .choices = "e4m3|e5m2|e3m2|e2m3|e2m1|int8",
                                  .meaning = "element format: MXFP8, MXFP6, MXFP4 or MXINT8"},
                                 {.name = "rounding",
                                  .kind = ParamInfo::Kind::choice,
                                  .default_value = "nearest",
                                  .choices = "nearest|stochastic",
                                  .meaning = "to nearest even, or up with the probability of what is cut off"}};

std::unique_ptr<Codec<Space::host>> make(const Params& p) {
  if (p.is("format", "e5m2")) return std::make_unique<Mx<law::kE5M2>>(p);
  if (p.is("format", "e3m2")) return std::make_unique<Mx<law::kE3M2>>(p);
  if (p.is("format", "e2m3")) return std::make_unique<Mx<law::kE2M3>>(p);
  if (p.is("format", "e2m1")) return std::make_unique<Mx<law::kE2M1>>(p);
  if (p.is("format", "int8")) return std::make_unique<Mx<law::SmallFixed{}>>(p);
  return std::make_unique<Mx<law::kE4M3>>(p);
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
    .make_cuda = GT_MAKE_CUDA(make_cuda_mx),
};

}  // namespace gradtool
