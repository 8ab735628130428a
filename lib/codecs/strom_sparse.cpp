#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <utility>

#include "kernels/host/marks.hpp"
#include "kernels/law/keep_nan.hpp"
#include "lib/codecs/index_code.hpp"
#include "lib/codecs/payload.hpp"
#include "lib/codecs/strom_forms.hpp"

namespace gradtool {
namespace {

using law::kNotFinite;
using law::Strom;

constexpr std::uint32_t kWords = law::kSignedWords;
constexpr std::uint32_t kIndexMask = law::kWordIndex;

/// Bit 31; a NaN has none, as in every list of selected values.
std::uint32_t sign_of(float x) {
  return law::bits_of(law::one_nan(x)) & ~kIndexMask;
}

struct Found {
  std::uint32_t count = 0;
  std::uint32_t not_finite = 0;
};

GT_SIMD_CLONES Found mark(const float* x, std::size_t count, Strom law, std::uint32_t* words) {
  Found found;
  std::array<std::uint32_t, 32> flags{};
  for (std::size_t at = 0; at < count; at += 32) {
    const std::size_t here = std::min<std::size_t>(32, count - at);
    if (here < 32) flags.fill(0);
    std::uint32_t bad = 0;
    if (here == 32) {
      for (std::size_t j = 0; j < 32; ++j) {
        flags[j] = law.sends(x[at + j]) ? 1u : 0u;
        bad |= Strom::finite(x[at + j]) ? 0u : 1u;
      }
    } else {
      for (std::size_t j = 0; j < here; ++j) {
        flags[j] = law.sends(x[at + j]) ? 1u : 0u;
        bad |= Strom::finite(x[at + j]) ? 0u : 1u;
      }
    }
    words[at / 32] = host::word_of(flags.data());
    found.count += static_cast<std::uint32_t>(std::popcount(words[at / 32]));
    found.not_finite |= bad;
  }
  return found;
}

GT_SIMD_CLONES bool ascend(const std::uint32_t* words, std::size_t count) {
  std::uint32_t wrong = 0;
  for (std::size_t j = 1; j < count; ++j) wrong |= (words[j - 1] & kIndexMask) >= (words[j] & kIndexMask) ? 1u : 0u;
  return wrong == 0;
}

class SparseStrom final : public Codec<Space::host> {
 public:
  SparseStrom(Strom law, const std::string& index)
      : law_{law}, as_words_{index == "words"}, automatic_{index == "auto"}, coding_{as_words_ ? "u32" : index} {}

  /// With index=auto neither form is larger than a bitmap of positions and one of signs.
  [[nodiscard]] Footprint plan(std::size_t n) const override {
    expects(n <= std::size_t{1} << 31,
            "codec strom: indices have 31 bits, a unit of more than 2^31 elements needs form=dense");
    const std::size_t index = coding_.bound(n, n);
    return {.payload_bytes = sizeof(SparseHeader) + index + (as_words_ ? 0 : sign_bytes(n)),
            .scratch_bytes = 4 * n + host::mark_bytes(n) + sizeof(Found) * host::pieces_of(n),
            .exact = false};
  }

  void encode(Queue<Space::host> queue, HostView<const float> gradient, const EncodeContext& /*context*/,
              HostView<std::byte> payload, HostView<std::byte> scratch) const override {
    const std::size_t n = gradient.size();
    const std::size_t pieces = host::pieces_of(n);
    const float* x = gradient.data();
    auto* positions = section<std::uint32_t>(scratch);
    auto* marks = section<std::uint32_t>(scratch, 4 * n);
    auto* found = section<Found>(scratch, 4 * n + host::mark_bytes(n));
    host::for_pieces(queue, pieces, n, [&](std::size_t i) {
      const host::Piece piece = host::piece_of(i, n);
      found[i] = mark(x + piece.first, piece.count, law_, marks + piece.word);
    });
    Found all;
    for (std::size_t i = 0; i < pieces; ++i) {
      all.not_finite |= found[i].not_finite;
      all.count += std::exchange(found[i].count, all.count);
    }
    host::for_pieces(queue, pieces, n, [&](std::size_t i) {
      const host::Piece piece = host::piece_of(i, n);
      auto* at = positions + found[i].count;
      host::for_marked(marks + piece.word, piece.count,
                       [&](std::size_t j) { *at++ = static_cast<std::uint32_t>(piece.first + j); });
    });
    const std::size_t k = all.count;
    const HostView<const std::uint32_t> where{positions, k};
    const auto choice = as_words_ ? IndexCoding::Choice{} : coding_.choose(where, n);
    const bool words = as_words_ || (automatic_ && 4 * k <= choice.bytes + sign_bytes(k));
    SparseHeader header{sizeof header, all.count, words ? kWords : static_cast<std::uint32_t>(choice.code)};
    header.bytes += words ? 4 * k : sign_bytes(k) + choice.bytes;
    header.code += all.not_finite != 0 ? kNotFinite : 0;
    std::memcpy(payload.data(), &header, sizeof header);
    auto* out = section<std::uint32_t>(payload, sizeof header);
    if (words) {
      parallel_for(queue, k, 16, 1 << 14, [&](std::size_t first, std::size_t last) {
        for (; first < last; ++first) out[first] = positions[first] | sign_of(x[positions[first]]);
      });
      return;
    }
    parallel_for(queue, sign_bytes(k) / 4, 1, 1 << 9, [&](std::size_t first, std::size_t last) {
      for (; first < last; ++first) {
        std::uint32_t word = 0;
        for (std::size_t j = 32 * first; j < std::min(k, 32 * (first + 1)); ++j)
          word |= sign_of(x[positions[j]]) >> 31 << j % 32;
        out[first] = word;
      }
    });
    IndexCoding::write(queue, choice, where, n, payload.data() + sizeof header + sign_bytes(k));
  }

  void decode_add(Queue<Space::host> queue, HostView<const std::byte> payload, float weight, HostView<float> out,
                  HostView<std::byte> scratch) const override {
    const auto bad = [](const char* what) { throw Error{Fault::data, fmt::format("strom payload: {}", what)}; };
    const std::size_t n = out.size();
    SparseHeader header;
    if (payload.size() < sizeof header) bad("too short for its header");
    std::memcpy(&header, payload.data(), sizeof header);
    const std::uint32_t code = header.code & ~kNotFinite;
    const std::size_t k = header.count;
    if (header.bytes != payload.size()) bad("its length is not the one it states");
    if (k > n || code > kWords || (k == 0 && header.code != code))
      bad("it states more values than elements, or an unknown form");
    const auto* words = section<std::uint32_t>(payload, sizeof header);
    const float size = header.code == code ? weight * law_.tau : law::float_of(0x7fc00000u);
    if (code == kWords) {
      expect_length("strom", payload.size(), sizeof header + 4 * k);
      if (!ascend(words, k) || (k > 0 && (words[k - 1] & kIndexMask) >= n))
        bad("its words do not ascend or go past the end");
      parallel_for(queue, k, 16, 1 << 14, [&](std::size_t first, std::size_t last) {
        for (; first < last; ++first)
          out[words[first] & kIndexMask] += law::float_of(law::bits_of(size) ^ (words[first] & ~kIndexMask));
      });
      return;
    }
    const std::size_t at = sizeof header + sign_bytes(k);
    if (payload.size() < at) bad("too short for its signs");
    const HostView<std::uint32_t> positions{section<std::uint32_t>(scratch), k};
    IndexCoding::read("strom", static_cast<IndexCode>(code), payload.part(at, payload.size() - at), n, positions);
    parallel_for(queue, k, 32, 1 << 14, [&](std::size_t first, std::size_t last) {
      for (; first < last; ++first) {
        const std::uint32_t sign = words[first / 32] >> first % 32 << 31;
        out[positions[first]] += law::float_of(law::bits_of(size) ^ sign);
      }
    });
  }

  /// What is sent is off by less than itself.
  [[nodiscard]] ErrorBound bound(std::size_t /*n*/) const override { return {.nmse = 1.0 + 1e-6, .of_largest = 1.0}; }
  [[nodiscard]] std::size_t values_in(HostView<const std::byte> payload, std::size_t /*n*/) const override {
    SparseHeader header;
    std::memcpy(&header, payload.data(), sizeof header);
    return header.count;
  }

 private:
  static std::size_t sign_bytes(std::size_t k) { return 4 * ((k + 31) / 32); }

  Strom law_;
  bool as_words_, automatic_;
  IndexCoding coding_;
};

}  // namespace

std::unique_ptr<Codec<Space::host>> make_sparse_strom(law::Strom law, const std::string& index) {
  return std::make_unique<SparseStrom>(law, index);
}

}  // namespace gradtool
