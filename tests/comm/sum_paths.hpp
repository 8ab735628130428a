#pragma once

#include <fmt/format.h>

#include <cmath>
#include <cstdint>
#include <string_view>

#include "kernels/draws.hpp"
#include "kernels/float_bits.hpp"
#include "tests/comm/rank_memory.hpp"

/// Every uncompressed way from one vector on each rank to their sum on all.
namespace gradtool::test {

inline constexpr Dtype kDtypes[] = {Dtype::f32, Dtype::f16, Dtype::bf16};

/// On many ranks, which are many processes on few cores, f32 stands for all.
inline std::span<const Dtype> dtypes_for(int ranks) {
  return std::span{kDtypes}.first(ranks > 16 ? 1 : 3);
}
/// And one small vector for all sizes.
inline std::vector<std::size_t> sizes_for(int ranks, std::vector<std::size_t> sizes) {
  return ranks > 16 ? std::vector<std::size_t>{3 * static_cast<std::size_t>(ranks) + 1} : sizes;
}

/// Round to `dtype` and back.
inline float rounded(float x, Dtype dtype) {
  if (dtype == Dtype::f16) return format::f32_from_f16(format::f16_from_f32(x));
  if (dtype == Dtype::bf16) return format::f32_from_bf16(format::bf16_from_f32(x));
  return x;
}

/// Floats that are representable in `dtype`, in it.
inline std::vector<std::byte> packed(const std::vector<float>& values, Dtype dtype) {
  std::vector<std::byte> bytes(values.size() * size_of(dtype));
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (dtype == Dtype::f32) {
      std::memcpy(bytes.data() + 4 * i, &values[i], 4);
    } else {
      const std::uint16_t half =
          dtype == Dtype::f16 ? format::f16_from_f32(values[i]) : format::bf16_from_f32(values[i]);
      std::memcpy(bytes.data() + 2 * i, &half, 2);
    }
  }
  return bytes;
}

inline std::vector<float> unpacked(const std::vector<std::byte>& bytes, Dtype dtype) {
  std::vector<float> values(bytes.size() / size_of(dtype));
  for (std::size_t i = 0; i < values.size(); ++i) {
    std::uint16_t half = 0;
    if (dtype == Dtype::f32) {
      std::memcpy(&values[i], bytes.data() + 4 * i, 4);
    } else {
      std::memcpy(&half, bytes.data() + 2 * i, 2);
      values[i] = dtype == Dtype::f16 ? format::f32_from_f16(half) : format::f32_from_bf16(half);
    }
  }
  return values;
}

enum class Path {
  ring,
  doubling,
  automatic,
  server,
  transpose,
  native,
  halves,  ///< reduce-scatter, then an all-gather of the segments
  gather,  ///< all-gather the vectors, and add them here
};
inline constexpr Path kPaths[] = {Path::ring,      Path::doubling, Path::automatic, Path::server,
                                  Path::transpose, Path::native,   Path::halves,    Path::gather};
inline constexpr std::string_view name_of(Path path) {
  constexpr std::string_view kNames[] = {"ring",      "doubling", "automatic", "server",
                                         "transpose", "native",   "halves",    "gather"};
  return kNames[static_cast<int>(path)];
}

/// NCCL chooses by itself how it adds.
template <Space S>
bool has_path(const Rank<S>& rank, Path path) {
  const bool chosen = path == Path::doubling || path == Path::server || path == Path::transpose;
  return !chosen || rank.comm.name() != "nccl";
}

/// The places of the segments of `bytes` bytes.
struct SegmentParts {
  SegmentParts(std::size_t bytes, Dtype dtype, int ranks) {
    for (int r = 0; r < ranks; ++r) {
      const Segment segment = ring_segment(bytes / size_of(dtype), r, ranks);
      sizes.push_back(segment.count * size_of(dtype));
      offsets.push_back(segment.first * size_of(dtype));
    }
  }
  std::vector<std::uint64_t> sizes, offsets;
};

/// The sum over ranks of `bytes` as elements of `dtype`, by `path`. The communicator's algorithm is the ring
/// afterwards.
template <Space S>
std::vector<std::byte> sum_by(Rank<S>& rank, Path path, std::vector<std::byte> bytes, Dtype dtype) {
  auto& comm = rank.comm;
  comm.set_all_reduce(path == Path::doubling    ? AllReduce::doubling
                      : path == Path::automatic ? AllReduce::automatic
                      : path == Path::server    ? AllReduce::server
                      : path == Path::transpose ? AllReduce::transpose
                                                : AllReduce::ring);
  RankMemory<S> memory{bytes.size()};
  RankMemory<S> scratch{comm.scratch_bytes(bytes.size())};
  const auto view = memory.view();
  memory.write(rank.queue, bytes);
  if (path == Path::gather) {
    const auto all = unpacked(rank.all_gather(bytes), dtype);
    std::vector<float> sums(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(bytes.size() / size_of(dtype)));
    for (std::size_t i = sums.size(); i < all.size(); ++i) {
      sums[i % sums.size()] = rounded(sums[i % sums.size()] + all[i], dtype);
    }
    return packed(sums, dtype);
  }
  if (path == Path::native) {
    comm.all_reduce_native(rank.queue, view, dtype, scratch.view());
  } else if (path == Path::halves) {
    comm.reduce_scatter_sum(rank.queue, view, dtype, scratch.view());
    const SegmentParts parts{bytes.size(), dtype, rank.size()};
    const auto self = static_cast<std::size_t>(rank.rank());
    comm.all_gather_v(rank.queue, view.part(parts.offsets[self], parts.sizes[self]), parts.sizes, parts.offsets, view);
  } else {
    comm.all_reduce_sum(rank.queue, view, dtype, scratch.view());
  }
  comm.set_all_reduce(AllReduce::ring);
  memory.read(rank.queue, bytes);
  return bytes;
}

/// A value whose sums round: uniform on [-1, 1) times a power of two from 2^-8 to 2^7.
inline float rough_value(std::size_t i, int rank) {
  const format::Draws draws =
      format::draw4({.seed = 11, .step = 0, .rank = static_cast<std::uint32_t>(rank), .tensor = 0}, i);
  return std::ldexp(2 * format::uniform(draws.bits[0]) - 1, static_cast<int>(draws.bits[1] % 16) - 8);
}

}  // namespace gradtool::test
