#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <numbers>

#include "kernels/float_bits.hpp"
#include "kernels/lanes.hpp"
#include "kernels/marks.hpp"
#include "kernels/select.hpp"
#include "lib/codecs/registry.hpp"
#include "lib/codecs/sparse_codec.hpp"
#include "lib/methods/sidco/format.hpp"

namespace gradtool {
namespace {

/// The moments that a piece of the gradient adds to a fit.
struct PieceMoments {
  SidcoMoments moments{};
  std::uint32_t largest = 0;  ///< the largest pattern that is finite
};

constexpr std::uint32_t kMagnitude = 0x7fffffffU;
constexpr std::uint32_t kInfinity = 0x7f800000U;
constexpr std::uint32_t kOne = 127U << 23;  // the pattern of 1
constexpr std::uint32_t kSmallestNormal = 0x00800000U;
constexpr std::size_t kBlock = 32;  // elements of which BlockSelect knows the largest pattern
constexpr std::size_t kLanes = 16;
constexpr std::size_t kFloatRun = 256;  // elements that are summed in float32 before the sum goes on in float64

/// Sums over the magnitudes whose patterns are in [low, infinity), less `origin`, in vectors of `Bytes` bytes. Lane j
/// takes elements j and j + 16 of each block. For the sum of logarithms, exponents are added and mantissas multiplied,
/// so that one logarithm serves many elements.
template <SidcoFit Fit, std::size_t Bytes>
struct Sums {
  static constexpr std::size_t kVectors = 4 * kLanes / Bytes;
  // Vectors stay in registers, while arrays of numbers are stored and reloaded in every round.
  using Words = host::Vector<std::uint32_t, Bytes>;
  using Floats = host::Vector<float, Bytes>;
  using HalfFloats = host::Vector<float, Bytes / 2>;
  using Doubles = host::Vector<double, Bytes>;

  std::uint32_t low = 1;
  float origin = 0.0F;
  Floats sum[kVectors] = {};
  Doubles squares[2 * kVectors] = {}, mantissas[2 * kVectors] = {};
  Words count[kVectors] = {}, exponents[kVectors] = {};

  [[gnu::always_inline]] Sums(std::uint32_t lowest, float from) : low{lowest}, origin{from} {
    for (Doubles& product : mantissas) product += 1.0;
  }

  [[gnu::always_inline]] void add(const float* x) {
    for (std::size_t i = 0; i < kVectors; ++i) {
      Words pattern;
      std::memcpy(&pattern, x + i * Bytes / 4, sizeof pattern);
      pattern &= kMagnitude;
      const Words taken = reinterpret_cast<Words>((pattern - low) < (Words{} + (kInfinity - low)));  // all bits or none
      const Floats above =
          reinterpret_cast<Floats>(reinterpret_cast<Words>(reinterpret_cast<Floats>(pattern) - origin) & taken);
      sum[i] += above;
      count[i] -= taken;
      if constexpr (Fit == SidcoFit::pareto) {
        HalfFloats half[2];
        std::memcpy(half, &above, sizeof half);
        for (std::size_t h = 0; h < 2; ++h) {
          const Doubles wide = __builtin_convertvector(half[h], Doubles);
          squares[2 * i + h] += wide * wide;
        }
      }
      if constexpr (Fit == SidcoFit::gamma) {
        const Words normal = (pattern & taken) | (~taken & kOne);
        exponents[i] += (normal >> 23) - 127U;
        const Words mantissa = (normal & 0x007fffffU) | kOne;
        HalfFloats half[2];
        std::memcpy(half, &mantissa, sizeof half);
        for (std::size_t h = 0; h < 2; ++h) mantissas[2 * i + h] *= __builtin_convertvector(half[h], Doubles);
      }
    }
  }

  /// The lanes of one of the sums.
  template <class T, class Vectors>
  [[gnu::always_inline]] static std::array<T, kLanes> lanes_of(const Vectors& vectors) {
    std::array<T, kLanes> lanes;
    static_assert(sizeof lanes == sizeof vectors);
    std::memcpy(lanes.data(), &vectors, sizeof lanes);
    return lanes;
  }
};
// A lane's product of a piece's mantissas stays below 2^1024.
static_assert(host::kPiece / kLanes < 1024);

/// The largest finite pattern of a block.
std::uint32_t largest_finite(const float* x, std::size_t size) {
  std::uint32_t largest = 0;
  for (std::size_t j = 0; j < size; ++j) {
    const std::uint32_t pattern = format::bits_of(x[j]) & kMagnitude;
    if (pattern < kInfinity) largest = std::max(largest, pattern);
  }
  return largest;
}

/// The moments of a piece: of its magnitudes in [low, infinity), or for gamma, which needs logarithms, of all normal
/// ones. `maxima` has the largest pattern of each block of all pieces; blocks below `low` are not looked at.
template <SidcoFit Fit>
struct MomentsOf {
  template <std::size_t Bytes>
  [[gnu::always_inline]] static void run(const host::Piece* of, const float* x, const std::uint32_t* maxima,
                                         std::uint32_t low, float origin, PieceMoments* result) {
    const host::Piece& piece = *of;
    PieceMoments part;
    if (Fit == SidcoFit::gamma) low = kSmallestNormal;
    Sums<Fit, Bytes> sums{low, origin};
    for (std::size_t from = 0; from < piece.count; from += kFloatRun) {
      for (std::size_t at = from; at < std::min(piece.count, from + kFloatRun); at += kBlock) {
        const std::uint32_t largest = maxima[piece.word + at / kBlock];
        if (largest < low) continue;
        const float* own = x + piece.first + at;
        const std::size_t size = std::min(kBlock, piece.count - at);
        part.largest = std::max(part.largest, largest < kInfinity ? largest : largest_finite(own, size));
        if (size == kBlock) {
          sums.add(own);
          sums.add(own + kLanes);
        } else {
          std::array<float, kBlock> padded{};  // zeros are below any low
          std::copy_n(own, size, padded.data());
          sums.add(padded.data());
          sums.add(padded.data() + kLanes);
        }
      }
      double sum = 0.0;
      for (const float lane : sums.template lanes_of<float>(sums.sum)) sum += static_cast<double>(lane);
      part.moments.sum += sum;
      for (auto& lanes : sums.sum) lanes = host::Vector<float, Bytes>{};
    }
    std::uint32_t count = 0;
    const auto counts = sums.template lanes_of<std::uint32_t>(sums.count);
    const auto exponents = sums.template lanes_of<std::uint32_t>(sums.exponents);
    const auto squares = sums.template lanes_of<double>(sums.squares);
    const auto mantissas = sums.template lanes_of<double>(sums.mantissas);
    for (std::size_t j = 0; j < kLanes; ++j) {
      count += counts[j];
      part.moments.squares += squares[j];
      if constexpr (Fit == SidcoFit::gamma)
        part.moments.log_sum +=
            std::log(mantissas[j]) + static_cast<double>(static_cast<std::int32_t>(exponents[j])) * std::numbers::ln2;
    }
    part.moments.count = static_cast<double>(count);
    *result = part;
  }
};

class Sidco final : public SparseCodec {
 public:
  explicit Sidco(const Params& params) : SparseCodec{"sidco", params}, options_{params} {}

  void encode(Queue<Space::host> queue, HostView<const float> gradient, const EncodeContext& /*context*/,
              HostView<std::byte> payload, HostView<std::byte> scratch) const override {
    const std::size_t n = gradient.size();
    send(queue, n, payload, scratch, [&](const Selection& selection) {
      const Workspace work{n, Scratch<Space::host>{selection.scratch}};
      const std::uint32_t threshold = find_threshold(queue, gradient, work);
      host::BlockSelect select{queue, host::Pieces{n}, gradient.data(), work.maxima.data(), work.selection.data()};
      const auto cut = select.at_least(threshold);
      select.collect(cut, selection.positions.data(), selection.values.data());
      return cut.count;
    });
  }

  /// The values that are sent are exact, but nothing is promised about how many there are.
  [[nodiscard]] ErrorBound bound(std::size_t /*n*/) const override { return {.nmse = 1.0, .of_largest = 1.0}; }

 private:
  struct Workspace {
    Workspace(std::size_t n, Scratch<Space::host> scratch)
        : maxima{scratch.take<std::uint32_t>((n + kBlock - 1) / kBlock)},
          moments{scratch.take<PieceMoments>(host::pieces_of(n))},
          selection{scratch.take_bytes(host::BlockSelect::scratch_bytes(host::pieces_of(n)))} {}
    HostView<std::uint32_t> maxima;  ///< the largest pattern of each block
    HostView<PieceMoments> moments;  ///< of each piece
    HostView<std::byte> selection;
  };
  [[nodiscard]] std::size_t rule_bytes(std::size_t n) const override { return planned<Workspace>(n); }

  /// Also writes work.maxima.
  [[nodiscard]] std::uint32_t find_threshold(Queue<Space::host> queue, HostView<const float> gradient,
                                             const Workspace& work) const {
    const host::Pieces pieces{gradient.size()};
    const float* x = gradient.data();
    std::uint32_t* maxima = work.maxima.data();
    format::SidcoStages stages{.left = options_.ratio};
    for (int stage = 0; stage < options_.stages && !stages.done; ++stage) {
      const bool first = stage == 0;
      const SidcoFit fit = options_.fit_of(stage);
      const auto moments = [fit](auto... arguments) {
        if (fit == SidcoFit::gamma) return host::run_with_vectors<MomentsOf<SidcoFit::gamma>>(arguments...);
        if (fit == SidcoFit::pareto) return host::run_with_vectors<MomentsOf<SidcoFit::pareto>>(arguments...);
        host::run_with_vectors<MomentsOf<SidcoFit::exponential>>(arguments...);
      };
      host::for_pieces(queue, pieces.size(), pieces.elements(), [&](std::size_t i) {
        const host::Piece piece = pieces[i];
        if (first) host::block_maxima(x + piece.first, piece.count, maxima + piece.word);
        moments(&piece, x, static_cast<const std::uint32_t*>(maxima), stages.threshold, stages.origin,
                &work.moments[i]);
      });
      PieceMoments all;
      for (const PieceMoments& part : work.moments.span()) {
        all.moments.add(part.moments);
        all.largest = std::max(all.largest, part.largest);
      }
      stages.advance(fit, all.moments, all.largest, gradient.size(), first, stage + 1 == options_.stages);
    }
    return stages.threshold;
  }

  SidcoOptions options_;
};

constexpr ParamInfo kParams[] = {
    real_param("ratio", "0.01", {1e-6, 1.0}, "share of all elements, zeros included, that the threshold aims at")
        .searched("0.001|0.004|0.016|0.064|0.25"),
    choice_param("fit", "exponential", "exponential|gamma|pareto",
                 "distribution fitted to magnitudes (SIDCo-E, SIDCo-GP, SIDCo-P); gamma is followed by pareto stages"),
    integer_param("stages", "auto", {1, 16},
                  "fits, each to what exceeds the threshold of the one before; auto: until 0.25^stages is the ratio")
        .or_words("auto"),
    kIndexParam};

}  // namespace

extern constinit const CodecDescriptor sidco_codec{
    .name = "sidco",
    .summary =
        "sends what exceeds a threshold that fitted tails give in a few stages, without sorting, with error feedback",
    .reference = "Abdelmoniem et al., SIDCo, MLSys 2021, arXiv 2101.10761",
    .params = kParams,
    .error_feedback = true,
    .determinism = Determinism::run_to_run,
    .payload = "128 + 32 k + min(32 k, n, Elias) bits, k elements that reach the threshold",
    .passes =
        [](const Params&) {
          return MemoryPasses{
              .again = ReadAgain::unit, .why = "the threshold follows from the mean magnitude", .scatters = true};
        },
    .make_host = make_method_codec<Space::host, Sidco>,
};

}  // namespace gradtool
