#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <utility>

#include "kernels/host/marks.hpp"
#include "kernels/law/adacomp.hpp"
#include "lib/codecs/payload.hpp"
#include "lib/codecs/registry.hpp"
#include "lib/core/arena.hpp"

namespace gradtool {
namespace {

using law::AdaComp;

constexpr std::size_t kLongestBin = 1 << 14;   // 14 bits of index
constexpr std::size_t kShortEntries = 1 << 6;  // bins up to here have 6 bits of index, and counts of one byte

/// G of one bin into `sums` (which may be what it was), its marks; returns the pattern of its largest.
[[gnu::always_inline]] inline std::uint32_t mark_bin(const float* g, float* sums, std::size_t count, AdaComp law,
                                                     std::uint32_t* words) {
  std::uint32_t largest = 0;
  for (std::size_t j = 0; j < count; ++j) {
    const float sum = sums[j] + g[j];
    sums[j] = sum;
    largest = std::max(largest, AdaComp::magnitude(sum));
  }
  std::array<std::uint32_t, 32> flags{};
  std::size_t at = 0;
  for (; at + 32 <= count; at += 32) {
    for (std::size_t j = 0; j < 32; ++j) flags[j] = law.sends(sums[at + j], g[at + j], largest) ? 1u : 0u;
    *words++ = host::word_of(flags.data());
  }
  if (at == count) return largest;
  flags.fill(0);
  for (std::size_t j = 0; at + j < count; ++j) flags[j] = law.sends(sums[at + j], g[at + j], largest) ? 1u : 0u;
  *words = host::word_of(flags.data());
  return largest;
}

/// What a pass over some bins of a tensor found.
struct Found {
  double largest = 0.0;  ///< sum over bins; not finite where a bin is not
  std::uint32_t count = 0;
  std::uint32_t place = 0;  ///< entries of the tensor before these
};

GT_SIMD_CLONES Found mark_bins(const float* g, float* sums, std::size_t count, std::size_t bin, AdaComp law,
                               std::uint32_t* words) {
  Found found;
  const std::size_t per_bin = (bin + 31) / 32;
  for (std::size_t at = 0; at < count; at += bin, words += per_bin) {
    const std::size_t here = std::min(bin, count - at);
    found.largest += static_cast<double>(law::float_of(mark_bin(g + at, sums + at, here, law, words)));
    for (std::size_t w = 0; w < (here + 31) / 32; ++w)
      found.count += static_cast<std::uint32_t>(std::popcount(words[w]));
  }
  return found;
}

/// A tensor's bins in the unit and in the payload.
struct Tensor {
  std::size_t first = 0, elements = 0, bin = 1, bins = 0;
  std::size_t first_piece = 0, last_piece = 0;
  [[nodiscard]] std::size_t width() const { return bin <= kShortEntries ? 1 : 2; }  ///< bytes of an entry or a count
  [[nodiscard]] std::size_t bytes(std::size_t entries) const { return (width() * (bins + entries) + 3) / 4 * 4; }
};

/// Some whole bins of a tensor.
struct Piece {
  std::size_t tensor = 0, first = 0, count = 0, first_bin = 0, bins = 0, word = 0;
};

class AdaCompCodec final : public Codec<Space::host> {
 public:
  AdaCompCodec(const Params& params, const Layout& layout)
      : law_{static_cast<float>(params.real("s")) - 1.0F}, n_{layout.elements} {
    const auto conv = static_cast<std::size_t>(params.integer("conv"));
    const auto other = static_cast<std::size_t>(params.integer("other"));
    for (const auto& shape : layout.tensors) {
      if (shape.elements == 0) continue;
      Tensor tensor{.first = shape.first, .elements = shape.elements, .bin = shape.kind == "conv" ? conv : other};
      tensor.bins = (tensor.elements + tensor.bin - 1) / tensor.bin;
      tensor.first_piece = pieces_.size();
      const std::size_t together = std::max<std::size_t>(1, host::kPiece / tensor.bin);
      for (std::size_t b = 0; b < tensor.bins; b += together) {
        const std::size_t bins = std::min(together, tensor.bins - b);
        const std::size_t at = b * tensor.bin;
        pieces_.push_back({.tensor = tensors_.size(),
                           .first = tensor.first + at,
                           .count = std::min(bins * tensor.bin, tensor.elements - at),
                           .first_bin = b,
                           .bins = bins,
                           .word = words_});
        words_ += bins * ((tensor.bin + 31) / 32);
      }
      tensor.last_piece = pieces_.size();
      tensors_.push_back(tensor);
    }
  }

  [[nodiscard]] Footprint plan(std::size_t n) const override {
    expects(n == n_, "codec adacomp: made for another layout");
    std::size_t bytes = head();
    for (const Tensor& tensor : tensors_) bytes += tensor.bytes(tensor.elements);
    return {.payload_bytes = bytes, .scratch_bytes = offset_bytes() + found_bytes() + 4 * words_, .exact = false};
  }

  /// The first step, from an empty residue.
  void encode(Queue<Space::host> queue, HostView<const float> gradient, const EncodeContext& /*context*/,
              HostView<std::byte> payload, HostView<std::byte> scratch) const override {
    step(queue, gradient, nullptr, payload, scratch);
  }

  /// One step of one rank; `residue` is null for an empty one that is not kept.
  void step(Queue<Space::host> queue, HostView<const float> gradient, float* residue, HostView<std::byte> payload,
            HostView<std::byte> scratch) const {
    auto* found = section<Found>(scratch, offset_bytes());
    auto* marks = section<std::uint32_t>(scratch, offset_bytes() + found_bytes());
    host::for_pieces(queue, pieces_.size(), n_, [&](std::size_t i) {
      const Piece& piece = pieces_[i];
      const float* g = gradient.data() + piece.first;
      const std::size_t bin = tensors_[piece.tensor].bin;
      if (residue != nullptr) {
        found[i] = mark_bins(g, residue + piece.first, piece.count, bin, law_, marks + piece.word);
      } else {
        std::array<float, kLongestBin> sums;
        std::fill_n(sums.data(), piece.count, 0.0F);
        found[i] = mark_bins(g, sums.data(), piece.count, bin, law_, marks + piece.word);
      }
    });
    auto* scales = section<float>(payload, 8);
    auto* offsets = section<std::uint64_t>(scratch);
    std::size_t at = head();
    for (std::size_t t = 0; t < tensors_.size(); ++t) {
      const Tensor& tensor = tensors_[t];
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
    host::for_pieces(queue, pieces_.size(), n_, [&](std::size_t i) {
      const Piece& piece = pieces_[i];
      auto* counts = payload.data() + offsets[piece.tensor];
      if (tensors_[piece.tensor].width() == 1)
        write_bins<std::uint8_t>(piece, marks, gradient, residue, scales[piece.tensor], counts, found[i].place);
      else
        write_bins<std::uint16_t>(piece, marks, gradient, residue, scales[piece.tensor], counts, found[i].place);
    });
    const std::uint64_t bytes = at;
    std::memcpy(payload.data(), &bytes, sizeof bytes);
  }

  void decode_add(Queue<Space::host> queue, HostView<const std::byte> payload, float weight, HostView<float> out,
                  HostView<std::byte> scratch) const override {
    if (out.size() != n_ || payload.size() < head()) bad("too short for its header");
    std::uint64_t bytes = 0;
    std::memcpy(&bytes, payload.data(), sizeof bytes);
    if (bytes != payload.size()) bad("its length is not the one it states");
    const auto* scales = section<float>(payload, 8);
    auto* offsets = section<std::uint64_t>(scratch);
    auto* places = section<Found>(scratch, offset_bytes());
    std::size_t at = head();
    for (std::size_t t = 0; t < tensors_.size(); ++t) {
      offsets[t] = at;
      const auto tail = payload.part(at, payload.size() - at);
      at += tensors_[t].width() == 1 ? place_pieces<std::uint8_t>(tensors_[t], tail, places)
                                     : place_pieces<std::uint16_t>(tensors_[t], tail, places);
    }
    if (at != payload.size()) bad("longer than its counts say");
    host::for_pieces(queue, pieces_.size(), n_, [&](std::size_t i) {
      const Piece& piece = pieces_[i];
      const auto tail = payload.part(offsets[piece.tensor], payload.size() - offsets[piece.tensor]);
      const float scale = weight * scales[piece.tensor];
      if (tensors_[piece.tensor].width() == 1)
        add_bins<std::uint8_t>(piece, tail, places[i].place, scale, out);
      else
        add_bins<std::uint16_t>(piece, tail, places[i].place, scale, out);
    });
  }

  /// Sent values are off by no more than the largest; nothing else is promised, as small bins get the mean of all.
  [[nodiscard]] ErrorBound bound(std::size_t /*n*/) const override { return {.of_largest = 1.0 + 1e-6}; }
  [[nodiscard]] std::size_t values_in(HostView<const std::byte> payload, std::size_t /*n*/) const override {
    std::size_t at = head();
    std::size_t values = 0;
    for (const Tensor& tensor : tensors_) {
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
  [[noreturn]] static void bad(const char* what) { throw Error{Fault::data, fmt::format("adacomp payload: {}", what)}; }
  [[nodiscard]] std::size_t head() const { return 8 + 4 * tensors_.size(); }
  [[nodiscard]] std::size_t offset_bytes() const { return 8 * tensors_.size(); }
  [[nodiscard]] std::size_t found_bytes() const { return sizeof(Found) * pieces_.size(); }

  /// The counts and entries of a piece; what was sent is taken off the residue.
  template <class Entry>
  void write_bins(const Piece& piece, const std::uint32_t* marks, HostView<const float> gradient, float* residue,
                  float scale, std::byte* counts_at, std::size_t place) const {
    const Tensor& tensor = tensors_[piece.tensor];
    auto* counts = reinterpret_cast<Entry*>(counts_at);
    auto* entries = counts + tensor.bins + place;
    const bool finite = scale < HUGE_VALF;
    const std::uint32_t* words = marks + piece.word;
    for (std::size_t b = 0; b < piece.bins; ++b, words += (tensor.bin + 31) / 32) {
      const std::size_t first = piece.first + b * tensor.bin;
      const std::size_t count = std::min(tensor.bin, piece.first + piece.count - first);
      const auto* begin = entries;
      host::for_marked(words, count, [&](std::size_t j) {
        const float sum = residue != nullptr ? residue[first + j] : gradient[first + j];
        *entries++ = static_cast<Entry>(j << 2 | AdaComp::code(sum));
        if (residue == nullptr) return;
        residue[first + j] =
            finite ? sum - law::float_of(law::bits_of(scale) | (law::bits_of(sum) & 0x80000000u)) : 0.0F;
      });
      counts[piece.first_bin + b] = static_cast<Entry>(entries - begin);
    }
  }

  /// Finds where each piece of a tensor has its entries; returns the bytes that they and their counts take.
  template <class Entry>
  std::size_t place_pieces(const Tensor& tensor, HostView<const std::byte> tail, Found* places) const {
    if (tail.size() < tensor.bytes(0)) bad("too short for its counts");
    const auto* counts = section<Entry>(tail);
    std::size_t total = 0;
    for (std::size_t i = tensor.first_piece; i < tensor.last_piece; ++i) {
      places[i].place = static_cast<std::uint32_t>(total);
      const auto* own = counts + pieces_[i].first_bin;
      for (std::size_t b = 0; b < pieces_[i].bins; ++b) total += own[b];
    }
    if (total > tensor.elements || tail.size() < tensor.bytes(total)) bad("too short for its entries");
    return tensor.bytes(total);
  }

  template <class Entry>
  void add_bins(const Piece& piece, HostView<const std::byte> tail, std::size_t place, float scale,
                HostView<float> out) const {
    const Tensor& tensor = tensors_[piece.tensor];
    const auto* counts = section<Entry>(tail);
    const auto* entry = counts + tensor.bins + place;
    for (std::size_t b = 0; b < piece.bins; ++b) {
      const std::size_t first = piece.first + b * tensor.bin;
      const std::size_t count = std::min(tensor.bin, piece.first + piece.count - first);
      std::size_t least = 0;
      for (std::size_t left = counts[piece.first_bin + b]; left > 0; --left, ++entry) {
        const std::size_t j = *entry >> 2;
        const std::uint32_t code = *entry & 3u;
        if (j < least || j >= count || code == 0 || code == 3)
          bad("its entries do not ascend, go past the end of a bin, or have no sign");
        least = j + 1;
        out[first + j] += law::float_of(law::bits_of(scale) ^ (code - AdaComp::kPositive) << 31);
      }
    }
  }

  AdaComp law_;
  std::size_t n_;
  std::size_t words_ = 0;
  std::vector<Tensor> tensors_;
  std::vector<Piece> pieces_;
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
                                  .max = kLongestBin,
                                  .meaning = "elements of a bin in convolutions"},
                                 {.name = "other",
                                  .kind = ParamInfo::Kind::integer,
                                  .default_value = "500",
                                  .min = 1,
                                  .max = kLongestBin,
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
    .make_cuda = nullptr,
};

}  // namespace gradtool
