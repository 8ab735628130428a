// OptiReduce on the CPU: a transpose all-reduce between whose ranks packets are lost.
#include <algorithm>

#include "kernels/float_bits.hpp"
#include "lib/codecs/registry.hpp"
#include "lib/core/task_pool.hpp"
#include "lib/methods/optireduce/reducer.hpp"

namespace gradtool {
namespace {

constexpr std::size_t kGrain = 1 << 14;
constexpr std::size_t kSigns = 128;  ///< elements whose signs one call of draw4 gives

/// to[i] := factor * from[i], with the sign that bit i of `bits` says.
GT_SIMD_CLONES void turn(const float* __restrict from, float factor, const std::uint32_t* __restrict bits,
                         std::size_t count, float* __restrict to) {
  const auto turn_one = [&](std::size_t i, std::uint32_t j) {
    const std::uint32_t sign = (*bits >> j) << 31;
    to[i + j] = format::one_nan(format::float_of(format::bits_of(factor * from[i + j]) ^ sign));
  };
  std::size_t i = 0;
  for (; i + 32 <= count; i += 32, ++bits) {
    for (std::uint32_t j = 0; j < 32; ++j) turn_one(i, j);
  }
  for (std::uint32_t j = 0; i + j < count; ++j) turn_one(i, j);
}

/// Transforms columns `first` to `last` - 1 of a row-major matrix by the Hadamard matrix of its number of rows, in
/// natural (Sylvester's) order and not normalised. Two of its log2(order) steps are taken at once, in registers, with
/// the sums that one after the other would make.
GT_SIMD_CLONES void transform_columns(float* x, const format::RotationShape& shape, std::size_t first,
                                      std::size_t last) {
  const bool whole = last - first == shape.columns;  // rows then lie one behind the other
  std::size_t h = 1;
  for (; 4 * h <= shape.order; h *= 4) {
    const std::size_t rows = whole ? 1 : h;
    const std::size_t count = whole ? h * shape.columns : last - first;
    for (std::size_t base = 0; base < shape.order; base += 4 * h) {
      for (std::size_t row = base; row < base + rows; ++row) {
        float* __restrict a = x + row * shape.columns + first;
        float* __restrict b = a + h * shape.columns;
        float* __restrict c = b + h * shape.columns;
        float* __restrict d = c + h * shape.columns;
        for (std::size_t i = 0; i < count; ++i) {
          const float low_sum = a[i] + b[i], low_rest = a[i] - b[i], high_sum = c[i] + d[i], high_rest = c[i] - d[i];
          a[i] = low_sum + high_sum;
          b[i] = low_rest + high_rest;
          c[i] = low_sum - high_sum;
          d[i] = low_rest - high_rest;
        }
      }
    }
  }
  if (h < shape.order) {
    const std::size_t rows = whole ? 1 : h;
    const std::size_t count = whole ? h * shape.columns : last - first;
    for (std::size_t base = 0; base < shape.order; base += 2 * h) {
      for (std::size_t row = base; row < base + rows; ++row) {
        float* __restrict upper = x + row * shape.columns + first;
        float* __restrict lower = upper + h * shape.columns;
        for (std::size_t i = 0; i < count; ++i) {
          const float sum = upper[i] + lower[i];
          lower[i] = upper[i] - lower[i];
          upper[i] = sum;
        }
      }
    }
  }
}

/// The steps of OptireduceReducer on the CPU.
struct HostSteps {
  static void turn(Queue<Space::host> queue, const format::DrawKey* key, float factor, HostView<const float> from,
                   HostView<float> to) {
    parallel_for(queue, from.size(), kSigns, kGrain, [&](std::size_t first, std::size_t last) {
      format::Draws signs{};
      for (std::size_t i = first; i < last; i += kSigns) {
        if (key != nullptr) signs = format::draw4(*key, i / kSigns);
        gradtool::turn(from.data() + i, factor, signs.bits, std::min(kSigns, last - i), to.data() + i);
      }
    });
  }

  static void transform(Queue<Space::host> queue, const format::RotationShape& shape, HostView<float> x) {
    constexpr std::size_t kLine = 16;                                                // floats of a cache line
    const std::size_t tile = std::max(kLine, (std::size_t{1} << 15) / shape.order);  // 128 KiB, for the cache
    parallel_for(queue, shape.columns, kLine, std::max(kLine, kGrain / shape.order),
                 [&](std::size_t first, std::size_t last) {
                   for (std::size_t at = first; at < last; at += tile)
                     transform_columns(x.data(), shape, at, std::min(last, at + tile));
                 });
  }

  static void mark(Queue<Space::host> /*queue*/, const format::MessageLoss& message, std::size_t packets,
                   std::uint8_t* lost) {
    for (std::size_t i = 0; i < packets; ++i) lost[i] = message.loses(i) ? 1 : 0;
  }

  static void average(Queue<Space::host> queue, const OptireduceShard<Space::host>& shard,
                      HostView<const float> received, const std::uint8_t* lost, bool over_all) {
    const std::size_t n = shard.values.size();
    const std::size_t packets = shard.packets();
    const std::size_t others = n == 0 ? 0 : received.size() / n;
    parallel_for(queue, packets, 1, std::max<std::size_t>(1, kGrain / shard.each),
                 [&](std::size_t first, std::size_t last) {
                   for (std::size_t i = first; i < last; ++i) {
                     const auto sum = packet(shard, i);
                     std::size_t arrived = 1;
                     for (std::size_t k = 0; k < others; ++k) {
                       if (lost[k * packets + i] != 0) continue;
                       add({}, received.part(k * n + i * shard.each, sum.size()), sum);
                       ++arrived;
                     }
                     scale({}, sum, 1.0F / static_cast<float>(over_all ? others + 1 : arrived));
                   }
                 });
  }

  static void zero_lost(Queue<Space::host> queue, const format::MessageLoss& message,
                        const OptireduceShard<Space::host>& shard) {
    for (std::size_t i = 0; i < shard.packets(); ++i) {
      if (message.loses(i)) fill_zero(queue, packet(shard, i));
    }
  }

 private:
  static HostView<float> packet(const OptireduceShard<Space::host>& shard, std::size_t number) {
    const std::size_t first = number * shard.each;
    return shard.values.part(first, std::min(shard.each, shard.values.size() - first));
  }
};

constexpr ParamInfo kParams[] = {
    real_param("loss", "0.01", {0.0, 1.0}, "share of packets lost").searched("0.001|0.01|0.1"),
    choice_param("model", "tail", "tail|iid",
                 "which packets are lost: the last of every message, as by a time-out, or any"),
    choice_param("direction", "both", "both|push|pull",
                 "where packets are lost: on their way to be averaged (push), as means (pull), or both"),
    choice_param("average", "arrived", "arrived|all",
                 "divide by the ranks whose packet arrived, or by all, with zero for those missing"),
    choice_param("hadamard", "on", "off|on",
                 "rotate blocks by random signs and a Hadamard transform, which spreads what is lost"),
    integer_param("block", "1024", {2, 65536}, "elements that are rotated together, a power of two"),
    integer_param("packet", "1436", {4, 65532}, "bytes of elements in a packet, a multiple of 4")};

}  // namespace

extern constinit const CodecDescriptor optireduce_codec{
    .name = "optireduce",
    .summary = "sends rotated shards to owners that do not wait for the last packets; all elements share the loss",
    .reference = "Warraich et al., OptiReduce, NSDI 2025, arXiv 2310.06993 (emulation)",
    .params = kParams,
    .aggregation = Aggregation::own,
    .memory = true,
    .determinism = Determinism::cross_backend,
    .payload = "32 n bits; hadamard=on: n rounded up to whole blocks",
    .make_host_reducer = make_method_reducer<Space::host, OptireduceReducer<Space::host, HostSteps>>,
};

}  // namespace gradtool
