#include "lib/codecs/block_codec.hpp"
#include "lib/codecs/registry.hpp"
#include "lib/methods/int8/format.hpp"

namespace gradtool {
namespace {

class Int8 final : public BlockCodec<format::Int8Format> {
 public:
  explicit Int8(const Params& params)
      : BlockCodec{"int8", {}, static_cast<std::size_t>(params.integer("block")), params.is("rounding", "stochastic")} {
  }

  /// An element moves by at most half a unit, or by less than one unit when it is drawn. A unit is max |x| / 127 of the
  /// element's block.
  [[nodiscard]] ErrorBound bound(std::size_t n) const override {
    const double unit = (stochastic() ? 1.0 : 0.5) / 127.0 * (1.0 + 1e-5);
    return {.nmse = static_cast<double>(std::min(n, block())) * unit * unit, .of_largest = unit, .absolute = 0x1p-100};
  }
};

constexpr ParamInfo kParams[] = {{.name = "block",
                                  .kind = ParamInfo::Kind::integer,
                                  .default_value = "2048",
                                  .min = 32,
                                  .max = 1 << 20,
                                  .search = "256|2048|16384",
                                  .meaning = "elements that share a scale, a multiple of 32"},
                                 {.name = "rounding",
                                  .kind = ParamInfo::Kind::choice,
                                  .default_value = "nearest",
                                  .choices = "nearest|stochastic",
                                  .meaning = "stochastic is unbiased, with up to four times the squared error"}};

}  // namespace

extern constinit const CodecDescriptor int8_codec{
    .name = "int8",
    .summary = "8-bit integers in blocks that share a scale of max/127",
    .reference = "the plain quantised all-reduce that methods are compared with",
    .description =
        "Blocks of consecutive elements share a float32 scale, their largest magnitude divided by 127; every element "
        "becomes the nearest integer multiple of it (ties to even), or one of the two nearest, drawn so that the "
        "expectation is the element. Symmetric: the code -128 is never used, so there is no zero point. Blocks whose "
        "largest magnitude is below 2^-100 are sent as zeros, blocks with a value that is not finite as NaN. The "
        "payloads do not add, so they are gathered, or decoded and encoded again at every hop with --reduce hop. It "
        "pays as the simplest fourfold reduction with hardly any loss.",
    .params = kParams,
    .aggregation = Aggregation::gather,
    .payload = "8 n + 32 ceil(n/block) bits",
    .make_host = [](const Params& p, const Layout&) -> std::unique_ptr<Codec<Space::host>> {
      return std::make_unique<Int8>(p);
    },
};

}  // namespace gradtool
