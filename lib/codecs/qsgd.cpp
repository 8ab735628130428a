#include "kernels/law/qsgd.hpp"

#include <utility>

#include "lib/codecs/cuda_factories.hpp"
#include "lib/codecs/qsgd_elias.hpp"
#include "lib/codecs/qsgd_format.hpp"
#include "lib/codecs/registry.hpp"

namespace gradtool {
namespace {

/// Codes of a fixed width. Bits is a template argument so that packing is shifts by constants.
template <std::uint32_t Bits>
class QsgdFixed final : public BlockCodec<QsgdFormat<Bits>> {
 public:
  QsgdFixed(std::size_t bucket, bool l2) : BlockCodec<QsgdFormat<Bits>>{QsgdFormat<Bits>{l2}, bucket, true} {}

  [[nodiscard]] ErrorBound bound(std::size_t n) const override {
    return this->format().bound(std::min(n, this->block()));
  }

 private:
  [[nodiscard]] std::string_view name() const override { return "qsgd"; }
};

template <std::uint32_t... Bits>
std::unique_ptr<Codec<Space::host>> make_for_bits(const Params& params, std::integer_sequence<std::uint32_t, Bits...>) {
  std::unique_ptr<Codec<Space::host>> codec;
  const auto wanted = static_cast<std::uint32_t>(params.integer("bits"));
  const auto bucket = static_cast<std::size_t>(params.integer("bucket"));
  const bool l2 = params.is("norm", "l2");
  expects(bucket % law::kPackGroup == 0, "codec qsgd: bucket must be a multiple of 32");
  const auto make = [&]<std::uint32_t B>() {
    if (B != wanted) return;
    if (params.is("code", "elias"))
      codec = std::make_unique<QsgdElias<B>>(bucket, l2);
    else
      codec = std::make_unique<QsgdFixed<B>>(bucket, l2);
  };
  (make.template operator()<Bits + 2>(), ...);
  return codec;
}

constexpr ParamInfo kParams[] = {{.name = "bits",
                                  .kind = ParamInfo::Kind::integer,
                                  .default_value = "4",
                                  .min = 2,
                                  .max = 8,
                                  .meaning = "bits per element with its sign; 2^(bits-1)-1 levels"},
                                 {.name = "bucket",
                                  .kind = ParamInfo::Kind::integer,
                                  .default_value = "512",
                                  .min = 32,
                                  .max = 1 << 20,
                                  .meaning = "elements that share a norm, a multiple of 32"},
                                 {.name = "norm",
                                  .kind = ParamInfo::Kind::choice,
                                  .default_value = "max",
                                  .choices = "max|l2",
                                  .meaning = "what a bucket is divided by; l2 is the paper's, max loses less"},
                                 {.name = "code",
                                  .kind = ParamInfo::Kind::choice,
                                  .default_value = "fixed",
                                  .choices = "fixed|elias",
                                  .meaning = "bits for every element, or Elias delta codes of the levels that are not "
                                             "zero"}};

}  // namespace

extern constinit const CodecDescriptor qsgd_codec{
    .name = "qsgd",
    .summary = "stochastic quantisation to a few levels per bucket, bit-packed",
    .reference = "Alistarh et al., QSGD, NeurIPS 2017, arXiv 1610.02132",
    .description =
        "A bucket is divided by its norm, and each magnitude becomes one of the two levels around it, drawn so that "
        "the expectation is the element. Codes are a sign and a level of fixed width; code=elias sends only what is "
        "not zero, as gap, sign and level in Elias delta codes (the paper uses the recursive omega codes), which "
        "pays with norm=l2 and few levels, where at most about the square root of a bucket is not zero. The largest "
        "magnitude as the norm is our default: it loses less than the paper's Euclidean norm, and no level is "
        "wasted. Buckets with a norm below 2^-100 are sent as zeros, those with a value that is not finite as NaN. "
        "It pays where the optimiser wants unbiased gradients and ranks are few, as payloads are gathered.",
    .params = kParams,
    .aggregation = Aggregation::gather,
    .unbiased = true,
    .payload = "bits n + 32 ceil(n/bucket) bits; code=elias: by what is not zero",
    .make_host = [](const Params& p,
                    const Layout&) { return make_for_bits(p, std::make_integer_sequence<std::uint32_t, 7>{}); },
    .make_cuda = GT_MAKE_CUDA(make_cuda_qsgd),
};

}  // namespace gradtool
