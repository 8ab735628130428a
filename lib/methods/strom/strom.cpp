
#include <algorithm>
#include <atomic>
#include <cstring>

#include "kernels/bit_stream.hpp"
#include "kernels/float_bits.hpp"
#include "kernels/marks.hpp"
#include "kernels/sparse.hpp"
#include "lib/codecs/params.hpp"
#include "lib/codecs/payload.hpp"
#include "lib/codecs/registry.hpp"
#include "lib/core/scratch.hpp"
#include "lib/core/task_pool.hpp"
#include "lib/core/throw_error.hpp"
#include "lib/methods/strom/format.hpp"

namespace gradtool {
namespace {

using format::kNotFinite;
using format::Strom;

constexpr std::size_t kCodesPerWord = Strom::kCodesPerWord;

GT_SIMD_CLONES void pack_codes(const float* x, std::size_t count, Strom rule, std::uint32_t* words) {
  std::size_t i = 0;
  for (; i + kCodesPerWord <= count; i += kCodesPerWord) {
    std::uint32_t word = 0;
    for (std::uint32_t j = 0; j < kCodesPerWord; ++j) word |= rule.code(x[i + j]) << 2 * j;
    *words++ = word;
  }
  if (i == count) return;
  *words = 0;
  for (std::uint32_t j = 0; i + j < count; ++j) *words |= rule.code(x[i + j]) << 2 * j;
}

GT_SIMD_CLONES void add_codes(const std::uint32_t* words, std::size_t count, float tau, float* out) {
  for (std::size_t i = 0; i < count; i += kCodesPerWord, ++words) {
    const std::uint32_t word = *words;
    if (word == 0) continue;
    if (i + kCodesPerWord <= count) {  // the constant count lets the loop vectorise
      for (std::uint32_t j = 0; j < kCodesPerWord; ++j) out[i + j] += Strom::value_of(word >> 2 * j & 3u, tau);
    } else {
      for (std::uint32_t j = 0; i + j < count; ++j) out[i + j] += Strom::value_of(word >> 2 * j & 3u, tau);
    }
  }
}

/// form=dense, the 2-bit compression of MXNet.
class DenseStrom final : public Codec<Space::host> {
 public:
  explicit DenseStrom(Strom rule) : rule_{rule} {}

  [[nodiscard]] Footprint plan(std::size_t n) const override { return {.payload_bytes = Strom::dense_bytes(n)}; }
  void encode(Queue<Space::host> queue, HostView<const float> gradient, const EncodeContext& /*context*/,
              HostView<std::byte> payload, HostView<std::byte> /*scratch*/) const override {
    auto* words = section<std::uint32_t>(payload);
    parallel_for(queue, gradient.size(), 64, 1 << 14, [&](std::size_t first, std::size_t last) {
      pack_codes(gradient.data() + first, last - first, rule_, words + first / kCodesPerWord);
    });
  }
  void decode_add(Queue<Space::host> queue, HostView<const std::byte> payload, float weight, HostView<float> out,
                  HostView<std::byte> /*scratch*/) const override {
    expect_length("strom", payload.size(), Strom::dense_bytes(out.size()));
    const auto* words = section<std::uint32_t>(payload);
    parallel_for(queue, out.size(), 64, 1 << 14, [&](std::size_t first, std::size_t last) {
      add_codes(words + first / kCodesPerWord, last - first, weight * rule_.tau, out.data() + first);
    });
  }
  [[nodiscard]] ErrorBound bound(std::size_t /*n*/) const override { return {.nmse = 1.0 + 1e-6, .of_largest = 1.0}; }

 private:
  Strom rule_;
};

constexpr std::uint32_t kIndexMask = format::kWordIndex;

GT_SIMD_CLONES bool indices_ascend(const std::uint32_t* words, std::size_t count) {
  std::uint32_t wrong = 0;
  for (std::size_t j = 1; j < count; ++j) wrong |= (words[j - 1] & kIndexMask) >= (words[j] & kIndexMask) ? 1u : 0u;
  return wrong == 0;
}

/// form=sparse: positions and signs of the elements that are sent.
class SparseStrom final : public Codec<Space::host> {
 public:
  SparseStrom(Strom rule, const std::string& index)
      : rule_{rule}, as_words_{index == "words"}, automatic_{index == "auto"}, coding_{as_words_ ? "u32" : index} {}

  [[nodiscard]] Footprint plan(std::size_t n) const override {
    expect_valid(n <= std::size_t{1} << 31,
                 "codec strom: indices have 31 bits, a unit of more than 2^31 elements needs form=dense");
    // With index=auto, words are chosen only where they are no larger than positions and signs, so these bound both.
    return {.payload_bytes = sizeof(SparseHeader) + coding_.bound(n, n) + (as_words_ ? 0 : sign_bytes(n)),
            .scratch_bytes = planned<Workspace>(n),
            .exact = false};
  }

  void encode(Queue<Space::host> queue, HostView<const float> gradient, const EncodeContext& /*context*/,
              HostView<std::byte> payload, HostView<std::byte> scratch) const override {
    const std::size_t n = gradient.size();
    const Workspace work{n, Scratch<Space::host>{scratch}};
    // A magnitude that is sent is above tau, so it is at least the next float.
    mark_large(queue, gradient, format::float_of(format::bits_of(rule_.tau) + 1), work.marks);
    std::atomic<bool> finite{true};
    const std::size_t k = for_each_mark(queue, work.marks, [&](std::size_t place, std::size_t i) {
      work.positions[place] = static_cast<std::uint32_t>(i);
      work.values[place] = format::one_nan(gradient[i]);
      if (!Strom::finite(gradient[i])) finite.store(false, std::memory_order_relaxed);
    });

    const HostView<const std::uint32_t> positions = work.positions.first(k);
    const auto choice = as_words_ ? IndexCoding::Choice{} : coding_.choose(positions, n);
    const bool words = as_words_ || (automatic_ && 4 * k <= choice.bytes + sign_bytes(k));
    SparseHeader header{sizeof header, static_cast<std::uint32_t>(k),
                        words ? format::kSignedWords : static_cast<std::uint32_t>(choice.code)};
    header.bytes += words ? 4 * k : sign_bytes(k) + choice.bytes;
    header.code += finite ? 0 : kNotFinite;
    std::memcpy(payload.data(), &header, sizeof header);
    auto* out = section<std::uint32_t>(payload, sizeof header);
    if (words) {
      parallel_for(queue, k, 16, 1 << 14, [&](std::size_t first, std::size_t last) {
        for (; first < last; ++first) out[first] = positions[first] | sign_of(work.values[first]);
      });
      return;
    }
    parallel_for(queue, sign_bytes(k) / 4, 1, 1 << 9, [&](std::size_t first, std::size_t last) {
      for (; first < last; ++first) {
        std::uint32_t word = 0;
        for (std::size_t j = 32 * first; j < std::min(k, 32 * (first + 1)); ++j)
          word |= sign_of(work.values[j]) >> 31 << j % 32;
        out[first] = word;
      }
    });
    IndexCoding::write(queue, choice, positions, n, payload.data() + sizeof header + sign_bytes(k));
  }

  void decode_add(Queue<Space::host> queue, HostView<const std::byte> payload, float weight, HostView<float> out,
                  HostView<std::byte> scratch) const override {
    const auto bad = [](const char* what) { throw_error(Fault::data, "strom payload: {}", what); };
    const std::size_t n = out.size();
    SparseHeader header;
    if (payload.size() < sizeof header) bad("too short for its header");
    std::memcpy(&header, payload.data(), sizeof header);
    const std::uint32_t code = header.code & ~kNotFinite;
    const std::size_t k = header.count;
    if (header.bytes != payload.size()) bad("its length is not the one it states");
    if (k > n || code > format::kSignedWords || (k == 0 && header.code != code))
      bad("it states more values than elements, or an unknown form");
    const auto* words = section<std::uint32_t>(payload, sizeof header);
    const std::uint32_t tau = header.code == code ? format::bits_of(weight * rule_.tau) : 0x7fc00000u;
    if (code == format::kSignedWords) {
      expect_length("strom", payload.size(), sizeof header + 4 * k);
      if (!indices_ascend(words, k) || (k > 0 && (words[k - 1] & kIndexMask) >= n))
        bad("its words do not ascend or go past the end");
      parallel_for(queue, k, 16, 1 << 14, [&](std::size_t first, std::size_t last) {
        for (; first < last; ++first)
          out[words[first] & kIndexMask] += format::float_of(tau ^ (words[first] & ~kIndexMask));
      });
      return;
    }
    const std::size_t index = sizeof header + sign_bytes(k);
    if (payload.size() < index) bad("too short for its signs");
    const HostView<std::uint32_t> positions = Workspace{n, Scratch<Space::host>{scratch}}.positions.first(k);
    IndexCoding::read("strom", static_cast<IndexCode>(code), payload.part(index, payload.size() - index), n, positions);
    parallel_for(queue, k, 32, 1 << 14, [&](std::size_t first, std::size_t last) {
      for (; first < last; ++first)
        out[positions[first]] += format::float_of(tau ^ words[first / 32] >> first % 32 << 31);
    });
  }

  /// An element that is sent is off by less than itself.
  [[nodiscard]] ErrorBound bound(std::size_t /*n*/) const override { return {.nmse = 1.0 + 1e-6, .of_largest = 1.0}; }
  [[nodiscard]] std::size_t values_in(HostView<const std::byte> payload, std::size_t /*n*/) const override {
    SparseHeader header;
    std::memcpy(&header, payload.data(), sizeof header);
    return header.count;
  }

 private:
  struct Workspace {
    Workspace(std::size_t n, Scratch<Space::host> scratch)
        : positions{scratch.take<std::uint32_t>(n)},
          values{scratch.take<float>(n)},
          marks{scratch.take<std::uint32_t>(mark_words(n))} {}
    HostView<std::uint32_t> positions;  ///< of the elements that are sent, ascending
    HostView<float> values;             ///< there; a NaN is positive
    HostView<std::uint32_t> marks;      ///< a bit for each element
  };

  static std::uint32_t sign_of(float value) { return format::bits_of(value) & ~kIndexMask; }
  static std::size_t sign_bytes(std::size_t k) { return 4 * format::words_of_bits(k); }

  Strom rule_;
  bool as_words_, automatic_;
  IndexCoding coding_;
};

constexpr ParamInfo kParams[] = {
    real_param("tau", "0.01", {1e-30, 1e30},
               "what is sent, and the magnitude above which it is; in the units of the gradient")
        .searched("1e-06|1e-05|0.0001|0.001|0.01|0.1"),
    choice_param("form", "sparse", "sparse|dense",
                 "sparse: positions and signs; dense: two bits for every element, as MXNet's 2-bit compression"),
    choice_param("index", "auto", "auto|words|u32|bitmap|elias",
                 "how sparse positions are written: words are 31 bits and the sign, as in the paper; the others have a "
                 "bitmap of signs besides; auto takes the smallest")};

}  // namespace

extern constinit const CodecDescriptor strom_codec{
    .name = "strom",
    .summary = "sends +-tau for what has grown beyond tau and keeps the rest, with error feedback",
    .reference = "Strom, Scalable Distributed DNN Training Using Commodity GPU Cloud Computing, Interspeech 2015",
    .params = kParams,
    .error_feedback = true,
    .payload = "128 + min(32 k, k + n, k + Elias) bits, k elements above tau; dense: 2 n bits",
    .passes = [](const Params&) { return MemoryPasses{.scatters = true}; },
    .make_host = [](const Params& p, const Layout&) -> std::unique_ptr<Codec<Space::host>> {
      const Strom rule{static_cast<float>(p.real("tau"))};
      if (p.is("form", "dense")) return std::make_unique<DenseStrom>(rule);
      return std::make_unique<SparseStrom>(rule, p.word("index"));
    },
};

}  // namespace gradtool
