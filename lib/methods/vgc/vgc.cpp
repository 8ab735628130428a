
#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "kernels/marks.hpp"
#include "lib/codecs/payload.hpp"
#include "lib/codecs/registry.hpp"
#include "lib/core/scratch.hpp"
#include "lib/core/throw_error.hpp"
#include "lib/methods/vgc/codec.hpp"

namespace gradtool {
namespace {

using format::Vgc;

/// The result of the passes over a piece of a group.
struct PieceResult {
  std::uint32_t chosen = 0;    ///< elements that passed the test
  std::uint32_t largest = 0;   ///< bit pattern of the largest |r|
  std::uint32_t written = 0;   ///< words: chosen elements that are not too small for one
  std::size_t first_word = 0;  ///< where they are written: behind the chosen elements of the pieces before
};

/// The first pass over up to 32 elements. A NaN among the squares makes v NaN, so that the element is sent.
template <bool Hybrid>
inline PieceResult accumulate_32(const float* gradient, const float* squares, float* __restrict r, float* __restrict v,
                                 std::uint32_t count, const Vgc rule, bool largest_of_all, std::uint32_t* marks) {
  const std::uint32_t all = largest_of_all ? 1u : 0u;
  std::array<std::uint32_t, 32> flags{};
  std::array<std::uint32_t, 32> magnitudes{};
  for (std::uint32_t j = 0; j < count; ++j) {
    float sum = r[j] + gradient[j], spread = v[j] + squares[j];
    magnitudes[j] = format::bits_of(sum) & Vgc::kMagnitude;
    flags[j] = rule.decide<Hybrid>(sum, spread) ? 1u : 0u;
    r[j] = sum;
    v[j] = spread;
  }
  *marks = host::word_of(flags.data());
  PieceResult result{.chosen = static_cast<std::uint32_t>(std::popcount(*marks))};
  for (std::uint32_t j = 0; j < 32; ++j)
    result.largest = std::max(result.largest, magnitudes[j] & (0u - (flags[j] | all)));
  return result;
}

/// The first pass: r and v take up the gradient and its squares, or `moment` where that is not null, and `marks` gets a
/// bit for each element that is chosen.
template <bool Hybrid>
GT_SIMD_CLONES PieceResult accumulate(const float* gradient, const float* moment, float* r, float* v, std::size_t count,
                                      Vgc rule, bool largest_of_all, std::uint32_t* marks) {
  std::array<float, 32> square{};
  PieceResult all;
  for (std::size_t i = 0; i < count; i += 32) {
    const auto block = static_cast<std::uint32_t>(std::min<std::size_t>(32, count - i));
    const float* g = gradient + i;
    if (moment == nullptr) {
      if (block == 32) {  // the constant count lets the loop vectorise
        for (std::uint32_t j = 0; j < 32; ++j) square[j] = g[j] * g[j];
      } else {
        for (std::uint32_t j = 0; j < block; ++j) square[j] = g[j] * g[j];
      }
    }
    const float* squares = moment == nullptr ? square.data() : moment + i;
    const PieceResult result =
        block == 32 ? accumulate_32<Hybrid>(g, squares, r + i, v + i, 32, rule, largest_of_all, marks + i / 32)
                    : accumulate_32<Hybrid>(g, squares, r + i, v + i, block, rule, largest_of_all, marks + i / 32);
    all.chosen += result.chosen;
    all.largest = std::max(all.largest, result.largest);
  }
  return all;
}

/// The inputs of the second pass over a piece.
struct ChosenElements {
  Vgc rule;
  bool keeps_dropped = false;
  std::uint32_t exponent = 0;        ///< of the group
  std::uint32_t first_index = 0;     ///< where the piece starts in its group
  const float* values = nullptr;     ///< what words are made from: r, or the gradient where there is no state
  float *r = nullptr, *v = nullptr;  ///< null where there is no state
};

/// The second pass over up to 32 elements: the words of all of them, and the state of the marked ones after they were
/// sent. Bit j of the result is set where element j is not too small for a word.
template <bool Hybrid>
[[gnu::always_inline]] inline std::uint32_t quantise_32(const ChosenElements& piece, std::size_t first,
                                                        std::uint32_t count, std::uint32_t marked,
                                                        std::uint32_t* words) {
  const bool finite = piece.exponent != Vgc::kNotFinite;
  const std::uint32_t first_index = piece.first_index + static_cast<std::uint32_t>(first);
  const float* values = piece.values + first;
  std::array<std::uint32_t, 32> fits{};
  for (std::uint32_t j = 0; j < count; ++j) {
    const std::uint32_t steps = !Hybrid && finite ? Vgc::steps_down(values[j], piece.exponent) : 0u;
    fits[j] = steps < Vgc::kSteps ? 1u : 0u;
    words[j] = Vgc::word(values[j], steps, first_index + j);
  }
  const std::uint32_t result = host::word_of(fits.data());
  if (piece.r == nullptr || (Hybrid && finite)) return result;  // no state, or the first pass has brought it up to date
  float* r = piece.r + first;
  float* v = piece.v + first;
  for (std::uint32_t j = 0; j < count; ++j) {
    const Vgc::State before{r[j], v[j]};
    const Vgc::State after = piece.rule.after_sending<Hybrid>(before, fits[j] != 0, piece.keeps_dropped);
    const bool sent = (marked >> j & 1u) != 0;
    r[j] = sent ? after.r : before.r;
    v[j] = sent ? after.v : before.v;
  }
  return result;
}

/// The second pass: writes the words of a piece's marked elements. Returns how many there are.
template <bool Hybrid>
GT_SIMD_CLONES std::uint32_t write_words(ChosenElements piece, const std::uint32_t* marks, std::size_t count,
                                         std::uint32_t* out) {
  const std::uint32_t* const begin = out;
  std::array<std::uint32_t, 32> words{};
  for (std::size_t i = 0; i < count; i += 32) {
    const std::uint32_t marked = marks[i / 32];
    if (marked == 0) continue;
    const auto block = static_cast<std::uint32_t>(std::min<std::size_t>(32, count - i));
    std::uint32_t rest = block == 32 ? quantise_32<Hybrid>(piece, i, 32, marked, words.data())
                                     : quantise_32<Hybrid>(piece, i, block, marked, words.data());
    for (rest &= marked; rest != 0; rest &= rest - 1) *out++ = words[static_cast<std::size_t>(std::countr_zero(rest))];
  }
  return static_cast<std::uint32_t>(out - begin);
}

/// True when the indices of words ascend and every word is fewer than `steps` powers of two below the largest.
GT_SIMD_CLONES bool are_words(const std::uint32_t* words, std::size_t count, std::uint32_t mask, std::uint32_t steps) {
  std::uint32_t wrong = 0;
  for (std::size_t j = 1; j < count; ++j) wrong |= (words[j - 1] & mask) >= (words[j] & mask) ? 1u : 0u;
  for (std::size_t j = 0; j < count; ++j) wrong |= Vgc::steps_of(words[j]) >= steps ? 1u : 0u;
  return wrong == 0;
}

[[noreturn]] void bad_payload(const char* what) {
  throw_error(Fault::data, "vgc payload: {}", what);
}

/// out[index] += weight * value for the words of a group of `elements`.
void add_words(Queue<Space::host> queue, const Vgc& rule, HostView<const std::uint32_t> words, std::uint32_t exponent,
               std::size_t elements, float weight, float* out) {
  const std::uint32_t mask = rule.index_mask();
  const std::uint32_t steps = rule.hybrid() || exponent == Vgc::kNotFinite ? Vgc::kSteps : exponent;
  if (!are_words(words.data(), words.size(), mask, steps) || (words[words.size() - 1] & mask) >= elements)
    bad_payload("its words do not ascend, go past the end of a group or below the smallest number");
  parallel_for(queue, words.size(), 16, 1 << 14, [&](std::size_t first, std::size_t last) {
    if (exponent == Vgc::kNotFinite) {
      for (; first < last; ++first) out[words[first] & mask] += format::float_of(0x7fc00000u);
    } else if (rule.hybrid()) {
      const std::uint32_t tau = format::bits_of(weight * rule.tau);
      for (; first < last; ++first) out[words[first] & mask] += format::float_of(tau ^ (words[first] & Vgc::kSign));
    } else {
      for (; first < last; ++first) out[words[first] & mask] += weight * Vgc::value_of(words[first], exponent);
    }
  });
}

class VgcCodec final : public Codec<Space::host> {
 public:
  VgcCodec(const Params& params, const Layout& layout)
      : options_{params}, groups_{layout, options_.rule.hybrid()}, elements_{layout.elements} {
    for (std::size_t k = 0; k < groups_.groups.size(); ++k) {
      const VgcGroups::Group& group = groups_.groups[k];
      for (std::size_t first = 0; first < group.elements; first += host::kPiece) {
        const std::size_t count = std::min(host::kPiece, group.elements - first);
        pieces_.push_back({group.first + first, count, mark_words_, k});
        mark_words_ += (count + 31) / 32;
      }
    }
  }

  [[nodiscard]] Footprint plan(std::size_t n) const override {
    expects(n == elements_, "codec vgc: made for another layout");
    return {
        .payload_bytes = groups_.words_offset() + 4 * n, .scratch_bytes = planned<Workspace>(*this), .exact = false};
  }

  /// The first step, from empty state and without second moments.
  void encode(Queue<Space::host> queue, HostView<const float> gradient, const EncodeContext& /*context*/,
              HostView<std::byte> payload, HostView<std::byte> scratch) const override {
    step(queue, gradient, {}, nullptr, nullptr, payload, scratch);
  }

  /// One step of one rank. `moment` is empty where the capture has no second moments; r and v are null for a state that
  /// is empty and not kept.
  void step(Queue<Space::host> queue, HostView<const float> gradient, HostView<const float> moment, float* r, float* v,
            HostView<std::byte> payload, HostView<std::byte> scratch) const {
    if (options_.rule.hybrid())
      step_of<true>(queue, gradient, moment, r, v, payload, scratch);
    else
      step_of<false>(queue, gradient, moment, r, v, payload, scratch);
  }

  void decode_add(Queue<Space::host> queue, HostView<const std::byte> payload, float weight, HostView<float> out,
                  HostView<std::byte> /*scratch*/) const override {
    if (out.size() != elements_ || payload.size() < groups_.words_offset()) bad_payload("too short for its header");
    std::uint64_t bytes = 0;
    std::memcpy(&bytes, payload.data(), sizeof bytes);
    const auto* counts = section<std::uint32_t>(payload, VgcGroups::kCountsOffset);
    const auto* exponents = section<std::uint8_t>(payload, groups_.exponents_offset());
    const auto& groups = groups_.groups;
    std::size_t total = 0;
    for (std::size_t k = 0; k < groups.size(); ++k) {
      if (counts[k] > groups[k].elements) bad_payload("more words than a group has elements");
      total += counts[k];
    }
    if (bytes != payload.size() || bytes != groups_.words_offset() + 4 * total)
      bad_payload("its length is not the one it states");
    const auto* words = section<std::uint32_t>(payload, groups_.words_offset());
    for (std::size_t k = 0; k < groups.size(); words += counts[k], ++k) {
      if (counts[k] == 0) continue;
      add_words(queue, options_.rule, {words, counts[k]}, exponents[k], groups[k].elements, weight,
                out.data() + groups[k].first);
    }
  }

  /// An element that is not sent is lost in this step, and one that is sent is off by less than itself.
  [[nodiscard]] ErrorBound bound(std::size_t /*n*/) const override { return {.nmse = 1.0 + 1e-6, .of_largest = 1.0}; }

  [[nodiscard]] std::size_t values_in(HostView<const std::byte> payload, std::size_t /*n*/) const override {
    return (payload.size() - groups_.words_offset()) / 4;
  }
  [[nodiscard]] std::unique_ptr<Encoder<Space::host>> make_encoder(std::size_t n, int /*ranks*/,
                                                                   Queue<Space::host> queue) const override {
    return std::make_unique<VgcEncoder<Space::host, VgcCodec>>(*this, n, queue);
  }

 private:
  struct Workspace {
    Workspace(const VgcCodec& codec, Scratch<Space::host> scratch)
        : marks{scratch.take<std::uint32_t>(codec.mark_words_)},
          results{scratch.take<PieceResult>(codec.pieces_.size())} {}
    HostView<std::uint32_t> marks;  ///< a bit for each element, set for the chosen ones
    HostView<PieceResult> results;
  };

  template <bool Hybrid>
  void step_of(Queue<Space::host> queue, HostView<const float> gradient, HostView<const float> moment, float* r,
               float* v, HostView<std::byte> payload, HostView<std::byte> scratch) const {
    const Workspace work{*this, Scratch<Space::host>{scratch}};
    host::for_pieces(queue, pieces_.size(), elements_, [&](std::size_t i) {
      const host::Piece& piece = pieces_[i];
      const auto run = [&](float* sums, float* variances) {
        return accumulate<Hybrid>(gradient.data() + piece.first, moment.empty() ? nullptr : moment.data() + piece.first,
                                  sums, variances, piece.count, options_.rule, options_.largest_of_all,
                                  work.marks.data() + piece.word);
      };
      if (r != nullptr) {
        work.results[i] = run(r + piece.first, v + piece.first);
      } else {
        std::array<float, host::kPiece> sums{};
        std::array<float, host::kPiece> variances{};
        work.results[i] = run(sums.data(), variances.data());
      }
    });

    auto* counts = section<std::uint32_t>(payload, VgcGroups::kCountsOffset);
    auto* exponents = section<std::uint8_t>(payload, groups_.exponents_offset());
    auto* words = section<std::uint32_t>(payload, groups_.words_offset());
    std::memset(payload.data(), 0, groups_.words_offset());
    std::size_t chosen = 0;
    for (std::size_t i = 0; i < pieces_.size(); ++i) {
      auto& exponent = exponents[pieces_[i].group];
      exponent = std::max(exponent, static_cast<std::uint8_t>(Vgc::exponent(work.results[i].largest)));
      work.results[i].first_word = chosen;
      chosen += work.results[i].chosen;
    }

    host::for_pieces(queue, pieces_.size(), elements_, [&](std::size_t i) {
      const host::Piece& piece = pieces_[i];
      const ChosenElements elements{
          .rule = options_.rule,
          .keeps_dropped = options_.keeps_dropped,
          .exponent = exponents[piece.group],
          .first_index = static_cast<std::uint32_t>(piece.first - groups_.groups[piece.group].first),
          .values = (r == nullptr ? gradient.data() : r) + piece.first,
          .r = r == nullptr ? nullptr : r + piece.first,
          .v = v == nullptr ? nullptr : v + piece.first};
      work.results[i].written = write_words<Hybrid>(elements, work.marks.data() + piece.word, piece.count,
                                                    words + work.results[i].first_word);
    });

    std::size_t end = 0;
    for (std::size_t i = 0; i < pieces_.size(); ++i) {  // close the gaps that elements without a word have left
      const PieceResult& result = work.results[i];
      if (end != result.first_word)
        std::memmove(words + end, words + result.first_word, 4 * std::size_t{result.written});
      end += result.written;
      counts[pieces_[i].group] += result.written;
    }
    if (Hybrid) {  // a word needs no exponent then; the byte only says whether the group decodes to NaN
      for (std::size_t k = 0; k < groups_.groups.size(); ++k) {
        if (exponents[k] != Vgc::kNotFinite) exponents[k] = 0;
      }
    }
    const std::uint64_t bytes = groups_.words_offset() + 4 * end;
    std::memcpy(payload.data(), &bytes, sizeof bytes);
  }

  VgcOptions options_;
  VgcGroups groups_;
  std::vector<host::Piece> pieces_;
  std::size_t mark_words_ = 0;
  std::size_t elements_;
};

constexpr ParamInfo kParams[] = {
    real_param("alpha", "1", {0.0, 1e6}, "an element is sent when r^2 > alpha v; the paper tries 1, 1.5 and 2")
        .searched("0.25|0.5|1|2|4"),
    real_param("zeta", "0.999", {0.0, 1.0}, "decay of v of what is held back"),
    real_param("tau", "off", {0.0, 1e6},
               "Strom's threshold for the hybrid, which sends +-tau (the paper: 0.1, 0.01); off or 0 is plain VGC")
        .or_words("off"),
    choice_param(
        "dropped", "reset", "reset|keep",
        "an element that is chosen but too small for 3 bits of exponent: r and v become 0, or r stays and v decays"),
    choice_param("largest", "emitted", "emitted|all",
                 "whose largest |r| sets the exponent of a tensor: of the chosen elements or of all")};

}  // namespace

extern constinit const CodecDescriptor vgc_codec{
    .name = "vgc",
    .summary = "sends an element once its accumulated gradient stands out from its variance, in 32 bits with its index",
    .reference = "Tsuzuku, Imachi, Akiba, Variance-based Gradient Compression, ICLR 2018 workshop, arXiv 1802.06058",
    .params = kParams,
    .memory = true,
    .delays = true,
    .by_layout = true,
    .needs_second_moment = true,
    .payload = "64 + 40 T + 32 k bits, T tensors, k elements that passed the test",
    .passes = [](const Params&) { return MemoryPasses{.kept = 2, .side = 1, .scatters = true}; },
    .make_host = make_method_codec<Space::host, VgcCodec>,
};

}  // namespace gradtool
