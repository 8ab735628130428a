#pragma once

#include "lib/comm/traffic.hpp"
#include "tests/comm/sum_paths.hpp"

/// All ways to sum agree where they must, and each keeps what it promises.
namespace gradtool::test {

/// Integers whose sums over up to 64 ranks are exact in every dtype and every order.
inline float exact_value(std::size_t i, int rank) {
  return static_cast<float>(static_cast<int>((i * 5 + i / 7 + static_cast<std::size_t>(rank) * 3) % 7) - 3);
}

template <Space S>
void sums_alike_on_every_path(Communicator<S>& comm, Queue<S> queue) {
  Rank<S> rank{comm, queue};
  const auto p = static_cast<std::size_t>(rank.size());
  for (const Dtype dtype : dtypes_for(rank.size())) {
    const std::size_t large = dtype == Dtype::f32 ? 70'001 : 1009;  // more than a piece of doubling
    for (const std::size_t n : sizes_for(rank.size(), {0, 1, p - 1, p, 3 * p + 1, large})) {
      std::vector<float> values(n);
      std::vector<float> expected(n);
      for (std::size_t i = 0; i < n; ++i) {
        values[i] = exact_value(i, rank.rank());
        for (int r = 0; r < rank.size(); ++r) expected[i] += exact_value(i, r);
      }
      for (const Path path : kPaths) {
        if (!has_path(rank, path)) continue;
        require(unpacked(sum_by(rank, path, packed(values, dtype), dtype), dtype) == expected,
                fmt::format("{} elements of {} by {}: not the exact sum", n, name_of(dtype), name_of(path)));
      }
    }
  }
}

/// Sums are the same on all ranks, whatever rounds; also NaNs that say different things.
template <Space S>
void agrees_in_every_bit_on_every_path(Communicator<S>& comm, Queue<S> queue) {
  Rank<S> rank{comm, queue};
  for (const Dtype dtype : dtypes_for(rank.size())) {
    std::vector<float> values(1021);
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = rounded(rough_value(i, rank.rank()), dtype);
    values[7] = rank.rank() % 2 == 0 ? INFINITY : -INFINITY;
    const auto bytes = packed(values, dtype);
    auto with_nan = bytes;
    std::byte* last = with_nan.data() + with_nan.size();  // of the last element, whose lowest bits say who it is from
    last[-1] = std::byte{0x7f};
    last[-2] = std::byte{0xff};
    last[-static_cast<std::ptrdiff_t>(size_of(dtype))] = static_cast<std::byte>(0xC0 + rank.rank());
    for (const Path path : kPaths) {
      if (!has_path(rank, path)) continue;
      const bool ours = path != Path::native && comm.name() != "nccl";
      const auto sums = sum_by(rank, path, ours ? with_nan : bytes, dtype);
      const auto all = rank.all_gather(sums);
      for (int r = 0; r < rank.size(); ++r) {
        require(std::equal(sums.begin(), sums.end(), all.begin() + static_cast<std::ptrdiff_t>(sums.size()) * r),
                fmt::format("{} by {}: ranks {} and {} differ", name_of(dtype), name_of(path), rank.rank(), r));
      }
    }
  }
}

/// A rank's own segment is final after the reduce-scatter, in the bits of the ring.
template <Space S>
void scatters_the_bits_of_the_ring(Communicator<S>& comm, Queue<S> queue) {
  Rank<S> rank{comm, queue};
  if (comm.name() == "nccl") return;  // it adds in an order of its own
  for (const Dtype dtype : dtypes_for(rank.size())) {
    for (const std::size_t n : sizes_for(rank.size(), {1, 1777})) {
      std::vector<float> values(n);
      for (std::size_t i = 0; i < n; ++i) values[i] = rounded(rough_value(i, rank.rank()), dtype);
      auto bytes = packed(values, dtype);
      const auto whole = sum_by(rank, Path::ring, bytes, dtype);
      require(sum_by(rank, Path::halves, bytes, dtype) == whole, "a gather of the segments is not the all-reduce");
      RankMemory<S> memory{bytes.size()};
      RankMemory<S> scratch{comm.scratch_bytes(bytes.size())};
      memory.write(queue, bytes);
      comm.reduce_scatter_sum(queue, memory.view(), dtype, scratch.view());
      memory.read(queue, bytes);
      const SegmentParts parts{bytes.size(), dtype, rank.size()};
      const auto self = static_cast<std::size_t>(rank.rank());
      const auto first = static_cast<std::ptrdiff_t>(parts.offsets[self]);
      require(std::equal(bytes.begin() + first, bytes.begin() + first + static_cast<std::ptrdiff_t>(parts.sizes[self]),
                         whole.begin() + first),
              "a rank's own segment is not that of the all-reduce");
    }
  }
}

/// Fold, double, hand back: element by element as the contract says.
template <Space S>
void doubles_in_the_stated_order(Communicator<S>& comm, Queue<S> queue) {
  Rank<S> rank{comm, queue};
  if (!has_path(rank, Path::doubling)) return;
  const int p = rank.size();
  int q = 1;
  while (2 * q <= p) q *= 2;
  for (const Dtype dtype : dtypes_for(rank.size())) {
    std::vector<float> values(211);
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = rounded(rough_value(i, rank.rank()), dtype);
    const auto sums = unpacked(sum_by(rank, Path::doubling, packed(values, dtype), dtype), dtype);
    for (std::size_t i = 0; i < values.size(); ++i) {
      std::vector<float> held(static_cast<std::size_t>(p));
      for (int r = 0; r < p; ++r) held[static_cast<std::size_t>(r)] = rounded(rough_value(i, r), dtype);
      const auto at = [&](int r) -> float& { return held[static_cast<std::size_t>(r)]; };
      for (int r = q; r < p; ++r) at(r - q) = rounded(at(r - q) + at(r), dtype);
      for (int block = 2; block <= q; block *= 2) {  // the sum of a block is that of its halves
        for (int r = 0; r < q; r += block) at(r) = rounded(at(r) + at(r + block / 2), dtype);
      }
      if (sums[i] == at(0)) continue;
      require(false, fmt::format("{}: element {} is {:.9g}, recursive doubling gives {:.9g}", name_of(dtype), i,
                                 sums[i], at(0)));
    }
  }
}

/// The server adds in the order of ranks, the owner of a segment beginning with its own; small views take the ring.
template <Space S>
void concentrates_in_the_stated_order(Communicator<S>& comm, Queue<S> queue) {
  Rank<S> rank{comm, queue};
  if (!has_path(rank, Path::server)) return;
  const int p = rank.size();
  const auto ranks = static_cast<std::size_t>(p);
  for (const Dtype dtype : dtypes_for(p)) {
    for (const std::size_t n : {ranks * ranks - 1, ranks * ranks, ranks * ranks + 211}) {
      std::vector<float> values(n);
      for (std::size_t i = 0; i < n; ++i) values[i] = rounded(rough_value(i, rank.rank()), dtype);
      const auto bytes = packed(values, dtype);
      for (const Path path : {Path::server, Path::transpose}) {
        const auto sums = unpacked(sum_by(rank, path, bytes, dtype), dtype);
        for (int s = 0; s < p; ++s) {
          const Segment segment = ring_segment(n, s, p);
          const int first = !concentrates_elements(n, p) ? s + 1 : path == Path::server ? 0 : s;
          for (std::size_t i = segment.first; i < segment.first + segment.count; ++i) {
            float sum = rounded(rough_value(i, first % p), dtype);
            for (int k = 1; k < p; ++k) sum = rounded(sum + rounded(rough_value(i, (first + k) % p), dtype), dtype);
            require(sums[i] == sum, fmt::format("{} by {}: element {} of {} is {:.9g}, the stated order gives {:.9g}",
                                                name_of(dtype), name_of(path), i, n, sums[i], sum));
          }
        }
      }
    }
  }
}

/// Every way to sum sends the bytes of its formula, and as many messages.
template <Space S>
void counts_every_path_by_its_formula(Communicator<S>& comm, Queue<S> queue) {
  Rank<S> rank{comm, queue};
  const int p = rank.size();
  const auto ranks = static_cast<std::size_t>(p);
  for (const std::size_t n : sizes_for(p, {0, 1, ranks, 20 * ranks + 1, 140'000 / ranks})) {
    for (const Dtype dtype : dtypes_for(p)) {
      const std::size_t element = size_of(dtype);
      const std::uint64_t ring = ring_all_reduce_bytes(n, element, rank.rank(), p);
      const std::uint64_t doubling = doubling_all_reduce_bytes(n * element, rank.rank(), p);
      for (const Path path : kPaths) {
        if (!has_path(rank, path)) continue;
        comm.reset_traffic();
        sum_by(rank, path, std::vector<std::byte>(n * element), dtype);
        const bool doubles = path == Path::doubling ||
                             (path == Path::automatic && n * element <= kDoublingMost && comm.name() != "nccl");
        const bool concentrates = concentrates_elements(n, p);
        const std::uint64_t expected =
            path == Path::gather                      ? (ranks - 1) * n * element
            : doubles                                 ? doubling
            : concentrates && path == Path::server    ? server_all_reduce_bytes(n * element, rank.rank(), p)
            : concentrates && path == Path::transpose ? transpose_all_reduce_bytes(n, element, rank.rank(), p)
                                                      : ring;
        require(comm.traffic().bytes_sent == expected,
                fmt::format("{} elements by {}: {} bytes counted, the formula says {}", n, name_of(path),
                            comm.traffic().bytes_sent, expected));
        require(comm.traffic().collectives == (path == Path::halves ? 2U : 1U), "a sum is not one collective");
        if (doubles && n > 0 && n * element <= kDoublingMost) {
          require(comm.traffic().messages_sent == doubling / (n * element), "doubling small views takes more messages");
        }
      }
    }
  }
}

}  // namespace gradtool::test
