
#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "kernels/sums.hpp"
#include "lib/codecs/payload.hpp"
#include "lib/codecs/registry.hpp"
#include "lib/core/scratch.hpp"
#include "lib/core/throw_error.hpp"
#include "lib/methods/adacomp/codec.hpp"

namespace gradtool {
namespace {

using format::AdaComp;
using format::AdaCompPiece;
using format::AdaCompTensor;

/// The result of the passes over a piece.
struct PieceResult {
  double largest = 0.0;           ///< sum over its bins of the largest |G|; infinite where a bin is not finite
  std::uint32_t sent = 0;         ///< elements
  std::uint32_t first_entry = 0;  ///< entries of the tensor before those of this piece
};

/// Adds the gradient of one bin to `sums` and marks what is sent. Returns the bit pattern of the largest |G|.
[[gnu::always_inline]] inline std::uint32_t mark_bin(const float* gradient, float* sums, std::size_t count,
                                                     AdaComp rule, std::uint32_t* marks) {
  std::uint32_t largest = 0;
  for (std::size_t j = 0; j < count; ++j) {
    const float sum = sums[j] + gradient[j];
    sums[j] = sum;
    largest = std::max(largest, AdaComp::magnitude(sum));
  }
  std::array<std::uint32_t, 32> flags{};
  std::size_t i = 0;
  for (; i + 32 <= count; i += 32) {
    for (std::size_t j = 0; j < 32; ++j) flags[j] = rule.sends(sums[i + j], gradient[i + j], largest) ? 1u : 0u;
    *marks++ = host::word_of(flags.data());
  }
  if (i == count) return largest;
  flags.fill(0);
  for (std::size_t j = 0; i + j < count; ++j) flags[j] = rule.sends(sums[i + j], gradient[i + j], largest) ? 1u : 0u;
  *marks = host::word_of(flags.data());
  return largest;
}

/// The first pass over `count` elements of whole bins: sums += gradient, and a bit for each element that is sent. Every
/// bin starts a new word of `marks`.
GT_SIMD_CLONES PieceResult mark_bins(const float* gradient, float* sums, std::size_t count, std::size_t bin,
                                     AdaComp rule, std::uint32_t* marks) {
  PieceResult result;
  for (std::size_t first = 0; first < count; first += bin, marks += (bin + 31) / 32) {
    const std::size_t size = std::min(bin, count - first);
    result.largest +=
        static_cast<double>(format::float_of(mark_bin(gradient + first, sums + first, size, rule, marks)));
    for (std::size_t w = 0; w < (size + 31) / 32; ++w)
      result.sent += static_cast<std::uint32_t>(std::popcount(marks[w]));
  }
  return result;
}

[[noreturn]] void bad_payload(const char* what) {
  throw_error(Fault::data, "adacomp payload: {}", what);
}

/// Calls visit(Entry{}) with the type of a tensor's entries and counts.
template <class Visit>
void with_entry_type(const AdaCompTensor& tensor, const Visit& visit) {
  if (tensor.width() == 1)
    visit(std::uint8_t{});
  else
    visit(std::uint16_t{});
}

class AdaCompCodec final : public Codec<Space::host> {
 public:
  AdaCompCodec(const Params& params, const Layout& layout)
      : rule_{static_cast<float>(params.real("s")) - 1.0F}, bins_{params, layout}, n_{layout.elements} {}

  [[nodiscard]] Footprint plan(std::size_t n) const override {
    expects(n == n_, "codec adacomp: made for another layout");
    return {.payload_bytes = bins_.payload_bound(), .scratch_bytes = planned<Workspace>(bins_), .exact = false};
  }

  /// The first step, from an empty residue.
  void encode(Queue<Space::host> queue, HostView<const float> gradient, const EncodeContext& /*context*/,
              HostView<std::byte> payload, HostView<std::byte> scratch) const override {
    step(queue, gradient, nullptr, payload, scratch);
  }

  /// One step of one rank; `residue` is null for an empty one that is not kept.
  void step(Queue<Space::host> queue, HostView<const float> gradient, float* residue, HostView<std::byte> payload,
            HostView<std::byte> scratch) const {
    const Workspace work{bins_, Scratch<Space::host>{scratch}};
    for_pieces(queue, [&](std::size_t i, const AdaCompPiece& piece, const AdaCompTensor& tensor) {
      const auto mark = [&](float* sums) {
        return mark_bins(gradient.data() + piece.first, sums, piece.count, tensor.bin, rule_,
                         work.marks.data() + piece.mark_word);
      };
      if (residue != nullptr) {
        work.pieces[i] = mark(residue + piece.first);
      } else {
        std::array<float, AdaCompBins::kLongest> sums;
        std::fill_n(sums.data(), piece.count, 0.0F);
        work.pieces[i] = mark(sums.data());
      }
    });

    auto* scales = section<float>(payload, 8);
    std::size_t end = bins_.header_bytes();
    for (std::size_t t = 0; t < bins_.tensors.size(); ++t) {
      const AdaCompTensor& tensor = bins_.tensors[t];
      format::GroupedSum sum;
      std::uint32_t entries = 0;
      for (std::size_t i = tensor.first_piece; i < tensor.last_piece; ++i) {
        sum.add(work.pieces[i].largest);
        work.pieces[i].first_entry = entries;
        entries += work.pieces[i].sent;
      }
      scales[t] = AdaComp::scale(sum.value(), tensor.bins);
      work.offsets[t] = end;
      const std::size_t used = tensor.used_bytes(entries);
      std::memset(payload.data() + end + used, 0, tensor.bytes(entries) - used);
      end += tensor.bytes(entries);
    }

    for_pieces(queue, [&](std::size_t i, const AdaCompPiece& piece, const AdaCompTensor& tensor) {
      with_entry_type(tensor, [&]<class Entry>(Entry) {
        write_piece<Entry>(piece, work.marks.data() + piece.mark_word, gradient, residue, scales[piece.tensor],
                           section<Entry>(payload, work.offsets[piece.tensor]), work.pieces[i].first_entry);
      });
    });
    const std::uint64_t bytes = end;
    std::memcpy(payload.data(), &bytes, sizeof bytes);
  }

  void decode_add(Queue<Space::host> queue, HostView<const std::byte> payload, float weight, HostView<float> out,
                  HostView<std::byte> scratch) const override {
    if (out.size() != n_ || payload.size() < bins_.header_bytes()) bad_payload("too short for its header");
    std::uint64_t bytes = 0;
    std::memcpy(&bytes, payload.data(), sizeof bytes);
    if (bytes != payload.size()) bad_payload("its length is not the one it states");
    const auto* scales = section<float>(payload, 8);
    const Workspace work{bins_, Scratch<Space::host>{scratch}};
    std::size_t end = bins_.header_bytes();
    for (std::size_t t = 0; t < bins_.tensors.size(); ++t) {
      const AdaCompTensor& tensor = bins_.tensors[t];
      const std::size_t left = payload.size() - end;
      if (left < tensor.bytes(0)) bad_payload("too short for its counts");
      std::size_t entries = 0;
      with_entry_type(tensor, [&]<class Entry>(Entry) {
        entries = find_pieces(tensor, section<Entry>(payload, end), work.pieces);
      });
      if (entries > tensor.elements || left < tensor.bytes(entries)) bad_payload("too short for its entries");
      work.offsets[t] = end;
      end += tensor.bytes(entries);
    }
    if (end != payload.size()) bad_payload("longer than its counts say");
    for_pieces(queue, [&](std::size_t i, const AdaCompPiece& piece, const AdaCompTensor& tensor) {
      with_entry_type(tensor, [&]<class Entry>(Entry) {
        add_piece(piece, section<Entry>(payload, work.offsets[piece.tensor]), work.pieces[i].first_entry,
                  weight * scales[piece.tensor], out);
      });
    });
  }

  /// Sent values are off by no more than the largest. No mean error is promised, because every bin of a tensor gets the
  /// mean scale, however small its own values are.
  [[nodiscard]] ErrorBound bound(std::size_t /*n*/) const override { return {.of_largest = 1.0 + 1e-6}; }
  [[nodiscard]] std::size_t values_in(HostView<const std::byte> payload, std::size_t /*n*/) const override {
    std::size_t offset = bins_.header_bytes();
    std::size_t values = 0;
    for (const AdaCompTensor& tensor : bins_.tensors) {
      std::size_t entries = 0;
      with_entry_type(tensor, [&]<class Entry>(Entry) {
        const auto* counts = section<Entry>(payload, offset);
        for (std::size_t b = 0; b < tensor.bins; ++b) entries += counts[b];
      });
      values += entries;
      offset += tensor.bytes(entries);
    }
    return values;
  }
  [[nodiscard]] std::unique_ptr<Encoder<Space::host>> make_encoder(std::size_t n, int /*ranks*/,
                                                                   Queue<Space::host> queue) const override {
    return std::make_unique<AdaCompEncoder<Space::host, AdaCompCodec>>(*this, n, queue);
  }

 private:
  struct Workspace {
    Workspace(const AdaCompBins& bins, Scratch<Space::host> scratch)
        : offsets{scratch.take<std::uint64_t>(bins.tensors.size())},
          pieces{scratch.take<PieceResult>(bins.pieces.size())},
          marks{scratch.take<std::uint32_t>(bins.mark_words)} {}
    HostView<std::uint64_t> offsets;  ///< of the counts of each tensor in the payload
    HostView<PieceResult> pieces;
    HostView<std::uint32_t> marks;
  };

  /// Calls body(i, piece, its tensor) for every piece, on any thread.
  template <class Body>
  void for_pieces(Queue<Space::host> queue, const Body& body) const {
    host::for_pieces(queue, bins_.pieces.size(), n_,
                     [&](std::size_t i) { body(i, bins_.pieces[i], bins_.tensors[bins_.pieces[i].tensor]); });
  }

  /// The second pass: writes counts and entries of a piece, and takes what was sent off the residue (null: none kept).
  /// `counts` are those of the tensor; its entries follow them.
  template <class Entry>
  void write_piece(const AdaCompPiece& piece, const std::uint32_t* marks, HostView<const float> gradient,
                   float* residue, float scale, Entry* counts, std::size_t first_entry) const {
    const AdaCompTensor& tensor = bins_.tensors[piece.tensor];
    Entry* entries = counts + tensor.bins + first_entry;
    for (std::size_t b = 0; b < piece.bins; ++b, marks += (tensor.bin + 31) / 32) {
      const std::size_t first = piece.first + b * tensor.bin;
      const Entry* begin = entries;
      host::for_marked(marks, piece.bin_size(tensor.bin, b), [&](std::size_t j) {
        const float sum = residue != nullptr ? residue[first + j] : gradient[first + j];
        *entries++ = static_cast<Entry>(j << 2 | AdaComp::code(sum));
        if (residue != nullptr) residue[first + j] = AdaComp::residue_after(sum, scale);
      });
      counts[piece.first_bin + b] = static_cast<Entry>(entries - begin);
    }
  }

  /// Finds out which entry is the first of each piece of a tensor. Returns the number of the tensor's entries.
  template <class Entry>
  std::size_t find_pieces(const AdaCompTensor& tensor, const Entry* counts, HostView<PieceResult> pieces) const {
    std::size_t entries = 0;
    for (std::size_t i = tensor.first_piece; i < tensor.last_piece; ++i) {
      pieces[i].first_entry = static_cast<std::uint32_t>(entries);
      const Entry* own = counts + bins_.pieces[i].first_bin;
      for (std::size_t b = 0; b < bins_.pieces[i].bins; ++b) entries += own[b];
    }
    return entries;
  }

  /// out += scale * sign for the entries of a piece.
  template <class Entry>
  void add_piece(const AdaCompPiece& piece, const Entry* counts, std::size_t first_entry, float scale,
                 HostView<float> out) const {
    const AdaCompTensor& tensor = bins_.tensors[piece.tensor];
    const Entry* entry = counts + tensor.bins + first_entry;
    for (std::size_t b = 0; b < piece.bins; ++b) {
      const std::size_t first = piece.first + b * tensor.bin;
      const std::size_t size = piece.bin_size(tensor.bin, b);
      std::size_t least = 0;  // entries ascend: the lowest index that the next one may have
      for (std::size_t left = counts[piece.first_bin + b]; left > 0; --left, ++entry) {
        const std::size_t j = *entry >> 2;
        const std::uint32_t code = *entry & 3u;
        if (j < least || j >= size || (code != AdaComp::kPositive && code != AdaComp::kNegative))
          bad_payload("its entries do not ascend, go past the end of a bin, or have no sign");
        least = j + 1;
        out[first + j] += format::float_of(format::bits_of(scale) ^ (code - AdaComp::kPositive) << 31);
      }
    }
  }

  AdaComp rule_;
  AdaCompBins bins_;
  std::size_t n_;
};

constexpr ParamInfo kParams[] = {
    integer_param("conv", "50", {1, AdaCompBins::kLongest}, "elements of a bin in convolutions")
        .searched("12|50|200|800"),
    integer_param("other", "500", {1, AdaCompBins::kLongest}, "elements of a bin in all other tensors")
        .searched("125|500|2000|8000"),
    real_param("s", "2", {1.0, 100.0},
               "an element is sent when its residue plus s times its gradient reaches its bin's largest")};

}  // namespace

extern constinit const CodecDescriptor adacomp_codec{
    .name = "adacomp",
    .summary = "sends the signs of elements that come near the largest of their bin; the rest waits in a residue",
    .reference = "Chen et al., AdaComp, AAAI 2018, arXiv 1712.02679",
    .params = kParams,
    .memory = true,
    .delays = true,
    .by_layout = true,
    .payload = "64 + 32 T + w (bins + k) bits, T tensors, w = 8 for bins up to 64, else 16; each tensor in words of 32",
    .passes = [](const Params&) { return MemoryPasses{.kept = 1, .scatters = true}; },
    .make_host = make_method_codec<Space::host, AdaCompCodec>,
};

}  // namespace gradtool
