#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "kernels/host/marks.hpp"
#include "kernels/law/adacomp.hpp"
#include "lib/codecs/adacomp_bins.hpp"
#include "lib/codecs/adacomp_mark.hpp"
#include "lib/codecs/adacomp_payload.hpp"
#include "lib/codecs/cuda_factories.hpp"
#include "lib/codecs/payload.hpp"
#include "lib/codecs/registry.hpp"
#include "lib/core/arena.hpp"

namespace gradtool {
namespace {

using law::AdaComp;

class AdaCompCodec final : public Codec<Space::host> {
 public:
  AdaCompCodec(const Params& params, const Layout& layout)
      : law_{static_cast<float>(params.real("s")) - 1.0F}, bins_{params, layout}, n_{layout.elements} {}

  [[nodiscard]] Footprint plan(std::size_t n) const override {
    expects(n == n_, "codec adacomp: made for another layout");
    std::size_t bytes = head();
    for (const AdaCompBins::Tensor& tensor : bins_.tensors) bytes += tensor.bytes(tensor.elements);
    return {.payload_bytes = bytes, .scratch_bytes = offset_bytes() + found_bytes() + 4 * bins_.words, .exact = false};
  }

  /// The first step, from an empty residue.
  void encode(Queue<Space::host> queue, HostView<const float> gradient, const EncodeContext& /*context*/,
              HostView<std::byte> payload, HostView<std::byte> scratch) const override {
    step(queue, gradient, nullptr, payload, scratch);
  }

  /// One step of one rank; `residue` is null for an empty one that is not kept.
  void step(Queue<Space::host> queue, HostView<const float> gradient, float* residue, HostView<std::byte> payload,
            HostView<std::byte> scratch) const {
    auto* found = section<AdaCompFound>(scratch, offset_bytes());
    auto* marks = section<std::uint32_t>(scratch, offset_bytes() + found_bytes());
    host::for_pieces(queue, bins_.pieces.size(), n_, [&](std::size_t i) {
      const AdaCompBins::Piece& piece = bins_.pieces[i];
      const float* g = gradient.data() + piece.first;
      const std::size_t bin = bins_.tensors[piece.tensor].bin;
      if (residue != nullptr) {
        found[i] = adacomp_mark(g, residue + piece.first, piece.count, bin, law_, marks + piece.word);
      } else {
        std::array<float, AdaCompBins::kLongest> sums;
        std::fill_n(sums.data(), piece.count, 0.0F);
        found[i] = adacomp_mark(g, sums.data(), piece.count, bin, law_, marks + piece.word);
      }
    });
    auto* scales = section<float>(payload, 8);
    auto* offsets = section<std::uint64_t>(scratch);
    std::size_t at = head();
    for (std::size_t t = 0; t < bins_.tensors.size(); ++t) {
      const AdaCompBins::Tensor& tensor = bins_.tensors[t];
      double sum = 0.0;
      std::uint32_t entries = 0;
      for (std::size_t i = tensor.first_piece; i < tensor.last_piece; ++i) {
        sum += found[i].largest;
        found[i].place = entries;
        entries += found[i].count;
      }
      const double scale = sum / static_cast<double>(tensor.bins);
      scales[t] = scale < HUGE_VAL ? static_cast<float>(scale) : law::float_of(0x7fc00000u);
      offsets[t] = at;
      const std::size_t used = tensor.width() * (tensor.bins + entries);
      std::memset(payload.data() + at + used, 0, tensor.bytes(entries) - used);
      at += tensor.bytes(entries);
    }
    host::for_pieces(queue, bins_.pieces.size(), n_, [&](std::size_t i) {
      const AdaCompBins::Piece& piece = bins_.pieces[i];
      adacomp_write(bins_, piece, marks, gradient, residue, scales[piece.tensor],
                    payload.data() + offsets[piece.tensor], found[i].place);
    });
    const std::uint64_t bytes = at;
    std::memcpy(payload.data(), &bytes, sizeof bytes);
  }

  void decode_add(Queue<Space::host> queue, HostView<const std::byte> payload, float weight, HostView<float> out,
                  HostView<std::byte> scratch) const override {
    if (out.size() != n_ || payload.size() < head()) bad_adacomp_payload("too short for its header");
    std::uint64_t bytes = 0;
    std::memcpy(&bytes, payload.data(), sizeof bytes);
    if (bytes != payload.size()) bad_adacomp_payload("its length is not the one it states");
    const auto* scales = section<float>(payload, 8);
    auto* offsets = section<std::uint64_t>(scratch);
    auto* places = section<AdaCompFound>(scratch, offset_bytes());
    std::size_t at = head();
    for (std::size_t t = 0; t < bins_.tensors.size(); ++t) {
      offsets[t] = at;
      const auto tail = payload.part(at, payload.size() - at);
      at += adacomp_place(bins_, bins_.tensors[t], tail, places);
    }
    if (at != payload.size()) bad_adacomp_payload("longer than its counts say");
    host::for_pieces(queue, bins_.pieces.size(), n_, [&](std::size_t i) {
      const AdaCompBins::Piece& piece = bins_.pieces[i];
      const auto tail = payload.part(offsets[piece.tensor], payload.size() - offsets[piece.tensor]);
      adacomp_add(bins_, piece, tail, places[i].place, weight * scales[piece.tensor], out);
    });
  }

  /// Sent values are off by no more than the largest; nothing else is promised, as small bins get the mean of all.
  [[nodiscard]] ErrorBound bound(std::size_t /*n*/) const override { return {.of_largest = 1.0 + 1e-6}; }
  [[nodiscard]] std::size_t values_in(HostView<const std::byte> payload, std::size_t /*n*/) const override {
    std::size_t at = head();
    std::size_t values = 0;
    for (const AdaCompBins::Tensor& tensor : bins_.tensors) {
      std::size_t entries = 0;
      for (std::size_t b = 0; b < tensor.bins; ++b)
        entries += tensor.width() == 1 ? section<std::uint8_t>(payload, at)[b] : section<std::uint16_t>(payload, at)[b];
      values += entries;
      at += tensor.bytes(entries);
    }
    return values;
  }
  [[nodiscard]] std::unique_ptr<Encoder<Space::host>> make_encoder(std::size_t n, int ranks,
                                                                   Queue<Space::host> queue) const override;

 private:
  [[nodiscard]] std::size_t head() const { return 8 + 4 * bins_.tensors.size(); }
  [[nodiscard]] std::size_t offset_bytes() const { return 8 * bins_.tensors.size(); }
  [[nodiscard]] std::size_t found_bytes() const { return sizeof(AdaCompFound) * bins_.pieces.size(); }

  AdaComp law_;
  AdaCompBins bins_;
  std::size_t n_;
};

/// The residue of one rank.
class AdaCompEncoder final : public Encoder<Space::host> {
 public:
  AdaCompEncoder(const AdaCompCodec& codec, std::size_t n)
      : codec_{codec}, arena_{Arena<Space::host>::padded_size(4 * n)}, residue_{arena_.take<float>(n)} {
    reset({});
  }

  void encode(Queue<Space::host> queue, HostView<const float> gradient, const SideInputs<Space::host>& /*side*/,
              const EncodeContext& /*context*/, HostView<std::byte> payload, HostView<std::byte> scratch) override {
    codec_.step(queue, gradient, residue_.data(), payload, scratch);
  }
  void reset(Queue<Space::host> /*queue*/) override { std::fill(residue_.span().begin(), residue_.span().end(), 0.0F); }
  [[nodiscard]] HostView<const float> residual() const override { return residue_; }

 private:
  const AdaCompCodec& codec_;
  Arena<Space::host> arena_;
  HostView<float> residue_;
};

std::unique_ptr<Encoder<Space::host>> AdaCompCodec::make_encoder(std::size_t n, int /*ranks*/,
                                                                 Queue<Space::host> /*queue*/) const {
  return std::make_unique<AdaCompEncoder>(*this, n);
}

constexpr ParamInfo kParams[] = {{.name = "conv",
                                  .kind = ParamInfo::Kind::integer,
                                  .default_value = "50",
                                  .min = 1,
                                  .max = AdaCompBins::kLongest,
                                  .meaning = "elements of a bin in convolutions"},
                                 {.name = "other",
                                  .kind = ParamInfo::Kind::integer,
                                  .default_value = "500",
                                  .min = 1,
                                  .max = AdaCompBins::kLongest,
                                  .meaning = "elements of a bin in all other tensors"},
                                 {.name = "s",
                                  .default_value = "2",
                                  .min = 1.0,
                                  .max = 100.0,
                                  .meaning = "H = residue + s times the gradient is what must reach the bin's largest; "
                                             "larger sends more"}};

}  // namespace

extern constinit const CodecDescriptor adacomp_codec{
    .name = "adacomp",
    .summary = "ternary values of what comes near the largest of its bin, with a residue that adapts the number sent",
    .reference = "Chen et al., AdaComp, AAAI 2018, arXiv 1712.02679",
    .description =
        "Each tensor is cut into bins, 50 elements for convolutions and 500 for everything else. G = residue + "
        "gradient; an element is sent when |G + (s-1) gradient| reaches the largest |G| of its bin, so that the "
        "number sent adapts to how fast residues grow, without any ratio to choose. A sent element is the sign of G "
        "times one scale per tensor, the mean over bins of their largest, and the difference stays in the residue. "
        "Wire format, our reconstruction from the entry sizes that the paper gives: a count per bin, and for each "
        "element 8 bits (6 of index, 2 of ternary code) in bins of up to 64, else 16 bits; counts are as wide as "
        "entries. Our decisions: the last bin of a tensor is short and counts like the others, an element whose G is "
        "zero is not sent, and a scale that is not finite clears the residue of what it was sent for. Pays on layers "
        "whose activity is local, and needs an all-gather.",
    .params = kParams,
    .aggregation = Aggregation::gather,
    .memory = true,
    .by_layout = true,
    .payload = "64 + 32 T + w (bins + k) bits, T tensors, w = 8 for bins up to 64, else 16; each tensor in words of 32",
    .make_host = [](const Params& p, const Layout& layout) -> std::unique_ptr<Codec<Space::host>> {
      return std::make_unique<AdaCompCodec>(p, layout);
    },
    .make_cuda = GT_MAKE_CUDA(make_cuda_adacomp),
};

}  // namespace gradtool
