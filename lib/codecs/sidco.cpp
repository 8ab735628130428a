#include <algorithm>
#include <utility>

#include "kernels/host/block_select.hpp"
#include "kernels/law/sidco.hpp"
#include "lib/codecs/cuda_factories.hpp"
#include "lib/codecs/index_code.hpp"
#include "lib/codecs/payload.hpp"
#include "lib/codecs/registry.hpp"
#include "lib/codecs/sidco_moments.hpp"

namespace gradtool {
namespace {

constexpr std::size_t kBlock = 32;

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
    const HostView<SidcoPart> parts{section<SidcoPart>(scratch, at.parts), pieces.size()};
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
      parts = take(sizeof(SidcoPart) * host::pieces_of(n));
      select = take(host::BlockSelect::scratch_bytes(host::pieces_of(n)));
    }
    std::size_t positions = 0, maxima = 0, parts = 0, select = 0, bytes = 0;
  };

  [[nodiscard]] std::uint32_t find_threshold(Queue<Space::host> queue, const host::Pieces& pieces, const float* x,
                                             std::uint32_t* maxima, HostView<SidcoPart> parts) const {
    law::SidcoStages now{.left = ratio_};
    for (int stage = 0; stage < stages_ && !now.done; ++stage) {
      const bool first = stage == 0;
      const SidcoFit fit = !first && fit_ == SidcoFit::gamma ? SidcoFit::pareto : fit_;
      host::for_pieces(queue, pieces.size(), pieces.elements(), [&](std::size_t i) {
        const host::Piece piece = pieces[i];
        if (first) host::block_maxima(x + piece.first, piece.count, maxima + piece.word);
        parts[i] = sidco_part(fit, piece, x, maxima, now.threshold, now.origin);
      });
      SidcoPart all;
      for (const SidcoPart& part : parts.span()) {
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
