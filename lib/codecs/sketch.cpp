#include "lib/codecs/registry.hpp"

namespace gradtool {
namespace {

constexpr ParamInfo kParams[] = {
    {.name = "ratio",
     .default_value = "0.01",
     .min = 0.0,
     .max = 1.0,
     .meaning = "k / n, the share of elements in the result; at least one"},
    {.name = "rows", .kind = ParamInfo::Kind::choice, .default_value = "5", .choices = "1|3|5|7", .meaning = "tables"},
    {.name = "compression",
     .default_value = "40",
     .min = 1.0,
     .max = 1e6,
     .meaning = "n / cells of all tables; a table has at least 256 cells"},
    {.name = "candidates",
     .default_value = "4",
     .min = 1.0,
     .max = 1e6,
     .meaning = "P: exact values are fetched for the P k largest estimates"},
    {.name = "mu",
     .default_value = "0",
     .min = 0.0,
     .max = 0.9999,
     .meaning = "local momentum; 0.9 in training, where the optimiser then has none"},
    {.name = "seed",
     .kind = ParamInfo::Kind::integer,
     .default_value = "42",
     .min = 0,
     .max = 9007199254740992.0,
     .meaning = "of the hash functions, the same on all ranks"}};

}  // namespace

extern constinit const CodecDescriptor sketch_codec{
    .name = "sketch",
    .summary = "sum count sketches, then the exact values of the elements that look largest",
    .reference = "Ivkin et al., Sketched-SGD, NeurIPS 2019, arXiv 1903.04488",
    .description =
        "Ranks sum count sketches of their gradients on a ring, take the P k elements whose estimates are largest, "
        "and sum the exact values of these in a second round; the k largest sums are the result, everything else "
        "stays in the residual. Both rounds are plain sums, so the volume does not grow with the number of ranks. "
        "The sizes of the paper could not be verified: five rows, n/40 cells in all, at least 256 in a row, and P = "
        "4 are ours. Hashes go by blocks of 16 neighbours with a sign for each element, which leaves the expected "
        "collisions of an element as they are and makes a block one vector operation; tables of hashes are built "
        "once. Momentum with masking, as in training with the method, is off by default because a capture holds what "
        "its optimiser was given; units too small to gain anything are summed whole. It pays where few elements "
        "carry most of the sum. Where a table has not several times k columns and the gradient is flat, estimates "
        "are noise and the residual grows faster than it drains: then lower `compression`.",
    .params = kParams,
    .aggregation = Aggregation::own,
    .error_feedback = true,
    .payload = "32 n / compression + 32 P k bits, k = round(ratio n); 32 n where that is no less",
    .make_host = nullptr,
    .make_cuda = nullptr,
    .cuda_reducer = GT_CUDA_REDUCER,
};

}  // namespace gradtool
