// DynamiQ on a GPU: bytes and sums equal those of quantiser.cpp.
#include <cuda_runtime.h>

#include <algorithm>
#include <memory>

#include "kernels/cuda/launch.hpp"
#include "kernels/cuda/quads.hpp"
#include "kernels/cuda/tile_scan.hpp"
#include "kernels/cuda/warp.hpp"
#include "kernels/vector.hpp"
#include "lib/codecs/payload.hpp"
#include "lib/methods/dynamiq/reducer.hpp"

namespace gradtool {
namespace {

using cuda::kWarpSize;
using format::kDynamiqGroup;
using format::kDynamiqSuper;

constexpr unsigned kWarps = cuda::kThreads / kWarpSize;        ///< of a block
constexpr unsigned kGroups = kDynamiqSuper / kDynamiqGroup;    ///< of a whole super-group
constexpr unsigned kEach = kDynamiqSuper / kWarpSize;          ///< neighbouring elements of a lane: half a group
constexpr unsigned kLanesOfPack = format::kPackGroup / kEach;  ///< lanes whose codes fill whole words

/// means[j] and squares[j] := bfloat16 of the mean and of the sum of squares of super-group j, by half a warp.
__global__ void statistics_kernel(DynamiqShape shape, const float* values, std::uint16_t* means,
                                  std::uint16_t* squares) {
  const unsigned lane = cuda::lane_in_warp() % kDynamiqGroup;
  for (std::size_t pair = cuda::warp_in_grid(); 2 * pair < shape.super_groups(); pair += cuda::warps_in_grid()) {
    const std::size_t j = 2 * pair + cuda::lane_in_warp() / kDynamiqGroup;
    const auto count = static_cast<unsigned>(shape.elements_of(j));
    const float* x = values + kDynamiqSuper * j;
    float sum = 0.0f;
    float square = 0.0f;
#pragma unroll
    for (unsigned i = 0; i < kDynamiqSuper; i += kDynamiqGroup) {
      const float value = i + lane < count ? x[i + lane] : 0.0f;
      sum += value;
      square += value * value;
    }
#pragma unroll
    for (unsigned half = kDynamiqGroup / 2; half > 0; half /= 2) {
      sum += __shfl_down_sync(cuda::kAllLanes, sum, half);
      square += __shfl_down_sync(cuda::kAllLanes, square, half);
    }
    if (lane != 0 || count == 0) continue;
    means[j] = format::bf16_from_f32(format::one_nan(sum / static_cast<float>(count)));
    squares[j] = format::bf16_from_f32(format::one_nan(square));
  }
}

// The least choice of widths that the budget has room for is found in three rounds, each of which cuts the range that
// is left into 32 and counts the words of codes for the last choice of each of these.
constexpr std::uint32_t kRounds = 3;
static_assert(format::DynamiqWidths::kChoices <= 1u << 5 * kRounds);

/// The last choice of range `lane`, of the 32 that round `round` cuts what begins at `low` into.
__device__ std::uint32_t last_choice(std::uint32_t low, std::uint32_t round, std::uint32_t lane) {
  const std::uint32_t last = low + ((lane + 1) << 5 * (kRounds - 1 - round)) - 1;
  return last < format::DynamiqWidths::kChoices ? last : format::DynamiqWidths::kChoices - 1;
}
/// The first choice that is left after `rounds` rounds, by a whole warp: words[32 r + l] are those of range l in round
/// r.
__device__ std::uint32_t first_left(const unsigned long long* words, std::uint32_t rounds, std::int64_t budget) {
  std::uint32_t low = 0;
  for (std::uint32_t round = 0; round < rounds; ++round) {
    const auto cost = static_cast<std::int64_t>(words[kWarpSize * round + cuda::lane_in_warp()]);
    const unsigned fits = __ballot_sync(cuda::kAllLanes, cost <= budget ? 1 : 0);
    const std::uint32_t range =
        fits == 0 ? kWarpSize - 1 : static_cast<std::uint32_t>(__ffs(static_cast<int>(fits)) - 1);
    low += range << 5 * (kRounds - 1 - round);
  }
  const std::uint32_t last = format::DynamiqWidths::kChoices - 1;
  return low < last ? low : last;
}

__global__ void round_kernel(DynamiqShape shape, const std::uint16_t* squares, std::uint32_t round,
                             unsigned long long* words) {
  const unsigned lane = cuda::lane_in_warp();
  const auto widths = format::DynamiqWidths::choice(last_choice(first_left(words, round, shape.budget), round, lane));
  unsigned long long sum = 0;
  for (std::size_t base = kWarpSize * cuda::warp_in_grid(); base < shape.super_groups();
       base += kWarpSize * cuda::warps_in_grid()) {
    const std::size_t j = base + lane;
    const unsigned own = j < shape.super_groups() ? squares[j] : 0u;
    const auto packs = static_cast<unsigned>(shape.packs(j));  // 0 behind the last
    for (unsigned k = 0; k < kWarpSize; ++k) {
      const auto square = static_cast<std::uint16_t>(__shfl_sync(cuda::kAllLanes, own, k));
      sum += widths.of(square) * __shfl_sync(cuda::kAllLanes, packs, k);
    }
  }
  atomicAdd(words + kWarpSize * round + lane, sum);
}

/// offsets[j] := the words of codes of super-group j, and 0 behind the last.
__global__ void widths_kernel(DynamiqShape shape, const std::uint16_t* squares, const unsigned long long* words,
                              std::uint64_t* offsets) {
  const auto widths = format::DynamiqWidths::choice(first_left(words, kRounds, shape.budget));
  for (std::size_t j = cuda::thread_in_grid(); j <= shape.super_groups(); j += cuda::threads_in_grid())
    offsets[j] = j < shape.super_groups() ? widths.of(squares[j]) * shape.packs(j) : 0;
}

/// starts[i] := the words in front of part i, and of all.
__global__ void starts_kernel(DynamiqShape shape, const std::uint64_t* offsets, std::size_t ranks,
                              std::uint64_t* starts) {
  for (std::size_t i = cuda::thread_in_grid(); i <= ranks; i += cuda::threads_in_grid())
    starts[i] = offsets[shape.super_groups() * i / ranks];
}

__global__ void remove_means_kernel(DynamiqShape shape, const std::uint16_t* means, float share, float* values) {
  for (std::size_t i = cuda::thread_in_grid(); i < shape.n; i += cuda::threads_in_grid())
    values[i] -= format::f32_from_bf16(means[i / kDynamiqSuper]) * share;
}

/// The tables in shared memory, for the whole block.
const __device__ format::DynamiqTables& shared_tables(const format::DynamiqTables& tables) {
  __shared__ format::DynamiqTables shared;
  static_assert(sizeof shared % 4 == 0);
  for (unsigned i = threadIdx.x; i < sizeof shared / 4; i += blockDim.x)
    reinterpret_cast<std::uint32_t*>(&shared)[i] = reinterpret_cast<const std::uint32_t*>(&tables)[i];
  __syncthreads();
  return shared;
}

/// A part of the unit, and the sections of its payload.
struct PartOnGpu {
  DynamiqShape shape;
  DynamiqPart part;
  const std::uint64_t* offsets;
  std::uint16_t* scales;
  std::uint8_t* group_codes;
  std::uint32_t* words;

  /// The first word of super-group j, and its width.
  __device__ std::uint32_t* codes_of(std::size_t j) const { return words + (offsets[j] - offsets[part.first]); }
  __device__ std::uint32_t width(std::size_t j) const {
    return static_cast<std::uint32_t>((offsets[j + 1] - offsets[j]) / shape.packs(j));
  }
};

/// This lane's elements of super-group j, zeros where there are none.
__device__ void load_elements(const float* values, std::size_t j, unsigned count, float (&x)[kEach]) {
  const float* own = values + kDynamiqSuper * j;
#pragma unroll
  for (unsigned q = 0; q < kEach; q += 4) {
    const auto at = static_cast<int>(kEach * cuda::lane_in_warp() + q);
    const auto quad = cuda::load_quad(own, at, static_cast<int>(count), cuda::lead_of(own) == 0);
#pragma unroll
    for (unsigned k = 0; k < 4; ++k) x[q + k] = quad.value[k];
  }
}

/// The draws of this lane's elements.
__device__ void draw(const format::DrawKey& key, std::size_t j, std::uint32_t (&draws)[kEach]) {
#pragma unroll
  for (unsigned q = 0; q < kEach; q += 4) {
    const format::Draws four = format::draw4(key, (kDynamiqSuper * j + kEach * cuda::lane_in_warp() + q) / 4);
#pragma unroll
    for (unsigned k = 0; k < 4; ++k) draws[q + k] = four.bits[k];
  }
}

/// The codes of this lane's elements, packed: a lane's are 2, 4 or 8 bytes.
template <std::uint32_t Bits>
__device__ std::uint64_t codes(const format::DynamiqLevels<Bits>& levels, const float (&x)[kEach],
                               const float (&u)[kEach], float largest) {
  std::uint64_t packed = 0;
#pragma unroll
  for (unsigned k = 0; k < kEach; ++k) {
    const float share = format::float_of(format::bits_of(x[k]) & 0x7fffffffu) / largest;
    std::uint32_t r = 0;
#pragma unroll
    for (std::uint32_t step = (levels.kTop + 1) / 2; step > 0; step /= 2) {
      if (r + step < levels.kTop && levels.magnitude[r + step] <= share) r += step;
    }
    const std::uint32_t code =
        format::dynamiq_code<Bits>(x[k], share, u[k], r, levels.magnitude[r], levels.magnitude[r + 1]);
    packed |= std::uint64_t{code} << (Bits * k);
  }
  return packed;
}

/// A warp for each super-group at a time.
__global__ void encode_kernel(PartOnGpu to, const __grid_constant__ format::DynamiqTables tables, const float* values,
                              DynamiqRounding rounding) {
  const format::DynamiqTables& shared = shared_tables(tables);
  const unsigned lane = cuda::lane_in_warp();
  const unsigned group = lane * kEach / kDynamiqGroup;
  const std::uint64_t behind = to.shape.super_groups() * kDynamiqSuper;  // draws of groups follow those of elements
  if (cuda::thread_in_grid() == 0) {                                     // what fills sections up to whole words
    if (to.part.count % 2 != 0) to.scales[to.part.count] = 0;
    for (std::size_t g = to.part.groups; g % 4 != 0; ++g) to.group_codes[g] = 0;
  }
  for (std::size_t s = cuda::warp_in_grid(); s < to.part.count; s += cuda::warps_in_grid()) {
    const std::size_t j = to.part.first + s;
    const auto count = static_cast<unsigned>(to.shape.elements_of(j));
    float x[kEach];
    load_elements(values, j, count, x);
    std::uint32_t own = 0;  // patterns without the sign bit are ordered as magnitudes are, NaN above all
#pragma unroll
    for (unsigned k = 0; k < kEach; ++k) {
      const std::uint32_t magnitude = format::bits_of(x[k]) & 0x7fffffffu;
      own = magnitude > own ? magnitude : own;
    }
    const std::uint32_t pattern = cuda::warp_max_among(kDynamiqGroup / kEach, own);
    const float largest = format::float_of(pattern);
    const std::uint16_t scale_code = format::dynamiq_scale(format::float_of(cuda::warp_max_among(kWarpSize, pattern)));
    const float scale = format::f32_from_bf16(scale_code);
    if (lane == 0) to.scales[s] = scale_code;

    const format::Draws four = format::draw4(rounding.key, (behind + kGroups * j + group) / 4);
    const std::uint32_t low = group % 2 == 0 ? four.bits[0] : four.bits[1];
    const std::uint32_t high = group % 2 == 0 ? four.bits[2] : four.bits[3];
    if (lane * kEach % kDynamiqGroup == 0 && lane * kEach < count)
      to.group_codes[kGroups * s + group] = format::dynamiq_group_code(largest, scale, group % 4 < 2 ? low : high);

    std::uint32_t draws[kEach];
    draw(rounding.key, j, draws);
    std::uint32_t moves[kEach]{};
    if (rounding.ranks > 1) draw(format::shared_by_ranks(rounding.key), j, moves);
    float u[kEach];
#pragma unroll
    for (unsigned k = 0; k < kEach; ++k)
      u[k] = format::dynamiq_uniform(moves[k], draws[k], rounding.place, rounding.ranks);
    if (lane / kLanesOfPack >= to.shape.packs(j)) continue;  // all lanes have met for the last time
    const bool number = scale >= 0.0f;                       // otherwise all that is decoded is none either
    const float divisor = largest > 0.0f ? largest : 1.0f;
    std::uint32_t* out = to.codes_of(j);
    const std::uint32_t width = to.width(j);
    if (width == 2) {
      reinterpret_cast<std::uint16_t*>(out)[lane] =
          static_cast<std::uint16_t>(number ? codes(shared.two, x, u, divisor) : 0);
    } else if (width == 4) {
      out[lane] = static_cast<std::uint32_t>(number ? codes(shared.four, x, u, divisor) : 0);
    } else {
      const std::uint64_t packed = number ? codes(shared.eight, x, u, divisor) : 0;
      out[2 * lane] = static_cast<std::uint32_t>(packed);
      out[2 * lane + 1] = static_cast<std::uint32_t>(packed >> 32);
    }
  }
}

/// The values of this lane's codes, as shares of their group's scale.
template <std::uint32_t Bits>
__device__ void values_of(const format::DynamiqLevels<Bits>& levels, std::uint64_t packed, float (&x)[kEach]) {
#pragma unroll
  for (unsigned k = 0; k < kEach; ++k) x[k] = levels.value[packed >> (Bits * k) & ((1u << Bits) - 1u)];
}

/// values += what the payload says, or, with means, (means + what it says) * share. A warp for each super-group at a
/// time.
__global__ void decode_kernel(PartOnGpu from, const __grid_constant__ format::DynamiqTables tables,
                              const std::uint16_t* means, float share, float* values) {
  const format::DynamiqTables& shared = shared_tables(tables);
  const unsigned lane = cuda::lane_in_warp();
  for (std::size_t s = cuda::warp_in_grid(); s < from.part.count; s += cuda::warps_in_grid()) {
    const std::size_t j = from.part.first + s;
    const auto count = static_cast<unsigned>(from.shape.elements_of(j));
    if (kEach * lane >= count) continue;
    const std::uint32_t* in = from.codes_of(j);
    const std::uint32_t width = from.width(j);
    float x[kEach];
    if (width == 2)
      values_of(shared.two, reinterpret_cast<const std::uint16_t*>(in)[lane], x);
    else if (width == 4)
      values_of(shared.four, in[lane], x);
    else
      values_of(shared.eight, in[2 * lane] | std::uint64_t{in[2 * lane + 1]} << 32, x);
    const float unit = format::dynamiq_group_scale(from.group_codes[kGroups * s + lane * kEach / kDynamiqGroup],
                                                   format::f32_from_bf16(from.scales[s]));
    float base[kEach];
    if (means == nullptr) load_elements(values, j, count, base);
    const float mean = means == nullptr ? 0.0f : format::f32_from_bf16(means[j]) * share;
    float* out = values + kDynamiqSuper * j + kEach * lane;
#pragma unroll
    for (unsigned q = 0; q < kEach; q += 4) {
      cuda::Four<float> quad;
#pragma unroll
      for (unsigned k = 0; k < 4; ++k)
        quad.value[k] = (means == nullptr ? base[q + k] : mean) + share * (x[q + k] * unit);
      if (cuda::lead_of(values) == 0) {
        cuda::store_quad(quad, out, static_cast<int>(q), static_cast<int>(count - kEach * lane));
        continue;
      }
#pragma unroll
      for (unsigned k = 0; k < 4; ++k) {
        if (kEach * lane + q + k < count) out[q + k] = quad.value[k];
      }
    }
  }
}

/// See DynamiqRing.
class CudaDynamiq : public DynamiqRing {
  using Queue = gradtool::Queue<Space::cuda>;
  template <class T>
  using DeviceView = View<T, Space::cuda>;

 public:
  CudaDynamiq(std::size_t n, double bits, bool uniform, std::size_t ranks, Queue /*queue*/)
      : DynamiqRing{n, bits, ranks},
        tables_{format::DynamiqTables::make(uniform)},
        arena_{padded(8 * kRounds * kWarpSize) + padded(8 * (super_groups() + 1)) + padded(8 * (ranks + 1)) +
               padded(cuda::scan_bytes<std::uint64_t>(super_groups() + 1))},
        words_{arena_.take<unsigned long long>(kRounds * kWarpSize)},
        offsets_{arena_.take<std::uint64_t>(super_groups() + 1)},
        device_starts_{arena_.take<std::uint64_t>(ranks + 1)},
        scan_{arena_.take_bytes(cuda::scan_bytes<std::uint64_t>(super_groups() + 1))},
        read_back_{ranks + 1} {}

  void statistics(Queue queue, DeviceView<const float> values, DeviceView<std::uint16_t> means,
                  DeviceView<std::uint16_t> squares) const {
    if (values.empty()) return;
    cuda::launch(queue, "dynamiq statistics", statistics_kernel, cuda::blocks_for(means.size(), 2 * kWarps), shape_,
                 values.data(), means.data(), squares.data());
  }

  void set_widths(Queue queue, DeviceView<const std::uint16_t> squares) {
    const unsigned blocks = cuda::blocks_for(super_groups() + 1, cuda::kThreads);
    cuda::fill(queue, as_writable_bytes(words_), 0);
    for (std::uint32_t round = 0; round < kRounds; ++round)
      cuda::launch(queue, "dynamiq round", round_kernel, blocks, shape_, squares.data(), round, words_.data());
    cuda::launch(queue, "dynamiq widths", widths_kernel, blocks, shape_, squares.data(), words_.data(),
                 offsets_.data());
    cuda::scan_tiles(queue, offsets_.data(), offsets_.size(), scan_);
    cuda::launch(queue, "dynamiq starts", starts_kernel, cuda::blocks_for(ranks_ + 1, cuda::kThreads), shape_,
                 offsets_.data(), ranks_, device_starts_.data());
    read_back_.fetch(queue, as_bytes(device_starts_));
    const auto starts = read_back_.wait(queue);  // sizes decide what is sent
    std::copy_n(starts.begin(), starts_.size(), starts_.begin());
  }

  void remove_means(Queue queue, DeviceView<const std::uint16_t> means, DeviceView<float> values) const {
    if (values.empty()) return;
    cuda::launch(queue, "dynamiq remove means", remove_means_kernel, cuda::blocks_for(values.size(), cuda::kThreads),
                 shape_, means.data(), share(), values.data());
  }

  void encode(Queue queue, DeviceView<const float> values, std::size_t i, const DynamiqRounding& rounding,
              DeviceView<std::byte> payload) const {
    const PartOnGpu to = part_on_gpu(payload, i);
    if (to.part.count == 0) return;
    cuda::launch(queue, "dynamiq encode", encode_kernel, cuda::blocks_for(to.part.count, kWarps), to, tables_,
                 values.data(), rounding);
  }
  void add(Queue queue, DeviceView<const std::byte> payload, std::size_t i, DeviceView<float> values) const {
    decode(queue, payload, i, nullptr, 1.0f, values);
  }
  void finish(Queue queue, DeviceView<const std::byte> payload, std::size_t i, DeviceView<const std::uint16_t> means,
              DeviceView<float> values) const {
    decode(queue, payload, i, means.data(), share(), values);
  }

 private:
  /// The kernels that read a payload do not write to it.
  [[nodiscard]] PartOnGpu part_on_gpu(DeviceView<const std::byte> payload, std::size_t i) const {
    expect_length("dynamiq", payload.size(), payload_bytes(i));
    const DynamiqPart own = part(i);
    auto* bytes = const_cast<std::byte*>(payload.data());
    return {shape_,
            own,
            offsets_.data(),
            reinterpret_cast<std::uint16_t*>(bytes),
            reinterpret_cast<std::uint8_t*>(bytes + own.group_codes),
            reinterpret_cast<std::uint32_t*>(bytes + own.codes)};
  }
  void decode(Queue queue, DeviceView<const std::byte> payload, std::size_t i, const std::uint16_t* means, float share,
              DeviceView<float> values) const {
    const PartOnGpu from = part_on_gpu(payload, i);
    if (from.part.count == 0) return;
    cuda::launch(queue, "dynamiq decode", decode_kernel, cuda::blocks_for(from.part.count, kWarps), from, tables_,
                 means, share, values.data());
  }

  format::DynamiqTables tables_;
  Arena<Space::cuda> arena_;
  DeviceView<unsigned long long> words_;  ///< of the choices that rounds look at
  DeviceView<std::uint64_t> offsets_;     ///< words of codes in front of every super-group, and of all
  DeviceView<std::uint64_t> device_starts_;
  DeviceView<std::byte> scan_;
  ReadBack<Space::cuda> read_back_;
};

}  // namespace

extern constinit const GpuFactories dynamiq_gpu{
    .reducer = make_method_reducer<Space::cuda, DynamiqReducer<Space::cuda, CudaDynamiq>>};

}  // namespace gradtool
