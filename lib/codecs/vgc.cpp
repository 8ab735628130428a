#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <utility>

#include "kernels/host/marks.hpp"
#include "kernels/law/vgc.hpp"
#include "lib/codecs/payload.hpp"
#include "lib/codecs/registry.hpp"
#include "lib/core/arena.hpp"

namespace gradtool {
namespace {

using host::Piece;
using law::Vgc;

/// What a pass over a piece found.
struct Found {
  std::uint32_t count = 0;
  std::uint32_t largest = 0;  ///< the largest pattern of |r|
};

/// One step of up to 32 elements; a NaN square never hides: v becomes NaN and the element is sent.
template <bool Hybrid>
inline Found update_word(const float* g, const float* square, float* r, float* v, std::uint32_t count, const Vgc& law,
                         bool over_all, std::uint32_t* word) {
  std::array<std::uint32_t, 32> flags{};
  std::array<std::uint32_t, 32> sizes{};
  for (std::uint32_t j = 0; j < count; ++j) {
    const float sum = r[j] + g[j];
    const float variance = v[j] + square[j];
    const bool sent = Hybrid ? law.sends_hybrid(sum, variance) : law.sends(sum, variance);
    const std::uint32_t size = law::bits_of(sum) & Vgc::kMagnitude;
    if constexpr (Hybrid) {  // the sign of what is left is the sign of what was there
      const float left = sum - law::float_of(law::bits_of(law.tau) | (law::bits_of(sum) & 0x80000000u));
      r[j] = sent ? left : sum;
      v[j] = sent ? law.v_after_hybrid(sum, variance) : variance * law.zeta;
    } else {  // a sent r is still needed for its word
      r[j] = sum;
      v[j] = sent ? variance : variance * law.zeta;
    }
    flags[j] = sent ? 1u : 0u;
    sizes[j] = sent || over_all ? size : 0u;
  }
  *word = host::word_of(flags.data());
  Found found{static_cast<std::uint32_t>(std::popcount(*word)), 0};
  for (std::uint32_t j = 0; j < 32; ++j) found.largest = std::max(found.largest, sizes[j]);
  return found;
}

template <bool Hybrid>
GT_SIMD_CLONES Found update(const float* g, const float* moment, float* r, float* v, std::size_t count, Vgc law,
                            bool over_all, std::uint32_t* words) {
  std::array<float, 32> square{};
  Found all;
  for (std::size_t at = 0; at < count; at += 32) {
    const auto here = static_cast<std::uint32_t>(std::min<std::size_t>(32, count - at));
    if (moment == nullptr) {
      if (here == 32) {
        for (std::uint32_t j = 0; j < 32; ++j) square[j] = g[at + j] * g[at + j];
      } else {
        for (std::uint32_t j = 0; j < here; ++j) square[j] = g[at + j] * g[at + j];
      }
    }
    const float* squares = moment == nullptr ? square.data() : moment + at;
    const Found found =
        here == 32 ? update_word<Hybrid>(g + at, squares, r + at, v + at, 32, law, over_all, words + at / 32)
                   : update_word<Hybrid>(g + at, squares, r + at, v + at, here, law, over_all, words + at / 32);
    all.count += found.count;
    all.largest = std::max(all.largest, found.largest);
  }
  return all;
}

/// What the second pass knows of a piece.
struct Chosen {
  Vgc law;
  bool keeps_dropped = false;
  std::uint32_t exponent = 0;
  std::uint32_t first_index = 0;     ///< of the piece, in its group
  const float* values = nullptr;     ///< r, or the gradient where there is no state
  float *r = nullptr, *v = nullptr;  ///< null where there is no state
};

/// What up to 32 elements would send, in `words`, and the state of the marked ones after it. Bit j of the result is set
/// where element j is not too small for a word.
template <bool Hybrid>
[[gnu::always_inline]] inline std::uint32_t settle_block(const Chosen& piece, std::size_t at, std::uint32_t count,
                                                         std::uint32_t marked, std::uint32_t* words) {
  const bool finite = piece.exponent != Vgc::kNotFinite;
  const std::uint32_t kept = piece.keeps_dropped ? 1u : 0u;
  const std::uint32_t first = piece.first_index + static_cast<std::uint32_t>(at);
  const float* values = piece.values + at;
  std::array<std::uint32_t, 32> fits{};
  for (std::uint32_t j = 0; j < count; ++j) {
    const std::uint32_t steps = !Hybrid && finite ? Vgc::steps_down(values[j], piece.exponent) : 0u;
    fits[j] = steps < Vgc::kSteps ? 1u : 0u;
    words[j] = Vgc::word(values[j], steps, first + j);
  }
  const std::uint32_t result = host::word_of(fits.data());
  if (piece.r == nullptr || (Hybrid && finite)) return result;  // the first pass has settled what is finite
  float* r = piece.r + at;
  float* v = piece.v + at;
  for (std::uint32_t j = 0; j < count; ++j) {
    const bool sent = (marked >> j & 1u) != 0 && (!Hybrid || (law::bits_of(r[j]) & Vgc::kMagnitude) >= Vgc::kInfinity);
    const bool stays = (kept & ~fits[j]) != 0;
    const float sum = r[j];
    const float variance = v[j];
    r[j] = sent && !stays ? 0.0F : sum;
    v[j] = !sent ? variance : stays ? variance * piece.law.zeta : 0.0F;
  }
  return result;
}

/// Writes the words of a piece's marked elements and settles their state. Returns how many words there are.
template <bool Hybrid>
GT_SIMD_CLONES std::uint32_t write_words(Chosen piece, const std::uint32_t* marks, std::size_t count,
                                         std::uint32_t* out) {
  const std::uint32_t* const begin = out;
  std::array<std::uint32_t, 32> words{};
  for (std::size_t at = 0; at < count; at += 32) {
    const std::uint32_t marked = marks[at / 32];
    if (marked == 0) continue;
    const auto here = static_cast<std::uint32_t>(std::min<std::size_t>(32, count - at));
    std::uint32_t rest = here == 32 ? settle_block<Hybrid>(piece, at, 32, marked, words.data())
                                    : settle_block<Hybrid>(piece, at, here, marked, words.data());
    for (rest &= marked; rest != 0; rest &= rest - 1) *out++ = words[static_cast<std::size_t>(std::countr_zero(rest))];
  }
  return static_cast<std::uint32_t>(out - begin);
}

/// True when words name ascending elements of a group, by exponents that exist.
GT_SIMD_CLONES bool is_group(const std::uint32_t* words, std::size_t count, std::uint32_t mask, std::uint32_t steps) {
  std::uint32_t wrong = 0;
  for (std::size_t j = 1; j < count; ++j) wrong |= (words[j - 1] & mask) >= (words[j] & mask) ? 1u : 0u;
  for (std::size_t j = 0; j < count; ++j) wrong |= (words[j] >> 28 & 7u) >= steps ? 1u : 0u;
  return wrong == 0;
}

class VgcCodec final : public Codec<Space::host> {
 public:
  VgcCodec(const Params& params, const Layout& layout)
      : law_{.alpha = static_cast<float>(params.real("alpha")),
             .zeta = static_cast<float>(params.real("zeta")),
             .tau = params.is("tau", "off") ? 0.0F : static_cast<float>(params.real("tau"))},
        keeps_dropped_{params.is("dropped", "keep")},
        over_all_{params.is("largest", "all")},
        elements_{layout.elements} {
    if (hybrid()) {
      add_groups(0, elements_, std::size_t{1} << 31);
    } else {
      for (const auto& tensor : layout.tensors) add_groups(tensor.first, tensor.elements, std::size_t{1} << 28);
    }
  }

  [[nodiscard]] Footprint plan(std::size_t n) const override {
    expects(n == elements_, "codec vgc: made for another layout");
    return {.payload_bytes = words_offset() + 4 * n,
            .scratch_bytes = 4 * bitmap_words_ + sizeof(Found) * pieces_.size(),
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
    auto* found = section<Found>(scratch, 4 * bitmap_words_);
    host::for_pieces(queue, pieces_.size(), elements_, [&](std::size_t i) {
      const Piece& piece = pieces_[i];
      const float* squares = moment.empty() ? nullptr : moment.data() + piece.first;
      const auto run = [&](float* sums, float* variances) {
        return hybrid() ? update<true>(gradient.data() + piece.first, squares, sums, variances, piece.count, law_,
                                       over_all_, marks + piece.word)
                        : update<false>(gradient.data() + piece.first, squares, sums, variances, piece.count, law_,
                                        over_all_, marks + piece.word);
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
    auto* counts = section<std::uint32_t>(payload, kCounts);
    auto* exponents = section<std::uint8_t>(payload, exponents_offset());
    auto* words = section<std::uint32_t>(payload, words_offset());
    std::memset(head, 0, words_offset());
    std::size_t total = 0;
    for (std::size_t i = 0; i < pieces_.size(); ++i) {  // counts become places; groups learn their exponent
      auto& exponent = exponents[pieces_[i].group];
      exponent = std::max(exponent, static_cast<std::uint8_t>(Vgc::exponent(found[i].largest)));
      total += std::exchange(found[i].count, static_cast<std::uint32_t>(total));
    }
    host::for_pieces(queue, pieces_.size(), elements_, [&](std::size_t i) {
      const Piece& piece = pieces_[i];
      const Chosen chosen{.law = law_,
                          .keeps_dropped = keeps_dropped_,
                          .exponent = exponents[piece.group],
                          .first_index = static_cast<std::uint32_t>(piece.first - groups_[piece.group].first),
                          .values = (r == nullptr ? gradient.data() : r) + piece.first,
                          .r = r == nullptr ? nullptr : r + piece.first,
                          .v = v == nullptr ? nullptr : v + piece.first};
      auto* to = words + found[i].count;
      found[i].largest = hybrid() ? write_words<true>(chosen, marks + piece.word, piece.count, to)
                                  : write_words<false>(chosen, marks + piece.word, piece.count, to);
    });
    std::size_t end = 0;
    for (std::size_t i = 0; i < pieces_.size(); ++i) {  // close the gaps that dropped elements left
      const std::uint32_t written = found[i].largest;
      if (end != found[i].count) std::memmove(words + end, words + found[i].count, 4 * std::size_t{written});
      end += written;
      counts[pieces_[i].group] += written;
    }
    if (hybrid()) {  // the sign is all that a word says; the byte only tells what is not finite
      for (std::size_t k = 0; k < groups_.size(); ++k) {
        if (exponents[k] != Vgc::kNotFinite) exponents[k] = 0;
      }
    }
    const std::uint64_t bytes = words_offset() + 4 * end;
    std::memcpy(head, &bytes, sizeof bytes);
  }

  void decode_add(Queue<Space::host> queue, HostView<const std::byte> payload, float weight, HostView<float> out,
                  HostView<std::byte> /*scratch*/) const override {
    const auto bad = [](const char* what) { throw Error{Fault::data, fmt::format("vgc payload: {}", what)}; };
    if (out.size() != elements_ || payload.size() < words_offset()) bad("too short for its header");
    std::uint64_t bytes = 0;
    std::memcpy(&bytes, payload.data(), sizeof bytes);
    const auto* counts = section<std::uint32_t>(payload, kCounts);
    const auto* exponents = section<std::uint8_t>(payload, exponents_offset());
    std::size_t total = 0;
    for (std::size_t k = 0; k < groups_.size(); ++k) {
      if (counts[k] > groups_[k].elements) bad("more words than a group has elements");
      total += counts[k];
    }
    if (bytes != payload.size() || bytes != words_offset() + 4 * total) bad("its length is not the one it states");
    const auto* words = section<std::uint32_t>(payload, words_offset());
    const std::uint32_t mask = hybrid() ? 0x7fffffffu : 0x0fffffffu;
    for (std::size_t k = 0; k < groups_.size(); words += counts[k], ++k) {
      const std::size_t count = counts[k];
      if (count == 0) continue;
      const std::uint32_t exponent = exponents[k];
      const std::uint32_t steps = hybrid() || exponent == Vgc::kNotFinite ? Vgc::kSteps : exponent;
      if (!is_group(words, count, mask, steps) || (words[count - 1] & mask) >= groups_[k].elements)
        bad("its words do not ascend, go past the end of a group or below the smallest number");
      float* to = out.data() + groups_[k].first;
      parallel_for(queue, count, 16, 1 << 14, [&](std::size_t first, std::size_t last) {
        if (exponent == Vgc::kNotFinite) {
          for (; first < last; ++first) to[words[first] & mask] += law::float_of(0x7fc00000u);
        } else if (hybrid()) {
          const std::uint32_t size = law::bits_of(weight * law_.tau);
          for (; first < last; ++first) to[words[first] & mask] += law::float_of(size ^ (words[first] & ~mask));
        } else {
          for (; first < last; ++first) to[words[first] & mask] += weight * Vgc::value_of(words[first], exponent);
        }
      });
    }
  }

  /// What is not sent is lost; what is sent is off by less than itself.
  [[nodiscard]] ErrorBound bound(std::size_t /*n*/) const override { return {.nmse = 1.0 + 1e-6, .of_largest = 1.0}; }

  [[nodiscard]] std::size_t values_in(HostView<const std::byte> payload, std::size_t /*n*/) const override {
    return (payload.size() - words_offset()) / 4;
  }
  [[nodiscard]] std::unique_ptr<Encoder<Space::host>> make_encoder(std::size_t n, int ranks,
                                                                   Queue<Space::host> queue) const override;

 private:
  static constexpr std::size_t kCounts = 8;

  struct Group {
    std::size_t first = 0, elements = 0;
  };

  [[nodiscard]] bool hybrid() const { return law_.tau > 0.0F; }
  [[nodiscard]] std::size_t exponents_offset() const { return kCounts + 4 * groups_.size(); }
  [[nodiscard]] std::size_t words_offset() const { return exponents_offset() + (groups_.size() + 3) / 4 * 4; }

  /// Sections that an index reaches all of, and the pieces they are worked in.
  void add_groups(std::size_t first, std::size_t elements, std::size_t longest) {
    for (std::size_t at = 0; at < elements; at += longest) {
      const std::size_t here = std::min(longest, elements - at);
      for (std::size_t from = 0; from < here; from += host::kPiece) {
        const std::size_t count = std::min(host::kPiece, here - from);
        pieces_.push_back({first + at + from, count, bitmap_words_, groups_.size()});
        bitmap_words_ += (count + 31) / 32;
      }
      groups_.push_back({first + at, here});
    }
  }

  Vgc law_;
  bool keeps_dropped_, over_all_;
  std::size_t elements_;
  std::size_t bitmap_words_ = 0;
  std::vector<Group> groups_;
  std::vector<Piece> pieces_;
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
  [[nodiscard]] std::string note() const override {
    return had_moments_ ? "" : "no second moments captured: v sums squares of whole mini-batch gradients (K = 1)";
  }

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
    .make_cuda = nullptr,
};

}  // namespace gradtool
