#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <numbers>
#include <utility>

#include "kernels/host/block_select.hpp"
#include "kernels/law/half.hpp"
#include "kernels/law/sidco.hpp"
#include "lib/codecs/cuda_factories.hpp"
#include "lib/codecs/index_code.hpp"
#include "lib/codecs/payload.hpp"
#include "lib/codecs/registry.hpp"

namespace gradtool {
namespace {

constexpr std::uint32_t kMagnitude = 0x7fffffffU;
constexpr std::uint32_t kInfinity = 0x7f800000U;
constexpr std::uint32_t kOne = 127U << 23;  // the pattern of 1
constexpr std::uint32_t kSmallestNormal = 0x00800000U;
constexpr std::size_t kBlock = 32;
constexpr std::size_t kLanes = 16;
constexpr std::size_t kFloatRun = 256;  // elements whose lanes are summed in float32

/// What a piece adds to a fit.
struct Part {
  SidcoMoments moments{};
  std::uint32_t largest = 0;  ///< pattern
};

/// What a fit needs besides count and sum.
enum class Needs : std::uint8_t { nothing, squares, logarithms };

// Lanes that stay in registers: with arrays the compiler stores and reloads them in every round.
using Words = std::uint32_t __attribute__((vector_size(4 * kLanes)));
using Floats = float __attribute__((vector_size(4 * kLanes)));
using Doubles = double __attribute__((vector_size(8 * kLanes)));

/// Sums of blocks, lane j taking elements j and j + 16 of each: what they exceed `origin` by where their patterns are
/// in [low, infinity). For logarithms, exponents add as integers and mantissas multiply, so that one serves many
/// elements.
template <Needs What>
struct Sums {
  std::uint32_t low = 1;
  float origin = 0.0F;
  Floats sum{};
  Doubles squares{}, mantissas = Doubles{} + 1.0;
  Words count{}, exponents{};

  [[gnu::always_inline]] void add(const float* x) {
    Words pattern;
    std::memcpy(&pattern, x, sizeof pattern);
    pattern &= kMagnitude;
    const Words taken = reinterpret_cast<Words>((pattern - low) < (Words{} + (kInfinity - low)));  // all bits or none
    const Floats above =
        reinterpret_cast<Floats>(reinterpret_cast<Words>(reinterpret_cast<Floats>(pattern) - origin) & taken);
    sum += above;
    count -= taken;
    if constexpr (What == Needs::squares) {
      const Doubles wide = __builtin_convertvector(above, Doubles);
      squares += wide * wide;
    }
    if constexpr (What == Needs::logarithms) {
      const Words normal = (pattern & taken) | (~taken & kOne);
      exponents += (normal >> 23) - 127U;
      mantissas *= __builtin_convertvector(reinterpret_cast<Floats>((normal & 0x007fffffU) | kOne), Doubles);
    }
  }
};
// A lane's product of a piece's mantissas stays below 2^1024.
static_assert(host::kPiece / kLanes < 1024);

/// The largest finite pattern of a block.
std::uint32_t largest_finite(const float* x, std::size_t size) {
  std::uint32_t largest = 0;
  for (std::size_t j = 0; j < size; ++j) {
    const std::uint32_t pattern = law::bits_of(x[j]) & kMagnitude;
    if (pattern < kInfinity) largest = std::max(largest, pattern);
  }
  return largest;
}

/// One piece: float lanes for 256 elements at a time, then float64.
template <Needs What>
GT_SIMD_CLONES Part part_of(const host::Piece& piece, const float* x, const std::uint32_t* maxima, std::uint32_t low,
                            float origin) {
  Part part;
  Sums<What> sums{.low = low, .origin = origin};
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
    for (std::size_t j = 0; j < kLanes; ++j) sum += static_cast<double>(sums.sum[j]);
    part.moments.sum += sum;
    sums.sum = Floats{};
  }
  std::uint32_t count = 0;
  for (std::size_t j = 0; j < kLanes; ++j) {
    count += sums.count[j];
    part.moments.squares += sums.squares[j];
    if constexpr (What == Needs::logarithms)
      part.moments.log_sum += std::log(sums.mantissas[j]) +
                              static_cast<double>(static_cast<std::int32_t>(sums.exponents[j])) * std::numbers::ln2;
  }
  part.moments.count = static_cast<double>(count);
  return part;
}

class Sidco final : public Codec<Space::host> {
 public:
  explicit Sidco(const Params& params)
      : ratio_{params.real("ratio")},
        fit_{params.is("fit", "gamma")    ? SidcoFit::gamma
             : params.is("fit", "pareto") ? SidcoFit::pareto
                                          : SidcoFit::exponential},
        stages_{params.is("stages", "auto") ? 0 : static_cast<int>(params.integer("stages"))},
        coding_{params.word("index")} {
    if (stages_ == 0) stages_ = law::sidco_stages(ratio_);
  }

  [[nodiscard]] Footprint plan(std::size_t n) const override {
    return {.payload_bytes = sparse_bound(coding_, n, n), .scratch_bytes = Places{n}.bytes, .exact = false};
  }

  void encode(Queue<Space::host> queue, HostView<const float> gradient, const EncodeContext& /*context*/,
              HostView<std::byte> payload, HostView<std::byte> scratch) const override {
    const std::size_t n = gradient.size();
    const Places at{n};
    const host::Pieces pieces{n};
    auto* maxima = section<std::uint32_t>(scratch, at.maxima);
    const HostView<Part> parts{section<Part>(scratch, at.parts), pieces.size()};
    const std::uint32_t threshold = find_threshold(queue, pieces, gradient.data(), maxima, parts);
    host::BlockSelect select{queue, pieces, gradient.data(), maxima, scratch.data() + at.select};
    const auto cut = select.at_least(threshold);
    auto* positions = section<std::uint32_t>(scratch, at.positions);
    auto* values = section<float>(payload, sizeof(SparseHeader));  // where write_sparse wants them
    if (cut.count > 0) select.collect(cut, positions, values);
    write_sparse(queue, coding_, {positions, cut.count}, {values, cut.count}, n, payload);
  }

  void decode_add(Queue<Space::host> /*queue*/, HostView<const std::byte> payload, float weight, HostView<float> out,
                  HostView<std::byte> scratch) const override {
    add_sparse("sidco", payload, weight, out,
               {section<std::uint32_t>(scratch, Places{out.size()}.positions), out.size()});
  }

  /// What is sent is exact.
  [[nodiscard]] ErrorBound bound(std::size_t /*n*/) const override { return {.nmse = 1.0, .of_largest = 1.0}; }
  [[nodiscard]] std::size_t values_in(HostView<const std::byte> payload, std::size_t n) const override {
    return read_sparse_header("sidco", payload, n, 32).count;
  }

 private:
  /// Where things lie in the scratch.
  struct Places {
    explicit Places(std::size_t n) {
      const auto take = [this](std::size_t size) { return std::exchange(bytes, bytes + (size + 63) / 64 * 64); };
      positions = take(4 * n);
      maxima = take(4 * ((n + kBlock - 1) / kBlock));
      parts = take(sizeof(Part) * host::pieces_of(n));
      select = take(host::BlockSelect::scratch_bytes(host::pieces_of(n)));
    }
    std::size_t positions = 0, maxima = 0, parts = 0, select = 0, bytes = 0;
  };

  [[nodiscard]] std::uint32_t find_threshold(Queue<Space::host> queue, const host::Pieces& pieces, const float* x,
                                             std::uint32_t* maxima, HostView<Part> parts) const {
    law::SidcoStages now{.left = ratio_};
    for (int stage = 0; stage < stages_ && !now.done; ++stage) {
      const bool first = stage == 0;
      const SidcoFit fit = !first && fit_ == SidcoFit::gamma ? SidcoFit::pareto : fit_;
      host::for_pieces(queue, pieces.size(), pieces.elements(), [&](std::size_t i) {
        const host::Piece piece = pieces[i];
        if (first) host::block_maxima(x + piece.first, piece.count, maxima + piece.word);
        switch (fit) {
          case SidcoFit::exponential:
            parts[i] = part_of<Needs::nothing>(piece, x, maxima, now.threshold, now.origin);
            break;
          case SidcoFit::pareto:
            parts[i] = part_of<Needs::squares>(piece, x, maxima, now.threshold, now.origin);
            break;
          case SidcoFit::gamma:
            parts[i] = part_of<Needs::logarithms>(piece, x, maxima, kSmallestNormal, now.origin);
            break;
        }
      });
      Part all;
      for (const Part& part : parts.span()) {
        all.moments.count += part.moments.count;
        all.moments.sum += part.moments.sum;
        all.moments.squares += part.moments.squares;
        all.moments.log_sum += part.moments.log_sum;
        all.largest = std::max(all.largest, part.largest);
      }
      now.take(fit, all.moments, all.largest, pieces.elements(), first, stage + 1 == stages_);
    }
    return now.threshold;
  }

  double ratio_;
  SidcoFit fit_;
  int stages_;
  IndexCoding coding_;
};

constexpr ParamInfo kParams[] = {
    {.name = "ratio",
     .default_value = "0.01",
     .min = 1e-6,
     .max = 1.0,
     .meaning = "share of the elements that the threshold aims at"},
    {.name = "fit",
     .kind = ParamInfo::Kind::choice,
     .default_value = "exponential",
     .choices = "exponential|gamma|pareto",
     .meaning = "distribution fitted to magnitudes (SIDCo-E, SIDCo-GP, SIDCo-P); gamma is followed by pareto stages"},
    {.name = "stages",
     .kind = ParamInfo::Kind::integer,
     .default_value = "auto",
     .min = 1,
     .max = 16,
     .choices = "auto",
     .meaning = "fits, each to what exceeds the threshold of the one before; auto: until 0.25^stages is the ratio"},
    kIndexParam};

}  // namespace

extern constinit const CodecDescriptor sidco_codec{
    .name = "sidco",
    .summary = "a threshold read off fitted tails in a few stages, without sorting, with error feedback",
    .reference = "Abdelmoniem et al., SIDCo, MLSys 2021, arXiv 2101.10761",
    .description =
        "Fits a distribution to |u| and takes the magnitude that the wanted share of it exceeds; gradients' tails "
        "are heavier than one fit says, so the fit is repeated on the exceedances, a quarter passing each stage, "
        "until the share is the ratio. Exponential: threshold = -mean ln(share); generalised Pareto: by mean and "
        "variance; gamma: shape by mean and mean logarithm (Minka), then Pareto stages. What reaches the last "
        "threshold is sent as float32 with its position, so the count is near k, not k. Our decisions: the number of "
        "stages follows from the ratio (the paper adapts it from step to step); zeros are left out of fits and never "
        "sent; the gamma quantile is solved for, where the paper approximates it; a threshold is never above the "
        "largest value, so constant gradients go whole. The formulas come from second-hand descriptions of the paper "
        "(reconstruction). A GPU adds in another order than the CPU, so that a threshold may differ in its last bit, "
        "and with it an element that lies there. It pays where a selection of the k largest costs more than a few "
        "sums.",
    .params = kParams,
    .aggregation = Aggregation::gather,
    .error_feedback = true,
    .determinism = Determinism::run_to_run,
    .payload = "128 + 32 k + min(32 k, n, Elias) bits, k elements that reach the threshold",
    .make_host = [](const Params& p, const Layout&) -> std::unique_ptr<Codec<Space::host>> {
      return std::make_unique<Sidco>(p);
    },
    .make_cuda = GT_MAKE_CUDA(make_cuda_sidco),
};

}  // namespace gradtool
