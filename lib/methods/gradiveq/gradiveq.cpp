#include "lib/codecs/reducer.hpp"
#include "lib/codecs/registry.hpp"
#include "lib/methods/gradiveq/reducer.hpp"

namespace gradtool {
namespace {

constexpr ParamInfo kParams[] = {
    integer_param("lt", "100", {2, 1000},
                  "sampling steps of a cycle, L_t; a capture must be longer than warm-up and lt to see compression"),
    integer_param("lc", "400", {1, 1e9}, "compressed steps of a cycle, L_c"),
    integer_param("warmup", "0", {0, 1e9},
                  "training iterations before the first cycle, sent as they are (paper: 2500; captures are short)"),
    real_param("lambda", "0.01", {0.0, 1.0}, "share of the samples' variance that may be lost, eq. 6")
        .searched("0.001|0.01|0.05|0.2"),
    integer_param("slice", "auto", {1, 4096},
                  "spatial taps in a slice; auto takes the fewest that divide the kernel and give 768 elements")
        .or_words("auto"),
    integer_param("max_slice", "65536", {2, 1 << 24},
                  "layers with larger slices are sent as they are: their bases would be too large"),
    real_param("min_ratio", "1.5", {0.0, 1e6}, "layers with K/d below it are sent as they are for the cycle"),
    choice_param("mean", "slice", "slice|shared", "a mean for every slice, or the first slice's for all"),
    choice_param("sampling", "qsgd", "qsgd|raw",
                 "how sampling steps are sent: 4-bit QSGD with decode, add, encode at every hop, or float32"),
    choice_param("vote", "off", "off|on",
                 "whether a majority of ranks with a large local loss (eq. 7) ends a cycle early"),
    integer_param("vote_every", "10", {1, 1e6}, "compressed steps from vote to vote"),
    real_param("vote_c", "3", {0.0, 1e6}, "a local loss is large above vote_c sqrt(lambda)")};

}  // namespace

extern constinit const CodecDescriptor gradiveq_codec{
    .name = "gradiveq",
    .summary = "sends slices of convolution gradients in a basis of principal components, which an all-reduce adds",
    .reference = "Yu et al., GradiVeQ, NeurIPS 2018, arXiv 1811.03617",
    .params = kParams,
    .aggregation = Aggregation::own,
    .by_layout = true,
    .determinism = Determinism::run_to_run,
    .payload = "compressed: 32 (sum over layers of S d + other elements) bits; sampling: 4-bit QSGD of the slices",
    .make_host_reducer = make_method_reducer<Space::host, GradiVeqReducer<Space::host>>,
};

}  // namespace gradtool
