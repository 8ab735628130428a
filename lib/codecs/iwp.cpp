#include "lib/codecs/index_code.hpp"
#include "lib/codecs/registry.hpp"

namespace gradtool {
namespace {

constexpr ParamInfo kParams[] = {
    {.name = "policy",
     .kind = ParamInfo::Kind::choice,
     .default_value = "target_density",
     .choices = "fixed|mean_std|dispersion|target_density",
     .meaning = "how a layer's threshold follows from its importances"},
    {.name = "threshold",
     .kind = ParamInfo::Kind::real,
     .default_value = "0.01",
     .min = 0.0,
     .max = 1e6,
     .meaning = "t of fixed and dispersion"},
    {.name = "limit",
     .kind = ParamInfo::Kind::real,
     .default_value = "1",
     .min = 0.0,
     .max = 1e9,
     .meaning = "largest threshold of dispersion, at least t"},
    {.name = "k",
     .kind = ParamInfo::Kind::real,
     .default_value = "3",
     .min = 0.0,
     .max = 1e6,
     .meaning = "standard deviations above the mean that mean_std starts from"},
    {.name = "density",
     .kind = ParamInfo::Kind::real,
     .default_value = "0.01",
     .min = 1e-6,
     .max = 1.0,
     .meaning = "share of a layer that mean_std and target_density aim at for one mask"},
    {.name = "eps",
     .kind = ParamInfo::Kind::real,
     .default_value = "0.001",
     .min = 0.0,
     .max = 1e3,
     .meaning = "added to |w|, in units of the layer's rms weight"},
    {.name = "roots",
     .kind = ParamInfo::Kind::integer,
     .default_value = "2",
     .min = 1,
     .max = 4096,
     .meaning = "ranks that broadcast a mask in a step, at most all of them"},
    {.name = "mask",
     .kind = ParamInfo::Kind::choice,
     .default_value = "auto",
     .choices = "auto|bitmap|elias|u32",
     .meaning = "how a mask is written; auto takes the smallest"},
    {.name = "mu",
     .kind = ParamInfo::Kind::real,
     .default_value = "0",
     .min = 0.0,
     .max = 0.9999,
     .meaning = "momentum correction; 0.9 in training, where the optimiser then has none"},
    {.name = "masking",
     .kind = ParamInfo::Kind::choice,
     .default_value = "on",
     .choices = "on|off",
     .meaning = "whether sent elements also lose their momentum"},
    {.name = "clip",
     .kind = ParamInfo::Kind::real,
     .default_value = "0",
     .min = 0.0,
     .max = 1e9,
     .meaning = "largest gradient norm times sqrt(ranks), over the unit; 0 does not clip"},
    {.name = "warmup",
     .kind = ParamInfo::Kind::integer,
     .default_value = "0",
     .min = 0,
     .max = 1e9,
     .meaning = "steps in each of the five stages 25 %, 6.25 %, 1.56 %, 0.39 %, 0.098 %; 0 has none"},
    {.name = "bernoulli",
     .kind = ParamInfo::Kind::real,
     .default_value = "0",
     .min = 0.0,
     .max = 1.0,
     .meaning = "q: an element below the threshold passes with probability q importance / threshold"}};

}  // namespace

extern constinit const CodecDescriptor iwp_codec{
    .name = "iwp",
    .summary = "gradients that matter to their weight, picked by a few ranks for all, summed on a ring",
    .reference = "Cheng and Xu, arXiv 1901.01544 (reconstruction)",
    .description =
        "Every rank accumulates its gradients; in each step a few ranks, drawn with a key that all share, mark the "
        "elements whose accumulated gradient is large against their weight, and broadcast these masks. All ranks "
        "then sum the same elements, those in any of the masks, on a ring, and clear what was sent, so no indices "
        "travel with the values and the cost of the values does not grow with the number of ranks. This is a "
        "reconstruction: the abstract gives the importance, the random broadcasters and the common mask; the "
        "threshold policies, two broadcasters, |w| + 1e-3 rms(w) + 1e-8 in the denominator, and coded masks are "
        "ours. The default policy keeps each layer near a target density (an exact quantile first, then 5 % steps on "
        "ranks that broadcast) because fixed thresholds depend on the scale of the gradients; tensors of one "
        "dimension are sent whole. Momentum correction is off by default: a capture already holds what its optimiser "
        "was given, and with mu = 0.9, as in training with the method, results would be compared with sums of "
        "momentum. It pays where layers differ in scale and many ranks share a slow network; without captured "
        "weights the importance is the magnitude itself.",
    .params = kParams,
    .aggregation = Aggregation::own,
    .memory = true,
    .by_layout = true,
    .needs_weight = true,
    .payload = "32 |M| bits, and (n or about |m| (log2(n/|m|) + 2)) + 128 bits on a rank that broadcasts its mask m",
    .make_host = nullptr,
    .make_cuda = nullptr,
    .cuda_reducer = GT_CUDA_REDUCER,
};

}  // namespace gradtool
