#include "lib/codecs/reducer.hpp"
#include "lib/codecs/registry.hpp"
#include "lib/methods/gradiveq/reducer.hpp"

namespace gradtool {
namespace {

constexpr ParamInfo kParams[] = {
    {.name = "lt",
     .kind = ParamInfo::Kind::integer,
     .default_value = "100",
     .min = 2,
     .max = 1000,
     .meaning = "sampling steps of a cycle, L_t; a capture must be longer than warm-up and lt to see compression"},
    {.name = "lc",
     .kind = ParamInfo::Kind::integer,
     .default_value = "400",
     .min = 1,
     .max = 1e9,
     .meaning = "compressed steps of a cycle, L_c"},
    {.name = "warmup",
     .kind = ParamInfo::Kind::integer,
     .default_value = "0",
     .min = 0,
     .max = 1e9,
     .meaning = "training iterations before the first cycle, sent as they are (paper: 2500; captures are short)"},
    {.name = "lambda",
     .default_value = "0.01",
     .min = 0.0,
     .max = 1.0,
     .search = "0.001|0.01|0.05|0.2",
     .meaning = "share of the samples' variance that may be lost, eq. 6"},
    {.name = "slice",
     .kind = ParamInfo::Kind::integer,
     .default_value = "auto",
     .min = 1,
     .max = 4096,
     .choices = "auto",
     .meaning = "spatial taps in a slice; auto takes the fewest that divide the kernel and give 768 elements"},
    {.name = "max_slice",
     .kind = ParamInfo::Kind::integer,
     .default_value = "65536",
     .min = 2,
     .max = 1 << 24,
     .meaning = "layers with larger slices are sent as they are: their bases would be too large"},
    {.name = "min_ratio",
     .default_value = "1.5",
     .min = 0.0,
     .max = 1e6,
     .meaning = "layers with K/d below it are sent as they are for the cycle"},
    {.name = "mean",
     .kind = ParamInfo::Kind::choice,
     .default_value = "slice",
     .choices = "slice|shared",
     .meaning = "a mean for every slice, or the first slice's for all"},
    {.name = "sampling",
     .kind = ParamInfo::Kind::choice,
     .default_value = "qsgd",
     .choices = "qsgd|raw",
     .meaning = "how sampling steps are sent: 4-bit QSGD with decode, add, encode at every hop, or float32"},
    {.name = "vote",
     .kind = ParamInfo::Kind::choice,
     .default_value = "off",
     .choices = "off|on",
     .meaning = "whether a majority of ranks with a large local loss (eq. 7) ends a cycle early"},
    {.name = "vote_every",
     .kind = ParamInfo::Kind::integer,
     .default_value = "10",
     .min = 1,
     .max = 1e6,
     .meaning = "compressed steps from vote to vote"},
    {.name = "vote_c",
     .default_value = "3",
     .min = 0.0,
     .max = 1e6,
     .meaning = "a local loss is large above vote_c sqrt(lambda)"}};

std::unique_ptr<Reducer<Space::host>> make_gradiveq_reducer(const ReducerSetup<Space::host>& setup) {
  return std::make_unique<GradiVeqReducer<Space::host>>(setup);
}

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
    .make_host = nullptr,
    .make_host_reducer = make_gradiveq_reducer,
};

}  // namespace gradtool
