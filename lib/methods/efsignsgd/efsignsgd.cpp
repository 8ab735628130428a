#include "lib/codecs/registry.hpp"
#include "lib/codecs/sign_codec.hpp"

namespace gradtool {

extern constinit const CodecDescriptor efsignsgd_codec{
    .name = "efsignsgd",
    .summary = "sends signs and the mean magnitude of each tensor, with error feedback",
    .reference = "Karimireddy et al., Error Feedback Fixes SignSGD, ICML 2019, arXiv 1901.09847, algorithm 2",
    .params = {},
    .error_feedback = true,
    .by_layout = true,
    .payload = "n + 32 T bits, T tensors, each padded to 32 bits",
    .make_host = [](const Params&, const Layout& layout) -> std::unique_ptr<Codec<Space::host>> {
      return std::make_unique<SignCodec>("efsignsgd", layout, true);
    },
};

}  // namespace gradtool
