#include <cmath>

#include "lib/codecs/block_codec.hpp"
#include "lib/codecs/registry.hpp"
#include "lib/methods/fp8/format.hpp"

namespace gradtool {
namespace {

template <format::SmallFloat Type>
class Fp8 final : public BlockCodec<format::Fp8Format<Type>> {
 public:
  explicit Fp8(const Params& params)
      : BlockCodec<format::Fp8Format<Type>>{
            "fp8", {}, static_cast<std::size_t>(params.integer("block")), params.is("rounding", "stochastic")} {}

  /// Rounding to nearest moves a normal element by at most half a unit in the last place, and a smaller one by half the
  /// spacing of subnormals; stochastic rounding moves them up to twice as far.
  [[nodiscard]] ErrorBound bound(std::size_t n) const override {
    const double steps = this->stochastic() ? 1.0 : 0.5;
    const double relative = steps * std::ldexp(1.0, -static_cast<int>(Type.mantissa)) * (1.0 + 1e-4);
    const double quantum =
        steps * std::ldexp(1.0, Type.quantum_exponent()) / static_cast<double>(format::Fp8Format<Type>::top());
    const auto in_block = static_cast<double>(std::min(n, this->block()));
    return {.nmse = relative * relative + in_block * quantum * quantum,
            .of_largest = relative,
            .absolute = static_cast<double>(format::kSmallestOfBlock)};
  }
};

constexpr ParamInfo kParams[] = {{.name = "format",
                                  .kind = ParamInfo::Kind::choice,
                                  .default_value = "e4m3",
                                  .choices = "e4m3|e5m2",
                                  .search = "e4m3|e5m2",
                                  .meaning = "3 mantissa bits and values to 448, or 2 and to 57344"},
                                 {.name = "block",
                                  .kind = ParamInfo::Kind::integer,
                                  .default_value = "128",
                                  .min = 4,
                                  .max = 1 << 20,
                                  .search = "32|128|1024",
                                  .meaning = "elements that share a scale, a multiple of 4"},
                                 {.name = "rounding",
                                  .kind = ParamInfo::Kind::choice,
                                  .default_value = "nearest",
                                  .choices = "nearest|stochastic",
                                  .meaning = "to nearest even, or up with the probability of what is cut off"}};

}  // namespace

extern constinit const CodecDescriptor fp8_codec{
    .name = "fp8",
    .summary = "8-bit floats with a float32 scale per block",
    .reference = "Micikevicius et al., FP8 Formats for Deep Learning, 2022, arXiv 2209.05433",
    .description =
        "Every block of 128 elements is divided so that its largest magnitude becomes the largest value of the "
        "format, then rounded to E4M3 or E5M2. Rounding is to nearest even and saturates, so NaN and infinity codes "
        "are never written; a block that holds a value that is not finite decodes to NaN. Rounding the largest "
        "magnitude to the end of the range, and the float32 scale, are our choice: training frameworks differ. It "
        "pays wherever fp16 does, at half the bytes, but sums do not stay in the format: payloads are gathered, or "
        "encoded again at every hop.",
    .params = kParams,
    .aggregation = Aggregation::gather,
    .payload = "8 n + 32 ceil(n/block) bits",
    .make_host = [](const Params& p, const Layout&) -> std::unique_ptr<Codec<Space::host>> {
      if (p.is("format", "e5m2")) return std::make_unique<Fp8<format::kE5M2>>(p);
      return std::make_unique<Fp8<format::kE4M3>>(p);
    },
};

}  // namespace gradtool
