#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include "lib/core/dtype.hpp"

// Names, limits and chunk shapes of the gradient file, schema 1 (docs/gradient-file.md).
namespace gradtool::schema {

inline constexpr std::string_view kFormat = "gradtool.gradients";
inline constexpr int kVersion = 1;

/// `expert`: weights of one or more experts of a mixture; `router`: what chooses among them.
inline constexpr std::array<std::string_view, 9> kKinds{"conv",      "linear", "expert", "router", "embedding",
                                                        "recurrent", "norm",   "bias",   "other"};

/// The values that the attribute `reduce_dtype` may have.
inline constexpr std::array<std::pair<std::string_view, Dtype>, 3> kReduceDtypes{
    {{"float32", Dtype::f32}, {"float16", Dtype::f16}, {"bfloat16", Dtype::bf16}}};

/// The quantities that `gradient` may hold; the first is meant where a file does not say.
inline constexpr std::array<std::string_view, 5> kQuantities{"gradient", "pseudo_gradient", "weight_delta", "weight",
                                                             "activation"};

// These limits are far beyond any training run. They bound the memory that a damaged file can make a reader allocate.
inline constexpr std::int64_t kMaxSteps = std::int64_t{1} << 22;
inline constexpr std::int64_t kMaxWorkers = std::int64_t{1} << 20;
inline constexpr std::size_t kMaxTensors = std::size_t{1} << 20;
inline constexpr std::size_t kMaxRank = 32;
inline constexpr std::size_t kMaxName = 1024;

/// The largest chunk that a writer makes. Readers accept larger chunks in data sets without filters, because they never
/// hold such a chunk in memory.
inline constexpr std::uint64_t kMaxChunkBytes = std::uint64_t{4} << 20;
/// The largest chunk of a data set with filters that a reader unpacks.
inline constexpr std::uint64_t kMaxFilteredChunkBytes = std::uint64_t{64} << 20;

}  // namespace gradtool::schema

namespace gradtool {

/// The chunk shape {steps, workers, elements} of a data set [S, W, n] of values of `value_bytes` bytes, with S
/// unlimited. A chunk has at most 4 MiB. For large tensors it holds one step of one worker, with the element axis cut
/// into equal parts. For small tensors it holds several workers, up to 64 KiB, and when all workers fit also several
/// steps, up to 4 KiB. This keeps both the chunk index and the padding small: a chunk occupies its whole size on disk
/// from its first value on.
[[nodiscard]] std::vector<std::uint64_t> chunk_shape(std::uint64_t workers, std::uint64_t elements,
                                                     std::uint64_t value_bytes);

}  // namespace gradtool
