#pragma once

#include <array>
#include <cstdint>
#include <string_view>

// Names and limits of the gradient file, schema 1 (docs/gradient-file.md).
namespace gradtool::schema {

inline constexpr std::string_view kFormat = "gradtool.gradients";
inline constexpr int kVersion = 1;

inline constexpr std::array<std::string_view, 7> kKinds{"conv", "linear", "embedding", "recurrent",
                                                        "norm", "bias",   "other"};

// Far beyond any training run; they keep memory small when a file lies.
inline constexpr std::int64_t kMaxSteps = std::int64_t{1} << 22;
inline constexpr std::int64_t kMaxWorkers = std::int64_t{1} << 20;
inline constexpr std::size_t kMaxTensors = std::size_t{1} << 20;
inline constexpr std::size_t kMaxRank = 32;
inline constexpr std::size_t kMaxName = 1024;

/// Writers keep to this; a reader never holds a chunk of an unfiltered data set in memory, so it takes larger ones.
inline constexpr std::uint64_t kMaxChunkBytes = std::uint64_t{4} << 20;
/// What a reader is willing to unpack at once.
inline constexpr std::uint64_t kMaxFilteredChunkBytes = std::uint64_t{64} << 20;

}  // namespace gradtool::schema
