#include <array>
#include <cmath>
#include <cstring>

#include "kernels/draws.hpp"
#include "kernels/pack_codes.hpp"
#include "kernels/sums.hpp"
#include "lib/codecs/payload.hpp"
#include "lib/codecs/registry.hpp"
#include "lib/codecs/tensor_pieces.hpp"
#include "lib/methods/terngrad/format.hpp"

namespace gradtool {
namespace {

using format::Ternary;
using host::Moments;

GT_SIMD_CLONES void to_codes(const float* x, const std::uint32_t* draws, std::size_t count, float scale,
                             std::uint8_t* codes) {
  for (std::size_t i = 0; i < count; ++i) codes[i] = static_cast<std::uint8_t>(Ternary::code(x[i], scale, draws[i]));
}

GT_SIMD_CLONES void add_codes(const std::uint8_t* codes, std::size_t count, float scale, float weight, float* out) {
  for (std::size_t i = 0; i < count; ++i) out[i] += weight * (Ternary::value(codes[i]) * scale);
}

GT_SIMD_CLONES std::uint8_t largest_of(const std::uint8_t* bytes, std::size_t count) {
  std::uint8_t largest = 0;
  for (std::size_t i = 0; i < count; ++i) largest = std::max(largest, bytes[i]);
  return largest;
}

/// Packs five codes in a byte, padded with zero codes to whole words. `codes` has room for 19 more than `count`.
void write_trits(std::uint8_t* codes, std::size_t count, std::uint8_t* bytes) {
  const std::size_t padded = (count + 19) / 20 * 20;
  std::memset(codes + count, 0, padded - count);
  for (std::size_t i = 0; i < padded; i += 5) {
    *bytes++ = static_cast<std::uint8_t>(codes[i] + 3 * codes[i + 1] + 9 * codes[i + 2] + 27 * codes[i + 3] +
                                         81 * codes[i + 4]);
  }
}

/// Writes up to 7 codes more than `count`.
void read_trits(const std::uint8_t* bytes, std::size_t count, std::uint8_t* codes) {
  for (std::size_t i = 0; i < count; i += 5) std::memcpy(codes + i, &format::kTritsOfByte[*bytes++], 8);
}

class TernGrad final : public Codec<Space::host> {
 public:
  TernGrad(const Params& params, const Layout& layout)
      : clip_{params.is("clip", "off") ? 0.0 : params.real("clip")},
        base3_{params.is("pack", "base3")},
        pieces_{layout, [this](std::size_t count) { return words_of(count); }} {}

  [[nodiscard]] Footprint plan(std::size_t n) const override {
    expects(n == pieces_.elements(), "codec terngrad works on the layout that it was made for");
    return {.payload_bytes = codes_offset() + 4 * pieces_.words(),
            .scratch_bytes = sizeof(Moments) * pieces_.pieces().size()};
  }

  void encode(Queue<Space::host> queue, HostView<const float> gradient, const EncodeContext& context,
              HostView<std::byte> payload, HostView<std::byte> scratch) const override {
    auto* moments = section<Moments>(scratch);
    pieces_.each(queue, [&](std::size_t i, const TensorPiece& piece) {
      moments[i] = host::moments_of(gradient.data() + piece.first, piece.count);
    });
    auto* scales = section<float>(payload);
    for (std::size_t t = 0; t < pieces_.tensors().size(); ++t) scales[t] = scale_of(pieces_.tensors()[t], moments);
    auto* words = section<std::uint32_t>(payload, codes_offset());
    pieces_.each(queue, [&](std::size_t, const TensorPiece& piece) {
      encode_piece(gradient.data() + piece.first, piece, scales[piece.tensor], context.key, words + piece.word);
    });
  }

  void decode_add(Queue<Space::host> queue, HostView<const std::byte> payload, float weight, HostView<float> out,
                  HostView<std::byte> /*scratch*/) const override {
    expect_length("terngrad", payload.size(), codes_offset() + 4 * pieces_.words());
    const auto* scales = section<float>(payload);
    const auto* words = section<std::uint32_t>(payload, codes_offset());
    pieces_.each(queue, [&](std::size_t, const TensorPiece& piece) {
      alignas(64) std::array<std::uint8_t, host::kSumChunk + 32> codes;
      if (base3_) {
        const auto* bytes = reinterpret_cast<const std::uint8_t*>(words + piece.word);
        if (largest_of(bytes, (piece.count + 4) / 5) > Ternary::kLargestByte)
          throw Error{Fault::data, "terngrad payload: a byte above 242 holds no five trits"};
        read_trits(bytes, piece.count, codes.data());
      } else {
        host::read_codes<2>(words + piece.word, piece.count, codes.data());
        if (largest_of(codes.data(), piece.count) > Ternary::kNegative)
          throw Error{Fault::data, "terngrad payload: a code of 3 is neither 0, 1 nor -1"};
      }
      add_codes(codes.data(), piece.count, scales[piece.tensor], weight, out.data() + piece.first);
    });
  }

  /// An element becomes 0 or a value of its own sign that is at most the tensor's largest magnitude.
  [[nodiscard]] ErrorBound bound(std::size_t n) const override {
    return {.nmse = static_cast<double>(n), .of_largest = 1.0};
  }

 private:
  /// Elements that are drawn and packed at a time: whole words of either packing, and few enough for the nearest cache.
  static constexpr std::size_t kTile = host::kSumChunk / 4;
  static_assert(kTile % 20 == 0 && kTile % 32 == 0);

  [[nodiscard]] std::size_t words_of(std::size_t count) const { return Ternary::words(count, base3_); }
  [[nodiscard]] std::size_t codes_offset() const { return 4 * pieces_.tensors().size(); }

  [[nodiscard]] float scale_of(const TensorRange& tensor, const Moments* moments) const {
    format::GroupedSum sum;
    format::GroupedSum squares;
    std::uint32_t largest = 0;
    for (std::size_t i = tensor.first; i < tensor.last; ++i) {
      sum.add(moments[i].sum);
      squares.add(moments[i].squares);
      largest = std::max(largest, moments[i].largest);
    }
    return Ternary::scale(sum.value(), squares.value(), largest, tensor.elements, clip_);
  }

  void encode_piece(const float* x, const TensorPiece& piece, float scale, const format::DrawKey& key,
                    std::uint32_t* words) const {
    alignas(64) std::array<std::uint32_t, kTile + 2 * host::kDrawGroup> draws;
    alignas(64) std::array<std::uint8_t, kTile + 32> codes;
    for (std::size_t at = 0; at < piece.count; at += kTile) {
      const std::size_t count = std::min<std::size_t>(kTile, piece.count - at);
      const std::size_t lead = (piece.first + at) % 4;
      host::draw_tile(key, piece.first + at - lead, lead + count, draws.data());
      to_codes(x + at, draws.data() + lead, count, scale, codes.data());
      if (base3_)
        write_trits(codes.data(), count, reinterpret_cast<std::uint8_t*>(words));
      else
        host::write_codes<2>(codes.data(), count, words);
      words += words_of(count);
    }
  }

  double clip_;
  bool base3_;
  TensorPieces pieces_;
};

constexpr ParamInfo kParams[] = {
    real_param("clip", "2.5", {0.1, 100.0}, "magnitudes above clip standard deviations are cut off; unbiased when off")
        .searched("1.5|2.5|4")
        .or_words("off"),
    choice_param("pack", "2bit", "2bit|base3", "2 bits an element, or five elements in a byte")};

}  // namespace

extern constinit const CodecDescriptor terngrad_codec{
    .name = "terngrad",
    .summary = "sends -1, 0 or +1 times a scale of the tensor, drawn so that the expectation is the clipped gradient",
    .reference = "Wen et al., TernGrad, NeurIPS 2017, arXiv 1705.07878, equations 4 and 12",
    .params = kParams,
    .by_layout = true,
    .payload = "2 n + 32 T bits (pack=base3: 8/5 n + 32 T), T tensors, each padded to 32 bits",
    .passes =
        [](const Params&) { return MemoryPasses{.again = ReadAgain::tensor, .why = "codes need the scale first"}; },
    .make_host = make_method_codec<Space::host, TernGrad>,
};

}  // namespace gradtool
