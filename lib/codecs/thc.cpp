#include "lib/codecs/registry.hpp"

namespace gradtool {
namespace {

constexpr ParamInfo kParams[] = {
    {.name = "bits",
     .kind = ParamInfo::Kind::choice,
     .default_value = "3",
     .choices = "3|4",
     .meaning = "of a code on its way to the owner of its part"},
    {.name = "table",
     .kind = ParamInfo::Kind::choice,
     .default_value = "optimal",
     .choices = "optimal|uniform",
     .meaning = "values of the codes: least expected error for normal numbers, or evenly spaced"},
    {.name = "seed",
     .kind = ParamInfo::Kind::integer,
     .default_value = "42",
     .min = 0,
     .max = 9007199254740992.0,
     .meaning = "of the signs of the rotation, the same on all ranks"}};

}  // namespace

extern constinit const CodecDescriptor thc_codec{
    .name = "thc",
    .summary = "rotated, rounded to a shared table of whole numbers, and summed without decoding",
    .reference = "Li et al., THC, NSDI 2024, arXiv 2302.08545",
    .description =
        "Ranks agree on the largest norm, rotate their gradients (random signs, then Hadamard transforms of 1024), "
        "which makes every element about normal, clamp it and round it stochastically to one of a few values that "
        "are whole numbers on a common scale. Each rank owns a part of the gradient, as with sharded parameter "
        "servers: it gets everybody's codes for it, adds the whole numbers and hands the sums, one byte each, to "
        "all; nothing is decoded before the end. The 3-bit table is that of the authors' code; the 4-bit one (top "
        "30, 1/32 clamped) was computed by the same criterion, which gives their 3-bit table back. Sums need p top "
        "<= 255 for bytes, 6 ranks with top 42, else two bytes travel. Decided here: a short last block is padded to "
        "a power of two only, the norm is that of the whole unit, so units whose layers differ much in scale are "
        "clamped more, and error feedback is on. It pays on networks slow enough for 3 bits up and 8 down, with "
        "cheap aggregation and an error that averages out over ranks.",
    .params = kParams,
    .aggregation = Aggregation::own,
    .error_feedback = true,
    .payload = "bits d + 8 d/p + 32 bits, d = n with its last block padded to a power of two; 16 d/p for p top > 255",
    .make_host = nullptr,
    .make_cuda = nullptr,
    .cuda_reducer = GT_CUDA_REDUCER,
};

}  // namespace gradtool
