#include "lib/codecs/registry.hpp"
#include "lib/codecs/sign_codec.hpp"

namespace gradtool {

extern constinit const CodecDescriptor efsignsgd_codec{
    .name = "efsignsgd",
    .summary = "signs and the mean magnitude of each tensor, with error feedback",
    .reference = "Karimireddy et al., Error Feedback Fixes SignSGD, ICML 2019, arXiv 1901.09847, algorithm 2",
    .description =
        "u = gradient + residual; every element is sent as its sign, one bit, and decodes to sign(u) times the mean "
        "magnitude |u|_1/n of its tensor; the difference is the next residual. The residual is kept in units of the "
        "gradient, without the learning rate: with a constant rate that is the paper's algorithm. Zero counts as "
        "positive. The mean is what minimises the error for given signs, so the error stays below the energy of u, "
        "and with error feedback nothing is lost, only late. It pays as the smallest payload that still converges "
        "like SGD; payloads are gathered, so beyond some 64 ranks a dense ring sends less.",
    .params = {},
    .aggregation = Aggregation::gather,
    .error_feedback = true,
    .by_layout = true,
    .payload = "n + 32 T bits, T tensors, each padded to 32 bits",
    .make_host = [](const Params&, const Layout& layout) -> std::unique_ptr<Codec<Space::host>> {
      return std::make_unique<SignCodec>("efsignsgd", layout, true);
    },
};

}  // namespace gradtool
