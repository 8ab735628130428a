#include "lib/methods/sketch/count_sketch.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <type_traits>

#include "kernels/lanes.hpp"
#include "lib/core/task_pool.hpp"

namespace gradtool {
namespace {

constexpr std::size_t kLanes = CountSketch::kLanes;

using format::with_sign;

// GCC unrolls a loop of 16 turns before it tries to vectorise it. `GCC unroll 1` keeps it from that.

GT_SIMD_CLONES void add_row(const float* __restrict x, std::size_t n, const std::uint32_t* __restrict buckets,
                            const std::uint16_t* __restrict signs, float* __restrict row) {
  const std::size_t whole = n / kLanes;
  for (std::size_t b = 0; b < whole; ++b) {
    float* cells = row + buckets[b];
    const std::uint32_t signs_of_block = signs[b];
#pragma GCC unroll 1
    for (std::size_t l = 0; l < kLanes; ++l) cells[l] += with_sign(x[kLanes * b + l], signs_of_block, l);
  }
  for (std::size_t l = 0; kLanes * whole + l < n; ++l) {
    row[buckets[whole] + l] += with_sign(x[kLanes * whole + l], signs[whole], l);
  }
}

/// The estimates of blocks first to last - 1, each in vectors of `Bytes` bytes, which stay in registers.
template <std::size_t Rows>
struct EstimateBlocks {
  template <std::size_t Bytes>
  [[gnu::always_inline]] static void run(const float* cells, std::size_t stride, const std::uint32_t* buckets,
                                         const std::uint16_t* signs, std::size_t blocks, std::size_t first,
                                         std::size_t last, float* out, std::size_t n) {
    using Floats = host::Vector<float, Bytes>;
    using Words = host::Vector<std::uint32_t, Bytes>;
    constexpr std::size_t kAtOnce = Bytes / sizeof(float);
    for (std::size_t block = first; block < last; ++block) {
      alignas(64) std::array<float, kLanes> medians;
      for (std::size_t lane = 0; lane < kLanes; lane += kAtOnce) {
        Words places;  // of the lanes' signs
        for (std::size_t l = 0; l < kAtOnce; ++l) places[l] = static_cast<std::uint32_t>(31 - (lane + l));
        Floats v[Rows];
#pragma GCC unroll 7
        for (std::size_t r = 0; r < Rows; ++r) {
          Words bits;
          std::memcpy(&bits, cells + r * stride + buckets[r * blocks + block] + lane, sizeof bits);
          const Words sign = (Words{} + signs[r * blocks + block]) << places & 0x80000000U;
          v[r] = reinterpret_cast<Floats>(bits ^ sign);
        }
        // Sorts the rows' numbers of each lane, as format::sketch_median does.
#pragma GCC unroll 7
        for (std::size_t pass = 0; pass < Rows; ++pass) {
#pragma GCC unroll 7
          for (std::size_t r = pass % 2; r + 1 < Rows; r += 2) {
            const Floats a = v[r];
            const Floats b = v[r + 1];
            v[r] = b < a ? b : a;
            v[r + 1] = b < a ? a : b;
          }
        }
        std::memcpy(medians.data() + lane, &v[Rows / 2], sizeof(Floats));
      }
      std::copy_n(medians.data(), std::min(kLanes, n - kLanes * block), out + kLanes * block);
    }
  }
};

}  // namespace

CountSketch::CountSketch(Queue<Space::host> queue, std::size_t n, std::size_t rows, std::size_t columns,
                         std::uint64_t seed)
    : n_{n},
      blocks_{(n + kLanes - 1) / kLanes},
      rows_{rows},
      columns_{columns},
      state_{Arena<Space::host>::padded_size(4 * blocks_ * rows) + Arena<Space::host>::padded_size(2 * blocks_ * rows)},
      buckets_{state_.take<std::uint32_t>(blocks_ * rows)},
      signs_{state_.take<std::uint16_t>(blocks_ * rows)} {
  expects(rows % 2 == 1 && rows <= kMaxRows, "a count sketch has 1, 3, 5 or 7 rows");
  expect_valid(columns >= kLanes && columns < (std::size_t{1} << 32), "a count sketch has from 16 to 2^32 - 1 columns");
  for (std::size_t row = 0; row < rows; ++row) {
    parallel_for(queue, blocks_, 1, 1 << 10, [&](std::size_t first, std::size_t last) {
      for (std::size_t b = first; b < last; ++b) {
        const format::SketchHash hash = format::sketch_hash(seed, static_cast<std::uint32_t>(row), b, columns);
        buckets_[row * blocks_ + b] = hash.bucket;
        signs_[row * blocks_ + b] = static_cast<std::uint16_t>(hash.signs);
      }
    });
  }
}

/// One thread makes a row, so that cells add in the order of the elements whatever the number of threads. What went
/// past the end of the row is added to its first cells last.
void CountSketch::add_up(Queue<Space::host> queue, HostView<const float> x, HostView<float> cells,
                         HostView<float> scratch) const {
  parallel_for(queue, rows_, 1, 1, [&](std::size_t first, std::size_t last) {
    for (std::size_t row = first; row < last; ++row) {
      float* sums = scratch.data() + row * stride();
      std::fill_n(sums, stride(), 0.0F);
      add_row(x.data(), n_, buckets_.data() + row * blocks_, signs_.data() + row * blocks_, sums);
      for (std::size_t l = 0; l + 1 < kLanes; ++l) sums[l] += sums[columns_ + l];
      std::copy_n(sums, columns_, cells.data() + row * columns_);
    }
  });
}

void CountSketch::estimate(Queue<Space::host> queue, HostView<const float> cells, HostView<float> out,
                           HostView<float> scratch) const {
  for (std::size_t row = 0; row < rows_; ++row) {
    const float* own = cells.data() + row * columns_;
    float* end = std::copy_n(own, columns_, scratch.data() + row * stride());
    std::copy_n(own, kLanes - 1, end);
  }
  const auto run = [&]<std::size_t Rows>(std::integral_constant<std::size_t, Rows>) {
    parallel_for(queue, blocks_, 1, 1 << 10, [&](std::size_t first, std::size_t last) {
      host::run_with_vectors<EstimateBlocks<Rows>>(
          static_cast<const float*>(scratch.data()), stride(), static_cast<const std::uint32_t*>(buckets_.data()),
          static_cast<const std::uint16_t*>(signs_.data()), blocks_, first, last, out.data(), n_);
    });
  };
  switch (rows_) {
    case 1:
      return run(std::integral_constant<std::size_t, 1>{});
    case 3:
      return run(std::integral_constant<std::size_t, 3>{});
    case 5:
      return run(std::integral_constant<std::size_t, 5>{});
    default:
      return run(std::integral_constant<std::size_t, 7>{});
  }
}

}  // namespace gradtool
