#include "lib/methods/qsgd/qsgd.hpp"

#include "lib/codecs/block_codec.hpp"
#include "lib/codecs/registry.hpp"
#include "lib/methods/qsgd/format.hpp"

namespace gradtool {

QsgdOptions::QsgdOptions(const Params& params)
    : bits{static_cast<std::uint32_t>(params.integer("bits"))},
      bucket{static_cast<std::size_t>(params.integer("bucket"))},
      l2{params.is("norm", "l2")} {
  expect_valid(bucket % format::kPackGroup == 0, "codec qsgd: bucket must be a multiple of 32");
}

/// With the max norm a level is max |x| / s of the bucket; the L2 norm is at most sqrt(bucket) times max |x|.
ErrorBound QsgdOptions::bound(std::size_t n) const {
  const double level = 1.0 / static_cast<double>(format::Qsgd::with_bits(bits).levels);
  const auto count = static_cast<double>(std::min(n, bucket));
  return {.nmse = count * level * level * (1.0 + 1e-5),
          .of_largest = level * (l2 ? std::sqrt(count) : 1.0) * (1.0 + 1e-6),
          .absolute = 0x1p-100};
}

namespace {

/// Codes of a fixed width. Bits is a template argument so that packing is shifts by constants.
template <std::uint32_t Bits>
class QsgdFixed final : public BlockCodec<format::QsgdFormat<Bits>> {
 public:
  explicit QsgdFixed(const QsgdOptions& options)
      : BlockCodec<format::QsgdFormat<Bits>>{"qsgd", {options.l2}, options.bucket, true}, options_{options} {}

  [[nodiscard]] ErrorBound bound(std::size_t n) const override { return options_.bound(n); }

 private:
  QsgdOptions options_;
};

std::unique_ptr<Codec<Space::host>> make_qsgd(const Params& params, const Layout& /*layout*/) {
  const QsgdOptions options{params};
  if (params.is("code", "elias")) return make_qsgd_elias(options);
  std::unique_ptr<Codec<Space::host>> codec;
  format::with_qsgd_bits(options.bits,
                         [&]<std::uint32_t Bits>() { codec = std::make_unique<QsgdFixed<Bits>>(options); });
  return codec;
}

constexpr ParamInfo kParams[] = {
    integer_param("bits", "4", {2, 8}, "bits per element with its sign; 2^(bits-1)-1 levels").searched("2|3|4|6|8"),
    integer_param("bucket", "512", {32, 1 << 20}, "elements that share a norm, a multiple of 32")
        .searched("128|512|2048"),
    choice_param("norm", "max", "max|l2", "what a bucket is divided by; l2 is the paper's, max loses less"),
    choice_param("code", "fixed", "fixed|elias",
                 "bits for every element, or Elias delta codes of the levels that are not zero")};

}  // namespace

extern constinit const CodecDescriptor qsgd_codec{
    .name = "qsgd",
    .summary = "sends each element rounded at random to one of a few levels of its bucket, bit-packed",
    .reference = "Alistarh et al., QSGD, NeurIPS 2017, arXiv 1610.02132",
    .params = kParams,
    .unbiased = true,
    .payload = "bits n + 32 ceil(n/bucket) bits; code=elias: by what is not zero",
    .make_host = make_qsgd,
};

}  // namespace gradtool
