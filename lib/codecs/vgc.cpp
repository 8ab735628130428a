#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "kernels/law/vgc.hpp"
#include "lib/codecs/cuda_factories.hpp"
#include "lib/codecs/payload.hpp"
#include "lib/codecs/registry.hpp"
#include "lib/codecs/vgc_accumulate.hpp"
#include "lib/codecs/vgc_groups.hpp"
#include "lib/codecs/vgc_words.hpp"
#include "lib/core/arena.hpp"

namespace gradtool {
namespace {

using law::Vgc;

class VgcCodec final : public Codec<Space::host> {
 public:
  VgcCodec(const Params& params, const Layout& layout)
      : law_{.alpha = static_cast<float>(params.real("alpha")),
             .zeta = static_cast<float>(params.real("zeta")),
             .tau = params.is("tau", "off") ? 0.0F : static_cast<float>(params.real("tau"))},
        keeps_dropped_{params.is("dropped", "keep")},
        over_all_{params.is("largest", "all")},
        cut_{layout, hybrid()},
        elements_{layout.elements} {}

  [[nodiscard]] Footprint plan(std::size_t n) const override {
    expects(n == elements_, "codec vgc: made for another layout");
    return {.payload_bytes = cut_.words_offset() + 4 * n,
            .scratch_bytes = 4 * cut_.bitmap_words + sizeof(VgcFound) * cut_.pieces.size(),
            .exact = false};
  }

  /// The first step, from empty state and without second moments.
  void encode(Queue<Space::host> queue, HostView<const float> gradient, const EncodeContext& /*context*/,
              HostView<std::byte> payload, HostView<std::byte> scratch) const override {
    step(queue, gradient, {}, nullptr, nullptr, payload, scratch);
  }

  /// One step of one rank; r and v are null for empty state that is not kept.
  void step(Queue<Space::host> queue, HostView<const float> gradient, HostView<const float> moment, float* r, float* v,
            HostView<std::byte> payload, HostView<std::byte> scratch) const {
    auto* marks = section<std::uint32_t>(scratch);
    auto* found = section<VgcFound>(scratch, 4 * cut_.bitmap_words);
    host::for_pieces(queue, cut_.pieces.size(), elements_, [&](std::size_t i) {
      const host::Piece& piece = cut_.pieces[i];
      const float* squares = moment.empty() ? nullptr : moment.data() + piece.first;
      const auto run = [&](float* sums, float* variances) {
        return vgc_accumulate(gradient.data() + piece.first, squares, sums, variances, piece.count, law_, over_all_,
                              marks + piece.word);
      };
      if (r != nullptr) {
        found[i] = run(r + piece.first, v + piece.first);
      } else {
        std::array<float, host::kPiece> sums{};
        std::array<float, host::kPiece> variances{};
        found[i] = run(sums.data(), variances.data());
      }
    });
    std::byte* head = payload.data();
    auto* counts = section<std::uint32_t>(payload, VgcGroups::kCounts);
    auto* exponents = section<std::uint8_t>(payload, cut_.exponents_offset());
    auto* words = section<std::uint32_t>(payload, cut_.words_offset());
    std::memset(head, 0, cut_.words_offset());
    std::size_t total = 0;
    for (std::size_t i = 0; i < cut_.pieces.size(); ++i) {  // counts become places; groups learn their exponent
      auto& exponent = exponents[cut_.pieces[i].group];
      exponent = std::max(exponent, static_cast<std::uint8_t>(Vgc::exponent(found[i].largest)));
      total += std::exchange(found[i].count, static_cast<std::uint32_t>(total));
    }
    host::for_pieces(queue, cut_.pieces.size(), elements_, [&](std::size_t i) {
      const host::Piece& piece = cut_.pieces[i];
      const VgcChosen chosen{.law = law_,
                             .keeps_dropped = keeps_dropped_,
                             .exponent = exponents[piece.group],
                             .first_index = static_cast<std::uint32_t>(piece.first - cut_.groups[piece.group].first),
                             .values = (r == nullptr ? gradient.data() : r) + piece.first,
                             .r = r == nullptr ? nullptr : r + piece.first,
                             .v = v == nullptr ? nullptr : v + piece.first};
      found[i].largest = vgc_write_words(chosen, marks + piece.word, piece.count, words + found[i].count);
    });
    std::size_t end = 0;
    for (std::size_t i = 0; i < cut_.pieces.size(); ++i) {  // close the gaps that dropped elements left
      const std::uint32_t written = found[i].largest;
      if (end != found[i].count) std::memmove(words + end, words + found[i].count, 4 * std::size_t{written});
      end += written;
      counts[cut_.pieces[i].group] += written;
    }
    if (hybrid()) {  // the sign is all that a word says; the byte only tells what is not finite
      for (std::size_t k = 0; k < cut_.groups.size(); ++k) {
        if (exponents[k] != Vgc::kNotFinite) exponents[k] = 0;
      }
    }
    const std::uint64_t bytes = cut_.words_offset() + 4 * end;
    std::memcpy(head, &bytes, sizeof bytes);
  }

  void decode_add(Queue<Space::host> queue, HostView<const std::byte> payload, float weight, HostView<float> out,
                  HostView<std::byte> /*scratch*/) const override {
    const auto bad = [](const char* what) { throw Error{Fault::data, fmt::format("vgc payload: {}", what)}; };
    if (out.size() != elements_ || payload.size() < cut_.words_offset()) bad("too short for its header");
    std::uint64_t bytes = 0;
    std::memcpy(&bytes, payload.data(), sizeof bytes);
    const auto* counts = section<std::uint32_t>(payload, VgcGroups::kCounts);
    const auto* exponents = section<std::uint8_t>(payload, cut_.exponents_offset());
    const auto& groups = cut_.groups;
    std::size_t total = 0;
    for (std::size_t k = 0; k < groups.size(); ++k) {
      if (counts[k] > groups[k].elements) bad("more words than a group has elements");
      total += counts[k];
    }
    if (bytes != payload.size() || bytes != cut_.words_offset() + 4 * total) bad("its length is not the one it states");
    const auto* words = section<std::uint32_t>(payload, cut_.words_offset());
    for (std::size_t k = 0; k < groups.size(); words += counts[k], ++k) {
      if (counts[k] == 0) continue;
      vgc_add_words(queue, law_, words, counts[k], exponents[k], groups[k].elements, weight,
                    out.data() + groups[k].first);
    }
  }

  /// What is not sent is lost; what is sent is off by less than itself.
  [[nodiscard]] ErrorBound bound(std::size_t /*n*/) const override { return {.nmse = 1.0 + 1e-6, .of_largest = 1.0}; }

  [[nodiscard]] std::size_t values_in(HostView<const std::byte> payload, std::size_t /*n*/) const override {
    return (payload.size() - cut_.words_offset()) / 4;
  }
  [[nodiscard]] std::unique_ptr<Encoder<Space::host>> make_encoder(std::size_t n, int ranks,
                                                                   Queue<Space::host> queue) const override;

 private:
  [[nodiscard]] bool hybrid() const { return law_.tau > 0.0F; }

  Vgc law_;
  bool keeps_dropped_, over_all_;
  VgcGroups cut_;
  std::size_t elements_;
};

/// r and v of one rank.
class VgcEncoder final : public Encoder<Space::host> {
 public:
  VgcEncoder(const VgcCodec& codec, std::size_t n)
      : codec_{codec},
        arena_{2 * Arena<Space::host>::padded_size(4 * n)},
        r_{arena_.take<float>(n)},
        v_{arena_.take<float>(n)} {
    reset({});
  }

  void encode(Queue<Space::host> queue, HostView<const float> gradient, const SideInputs<Space::host>& side,
              const EncodeContext& /*context*/, HostView<std::byte> payload, HostView<std::byte> scratch) override {
    had_moments_ = had_moments_ && !side.second_moment.empty();
    codec_.step(queue, gradient, side.second_moment, r_.data(), v_.data(), payload, scratch);
  }
  void reset(Queue<Space::host> /*queue*/) override {
    std::fill(r_.span().begin(), r_.span().end(), 0.0F);
    std::fill(v_.span().begin(), v_.span().end(), 0.0F);
    had_moments_ = true;
  }
  [[nodiscard]] HostView<const float> residual() const override { return r_; }
  [[nodiscard]] std::string note() const override { return VgcGroups::note(had_moments_); }

 private:
  const VgcCodec& codec_;
  Arena<Space::host> arena_;
  HostView<float> r_, v_;
  bool had_moments_ = true;
};

std::unique_ptr<Encoder<Space::host>> VgcCodec::make_encoder(std::size_t n, int /*ranks*/,
                                                             Queue<Space::host> /*queue*/) const {
  return std::make_unique<VgcEncoder>(*this, n);
}

constexpr ParamInfo kParams[] = {
    {.name = "alpha",
     .default_value = "1",
     .min = 0.0,
     .max = 1e6,
     .meaning = "an element is sent when r^2 > alpha v; the paper tries 1, 1.5 and 2"},
    {.name = "zeta", .default_value = "0.999", .min = 0.0, .max = 1.0, .meaning = "decay of v of what is held back"},
    {.name = "tau",
     .default_value = "off",
     .min = 0.0,
     .max = 1e6,
     .choices = "off",
     .meaning = "Strom's threshold for the hybrid, which sends +-tau (the paper: 0.1, 0.01); off or 0 is plain VGC"},
    {.name = "dropped",
     .kind = ParamInfo::Kind::choice,
     .default_value = "reset",
     .choices = "reset|keep",
     .meaning = "r and v of an element that is chosen but too small for 3 bits of exponent"},
    {.name = "largest",
     .kind = ParamInfo::Kind::choice,
     .default_value = "emitted",
     .choices = "emitted|all",
     .meaning = "whose largest |r| sets the exponent of a tensor: of the chosen elements or of all"}};

}  // namespace

extern constinit const CodecDescriptor vgc_codec{
    .name = "vgc",
    .summary = "sends an element once its accumulated gradient stands out from its variance, in 32 bits with its index",
    .reference = "Tsuzuku, Imachi, Akiba, Variance-based Gradient Compression, ICLR 2018 workshop, arXiv 1802.06058",
    .description =
        "Every element accumulates its gradient in r and the squares of the micro-batches' shares in v, and is sent, "
        "as sign, 3-bit power of two below the tensor's largest and 28-bit index, when r^2 > alpha v; else v decays "
        "by zeta. Squares come from the capture's second moments (K micro-batches; a threshold alpha' on the "
        "variance is alpha = alpha' K / (K - 1 + alpha'), which is 1 for alpha' = 1 whatever K is); without them v "
        "sums the squares of whole mini-batch gradients, and with alpha >= 1 the first step sends nothing: that is "
        "the method. Rounding is not fed back. Reconstruction, where the paper is not explicit: the order of bits in "
        "a word, the header (a count and an exponent per tensor, sections of 2^28 elements), subnormal values are "
        "dropped, and the switches dropped and largest. tau turns on the hybrid with Strom's threshold (Algorithm "
        "2), whose words are a sign and a 31-bit index. A value that is not finite is sent at once and makes all "
        "that its tensor sends in that step NaN. It pays when gradients are noisy, so that few elements are worth "
        "their 32 bits in any one step, and with a ratio beyond half the number of ranks, because it needs an "
        "all-gather.",
    .params = kParams,
    .aggregation = Aggregation::gather,
    .memory = true,
    .by_layout = true,
    .needs_second_moment = true,
    .payload = "64 + 40 T + 32 k bits, T tensors, k elements that passed the test",
    .make_host = [](const Params& p, const Layout& layout) -> std::unique_ptr<Codec<Space::host>> {
      return std::make_unique<VgcCodec>(p, layout);
    },
    .make_cuda = GT_MAKE_CUDA(make_cuda_vgc),
};

}  // namespace gradtool
