#include "lib/codecs/registry.hpp"

namespace gradtool {
namespace {

constexpr ParamInfo kParams[] = {
    {.name = "density",
     .default_value = "0.01",
     .min = 0.0,
     .max = 1.0,
     .meaning = "share of the elements that a rank keeps, those with the largest magnitude; at least one"},
    {.name = "ratio",
     .default_value = "10",
     .min = 1.0,
     .max = 1e6,
     .choices = "auto",
     .meaning = "elements for each cell of the table; auto takes what the ranks' elements together need"},
    {.name = "block",
     .kind = ParamInfo::Kind::integer,
     .default_value = "auto",
     .min = 1,
     .max = 1024,
     .choices = "auto",
     .meaning = "neighbours that are hashed together, a power of two, 1024 in the paper; auto: fewer where they would "
                "hold too few kept elements to peel"},
    {.name = "seed",
     .kind = ParamInfo::Kind::integer,
     .default_value = "42",
     .min = 0,
     .max = 9007199254740992.0,
     .meaning = "of the hash functions, the same on all ranks"}};

}  // namespace

extern constinit const CodecDescriptor lhc_codec{
    .name = "lhc",
    .summary = "sparse gradients in hash tables that add, decoded exactly by peeling",
    .reference = "Li et al., lossless homomorphic compression, arXiv 2402.07529",
    .description =
        "Ranks keep their largest elements, or their bitmaps together on a ring, and add a small table in which every "
        "kept element lies, with a sign, in three hashed cells. As all know which elements the table holds, a cell "
        "with "
        "one unknown gives it, taking that one out makes others single, and so the sum comes out again, but for "
        "rounding, as long as there are 1.23 cells for each element of all ranks together; what is stuck is estimated "
        "by the median of its cells. "
        "The authors sum 4-bit counters because NCCL cannot OR bits; our ring ORs, a quarter of that. Their mask flag "
        "in "
        "the lowest bit of values is not needed. The three hashes have sub-tables of their own. Blocks of 1024 "
        "neighbours, "
        "which suit a GPU, leave pairs that share all their cells in many lanes, so blocks are smaller by default; "
        "cells "
        "are emptied first come, first out, as rounding grows with the way an element took. ratio=auto, which waits "
        "for the "
        "bitmap, is ours; where a table would not be smaller than the gradient, values are summed whole. "
        "On a GPU cells are emptied in rounds instead, so that sums differ from the CPU's by rounding. "
        "It pays for gradients that are sparse in the same places; once the bitmap is known, sending only the marked "
        "values would take fewer bytes, and what tables gain is that both can travel at once.",
    .params = kParams,
    .aggregation = Aggregation::own,
    .error_feedback = true,
    .determinism = Determinism::run_to_run,
    .payload = "n + 32 n / ratio bits",
    .make_host = nullptr,
    .make_cuda = nullptr,
    .cuda_reducer = GT_CUDA_REDUCER,
};

}  // namespace gradtool
