#include <array>
#include <atomic>
#include <cstring>

#include "kernels/vector.hpp"
#include "lib/codecs/payload.hpp"
#include "lib/codecs/registry.hpp"
#include "lib/core/scratch.hpp"
#include "lib/core/task_pool.hpp"
#include "lib/methods/uint8/format.hpp"

namespace gradtool {
namespace {

using format::kUint8Buckets;
using format::kUint8CodesOffset;
using format::Uint8Unit;

/// Sums and counts of the elements of each bucket of values.
struct BucketSums {
  std::array<std::int64_t, kUint8Buckets> sum;
  std::array<std::uint64_t, kUint8Buckets> count;
};

/// Codes of the elements, and the integers that are to be added up.
GT_SIMD_CLONES void write_codes(const Uint8Unit& unit, const float* x, std::size_t count, std::uint8_t* codes,
                                std::int32_t* integers) {
  for (std::size_t i = 0; i < count; ++i) codes[i] = static_cast<std::uint8_t>(unit.code(x[i]));
  for (std::size_t i = 0; i < count; ++i) integers[i] = unit.integer(x[i]);
}

GT_SIMD_CLONES void add_codes(const std::uint8_t* codes, std::size_t count, const float* values, float* out) {
  for (std::size_t i = 0; i < count; ++i) out[i] += values[codes[i]];
}

/// The sums of at most kMost elements by bucket. A count and a sum share a word, and neighbours go to different tables,
/// so that an addition seldom waits for the one before.
class Tally {
 public:
  static constexpr std::size_t kMost = 65536;

  void add(const std::uint8_t* codes, const std::int32_t* integers, std::size_t count) {
    std::size_t i = 0;
    for (; i + kTables <= count; i += kTables) {
      for (std::size_t t = 0; t < kTables; ++t) table_[t][codes[i + t]] += word(integers[i + t]);
    }
    for (; i < count; ++i) table_[0][codes[i]] += word(integers[i]);
  }
  /// Adds the sums to those of all threads. They are integers, so the order does not matter.
  void merge_into(BucketSums& all) const {
    for (std::size_t b = 0; b < kUint8Buckets; ++b) {
      std::uint64_t both = 0;
      for (const auto& table : table_) both += table[b];
      if (both == 0) continue;
      const std::int64_t sum = static_cast<std::int64_t>(both << (64 - kSumBits)) >> (64 - kSumBits);
      std::atomic_ref{all.sum[b]}.fetch_add(sum, std::memory_order_relaxed);
      std::atomic_ref{all.count[b]}.fetch_add((both - static_cast<std::uint64_t>(sum)) >> kSumBits,
                                              std::memory_order_relaxed);
    }
  }

 private:
  static constexpr std::size_t kTables = 4;
  static constexpr std::uint32_t kSumBits = 47;  ///< of 2^16 integers below 2^30 and a sign; the count has the others
  static_assert(kMost << 30 <= std::size_t{1} << (kSumBits - 1) && kMost < std::size_t{1} << (64 - kSumBits));

  static std::uint64_t word(std::int32_t integer) {
    return static_cast<std::uint64_t>(std::int64_t{integer}) + (std::uint64_t{1} << kSumBits);
  }

  std::array<std::array<std::uint64_t, kUint8Buckets>, kTables> table_{};
};

/// A byte an element, which names one of 256 equal buckets of values around the mean, and a codebook with the mean of
/// what fell into each bucket.
class Uint8 final : public Codec<Space::host> {
 public:
  [[nodiscard]] Footprint plan(std::size_t n) const override {
    return {.payload_bytes = format::uint8_bytes(n), .scratch_bytes = planned<Workspace>()};
  }

  void encode(Queue<Space::host> queue, HostView<const float> gradient, const EncodeContext& /*context*/,
              HostView<std::byte> payload, HostView<std::byte> scratch) const override {
    const std::size_t n = gradient.size();
    if (n == 0) return;
    auto* codebook = section<float>(payload);
    auto* codes = section<std::uint8_t>(payload, kUint8CodesOffset);
    std::memset(codes + n, 0, format::uint8_bytes(n) - kUint8CodesOffset - n);
    const Moments sums = moments(queue, gradient);
    const Uint8Unit unit = Uint8Unit::of(sums.sum, sums.squares, sums.largest, n);
    BucketSums& all = Workspace{Scratch<Space::host>{scratch}}.sums[0];
    all = {};
    if (unit.good != 0) {
      parallel_for(queue, n, kTile, 1 << 14, [&](std::size_t begin, std::size_t end) {
        for (std::size_t first = begin; first < end; first += Tally::kMost)
          encode_chunk(unit, gradient.data(), first, std::min(end, first + Tally::kMost), codes, all);
      });
    } else {
      std::memset(codes, 0, n);
    }
    for (std::size_t b = 0; b < kUint8Buckets; ++b) codebook[b] = unit.entry(all.sum[b], all.count[b]);
  }

  void decode_add(Queue<Space::host> queue, HostView<const std::byte> payload, float weight, HostView<float> out,
                  HostView<std::byte> /*scratch*/) const override {
    expect_length("uint8", payload.size(), format::uint8_bytes(out.size()));
    if (out.empty()) return;
    const auto* codebook = section<float>(payload);
    const auto* codes = section<std::uint8_t>(payload, kUint8CodesOffset);
    std::array<float, kUint8Buckets> values;
    for (std::size_t b = 0; b < kUint8Buckets; ++b) values[b] = weight * codebook[b];
    parallel_for(queue, out.size(), 1024, 1 << 14, [&](std::size_t first, std::size_t last) {
      add_codes(codes + first, last - first, values.data(), out.data() + first);
    });
  }

  /// An element decodes to the mean of its bucket of values, so what is lost is the variance within the buckets, which
  /// is no more than the gradient's energy; and a mean is never larger than the largest element. Sums are of multiples
  /// of 2^-29 of the largest element, or of 2^-126 where all are tiny.
  [[nodiscard]] ErrorBound bound(std::size_t /*n*/) const override {
    return {.nmse = 1.0 + 1e-6, .of_largest = 2.0, .absolute = 0x1p-126};
  }

 private:
  static constexpr std::size_t kTile = 2048;

  static void encode_chunk(const Uint8Unit& unit, const float* x, std::size_t begin, std::size_t end,
                           std::uint8_t* codes, BucketSums& all) {
    Tally tally;
    alignas(64) std::array<std::int32_t, kTile> integers;
    for (std::size_t first = begin; first < end; first += kTile) {
      const std::size_t count = std::min(kTile, end - first);
      write_codes(unit, x + first, count, codes + first, integers.data());
      tally.add(codes + first, integers.data(), count);
    }
    tally.merge_into(all);
  }

  struct Workspace {
    explicit Workspace(Scratch<Space::host> pieces) : sums{pieces.take<BucketSums>(1)} {}
    HostView<BucketSums> sums;
  };
};

}  // namespace

extern constinit const CodecDescriptor uint8_codec{
    .name = "uint8",
    .summary = "sends a byte an element: 256 equal buckets over six standard deviations, each standing for its mean",
    .reference =
        "Jaghouar et al., INTELLECT-1, 2024, arXiv 2412.01152; uniform 8-bit quantisation of the hivemind library",
    .params = {},
    .payload = "8192 + 8 n bits, padded to 32",
    .passes =
        [](const Params&) {
          return MemoryPasses{.again = ReadAgain::unit, .why = "codes need the mean and the deviation first"};
        },
    .make_host = make_method_codec<Space::host, Uint8>,
};

}  // namespace gradtool
