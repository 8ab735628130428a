

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "lib/codecs/payload.hpp"
#include "lib/codecs/registry.hpp"
#include "lib/core/scratch.hpp"
#include "lib/core/task_pool.hpp"
#include "lib/core/throw_error.hpp"
#include "lib/methods/exponent/format.hpp"

namespace gradtool {
namespace {

using format::CodedChunk;
using format::ExponentCode;
using format::Exponents;
using format::Rans;

constexpr std::uint32_t kLanes = Exponents::kLanes;
constexpr std::size_t kTile = 2048;  ///< elements that are decoded at a time; the tile stays in the first cache

/// Writes the exponents of a chunk; returns the bits that any of its patterns has.
GT_SIMD_CLONES std::uint32_t split_exponents(const float* x, std::size_t count, bool as_bf16, std::uint8_t* exponents) {
  std::uint32_t any = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint32_t bits = Exponents::pattern(x[i], as_bf16);
    any |= bits;
    exponents[i] = static_cast<std::uint8_t>(Exponents::exponent(bits));
  }
  return any;
}

GT_SIMD_CLONES void write_upper(const float* x, std::size_t count, bool as_bf16, std::uint8_t* out) {
  for (std::size_t i = 0; i < count; ++i) out[i] = Exponents::upper(Exponents::pattern(x[i], as_bf16));
}
GT_SIMD_CLONES void write_lower(const float* x, std::size_t count, std::uint16_t* out) {
  for (std::size_t i = 0; i < count; ++i) out[i] = static_cast<std::uint16_t>(format::bits_of(x[i]));
}
GT_SIMD_CLONES void write_raw16(const float* x, std::size_t count, bool as_bf16, std::uint16_t* out) {
  for (std::size_t i = 0; i < count; ++i) out[i] = static_cast<std::uint16_t>(Exponents::pattern(x[i], as_bf16) >> 16);
}

GT_SIMD_CLONES void join_narrow(const std::uint8_t* exponents, const std::uint8_t* upper, std::size_t count,
                                std::uint32_t* bits) {
  for (std::size_t i = 0; i < count; ++i) bits[i] = Exponents::join(exponents[i], upper[i], 0);
}
GT_SIMD_CLONES void join_wide(const std::uint8_t* exponents, const std::uint8_t* upper, const std::uint16_t* lower,
                              std::size_t count, std::uint32_t* bits) {
  for (std::size_t i = 0; i < count; ++i) bits[i] = Exponents::join(exponents[i], upper[i], lower[i]);
}
GT_SIMD_CLONES void add_patterns(const std::uint32_t* bits, std::size_t count, float weight, float* out) {
  for (std::size_t i = 0; i < count; ++i) out[i] += weight * format::float_of(bits[i]);
}

/// How often each exponent occurs. Four tables, so that equal neighbours do not wait for each other's sum.
void count_exponents(const std::uint8_t* exponents, std::size_t count, std::uint32_t* counts) {
  std::array<std::array<std::uint32_t, Exponents::kSymbols>, 4> parts{};
  std::size_t i = 0;
  for (; i + 4 <= count; i += 4) {
    for (std::size_t part = 0; part < 4; ++part) ++parts[part][exponents[i + part]];
  }
  for (; i < count; ++i) ++parts[0][exponents[i]];
  for (std::size_t s = 0; s < Exponents::kSymbols; ++s)
    counts[s] = parts[0][s] + parts[1][s] + parts[2][s] + parts[3][s];
}

/// Work that several lanes do at once is kept apart from the words, each of whose places follows from the one before:
/// the former becomes vector code, and little is left for the latter.
struct Lanes {
  alignas(64) std::array<std::uint32_t, kLanes> state;
  alignas(64) std::array<std::uint32_t, kLanes> moves;  ///< 1 where a lane gives or takes a word, else 0
  alignas(64) std::array<std::uint16_t, kLanes> word;
  alignas(64) std::array<std::uint32_t, kLanes> slot;  ///< of the decoder's table
};

/// Encodes `lanes` exponents of a row; words go down from `end`, the highest lane's first.
inline std::uint16_t* push_row(const std::uint8_t* exponents, std::uint32_t lanes, const std::uint32_t* symbols,
                               Lanes& row, std::uint16_t* end) {
  for (std::uint32_t lane = 0; lane < lanes; ++lane) {
    const std::uint32_t symbol = symbols[exponents[lane]];
    const std::uint32_t state = row.state[lane];
    const bool full = Rans::is_full(state, symbol);
    row.word[lane] = static_cast<std::uint16_t>(state);
    row.moves[lane] = full ? 1 : 0;
    row.state[lane] = Rans::push(full ? state >> 16 : state, symbol);
  }
  for (std::uint32_t lane = lanes; lane-- > 0;) {
    end[-1] = row.word[lane];  // Without a branch: it stays only if the pointer moves.
    end -= row.moves[lane];
  }
  return end;
}

/// Encodes exponents from the last to the first and writes words downwards from `end`, so that the decoder goes
/// forwards. Returns where the words begin.
GT_SIMD_CLONES std::uint16_t* push_exponents(const std::uint8_t* exponents, std::size_t count,
                                             const std::uint32_t* symbols, std::uint32_t* states, std::uint16_t* end) {
  Lanes row;
  row.state.fill(Rans::kLowest);
  const std::size_t whole = count / kLanes * kLanes;
  end = push_row(exponents + whole, static_cast<std::uint32_t>(count - whole), symbols, row, end);
  for (std::size_t first = whole; first > 0;) {
    first -= kLanes;
    end = push_row(exponents + first, kLanes, symbols, row, end);
  }
  std::copy(row.state.begin(), row.state.end(), states);
  return end;
}

/// Decodes whole rows, each of which may take 32 words. Returns where the next word is.
GT_SIMD_CLONES const std::uint16_t* pop_rows(const std::uint32_t* slots, std::uint32_t* states, std::size_t rows,
                                             const std::uint16_t* next, std::uint8_t* exponents) {
  Lanes row;
  std::copy_n(states, kLanes, row.state.begin());
  for (; rows > 0; --rows, exponents += kLanes) {
    for (std::uint32_t lane = 0; lane < kLanes; ++lane) {
      row.slot[lane] = slots[row.state[lane] % Rans::kTotal];
      row.state[lane] = Rans::pop(row.state[lane], row.slot[lane]);
      row.moves[lane] = row.state[lane] < Rans::kLowest ? 1 : 0;
    }
    // Apart, because a byte might be one of the table, as far as the compiler knows.
    for (std::uint32_t lane = 0; lane < kLanes; ++lane)
      exponents[lane] = static_cast<std::uint8_t>(Rans::symbol_of(row.slot[lane]));
    for (std::uint32_t lane = 0; lane < kLanes; ++lane) {
      row.word[lane] = *next;
      next += row.moves[lane];
    }
    for (std::uint32_t lane = 0; lane < kLanes; ++lane)
      row.state[lane] = row.moves[lane] != 0 ? row.state[lane] << 16 | row.word[lane] : row.state[lane];
  }
  std::copy_n(row.state.begin(), kLanes, states);
  return next;
}

[[noreturn]] void fail(std::string_view what) {
  throw_error(Fault::data, "exponent payload: {}", what);
}

/// Reads the exponents of one chunk, some at a time.
class ExponentReader {
 public:
  /// Throws Fault::data when the chunk cannot hold `count` elements.
  ExponentReader(HostView<const std::byte> chunk, std::size_t count, bool wide) {
    if (chunk.size() < CodedChunk::kFrequenciesOffset) fail("a chunk is shorter than its table");
    const auto* bitmap = section<std::uint32_t>(chunk, CodedChunk::kBitmapOffset);
    std::size_t used = 0;
    for (std::size_t word = 0; word < Exponents::kSymbols / 32; ++word)
      used += static_cast<std::size_t>(std::popcount(bitmap[word]));
    layout_ = {count, used, wide};
    if (chunk.size() < layout_.bytes(0)) fail("a chunk is shorter than its mantissas");
    fill_slots(bitmap, section<std::uint16_t>(chunk, CodedChunk::kFrequenciesOffset));
    std::memcpy(states_.data(), chunk.data() + CodedChunk::kStatesOffset, sizeof states_);
    next_ = section<std::uint16_t>(chunk, layout_.words_offset());
    end_ = next_ + (chunk.size() - layout_.words_offset()) / 2;
  }

  [[nodiscard]] const CodedChunk& layout() const { return layout_; }

  /// The next `count` exponents; a multiple of 32 but for the last call.
  void read(std::size_t count, std::uint8_t* out) {
    std::size_t i = 0;
    // This loop pops as many rows as can be read without looking for the end of the words in between.
    while (const std::size_t rows = std::min((count - i) / kLanes, static_cast<std::size_t>(end_ - next_) / kLanes)) {
      next_ = pop_rows(slots_.data(), states_.data(), rows, next_, out + i);
      i += rows * kLanes;
    }
    for (; i < count; ++i) {
      std::uint32_t& state = states_[i % kLanes];
      const std::uint32_t slot = slots_[state % Rans::kTotal];
      state = Rans::pop(state, slot);
      if (state < Rans::kLowest) {
        if (next_ == end_) fail("a chunk ends before its exponents");
        state = state << 16 | *next_++;
      }
      out[i] = static_cast<std::uint8_t>(Rans::symbol_of(slot));
    }
  }

  /// To be called last: what is left must be what the encoder began with. It finds nearly all damage.
  void finish() const {
    const bool padded = end_ - next_ == 1 && *next_ == 0;
    if (next_ != end_ && !padded) fail("a chunk is longer than its exponents");
    for (const std::uint32_t state : states_)
      if (state != Rans::kLowest) fail("the exponents of a chunk do not end where they began");
  }

 private:
  void fill_slots(const std::uint32_t* bitmap, const std::uint16_t* frequency) {
    std::uint32_t start = 0;
    for (std::uint32_t s = 0; s < Exponents::kSymbols; ++s) {
      if ((bitmap[s / 32] >> s % 32 & 1u) == 0) continue;
      const std::uint32_t f = *frequency++;
      if (f == 0 || f > Rans::kTotal - start) fail("the frequencies of a chunk do not add up");
      for (std::uint32_t offset = 0; offset < f; ++offset) slots_[start + offset] = Rans::slot(s, f, offset);
      start += f;
    }
    if (start != Rans::kTotal) fail("the frequencies of a chunk do not add up");
  }

  CodedChunk layout_;
  std::array<std::uint32_t, kLanes> states_;
  const std::uint16_t* next_ = nullptr;
  const std::uint16_t* end_ = nullptr;
  std::array<std::uint32_t, Rans::kTotal> slots_;
};

/// Calls take(first element, elements, patterns) for the tiles of a chunk.
template <class Take>
void read_chunk(HostView<const std::byte> chunk, std::uint32_t kind, std::size_t first, std::size_t count,
                const Take& take) {
  alignas(64) std::array<std::uint32_t, kTile> bits;
  const auto each_tile = [&](const auto& fill) {
    for (std::size_t at = 0; at < count; at += kTile) {
      const std::size_t size = std::min(kTile, count - at);
      fill(at, size);
      take(first + at, size, bits.data());
    }
  };
  const bool wide = Exponents::is_wide(kind);
  if (!Exponents::is_coded(kind)) {
    if (chunk.size() != Exponents::raw_bytes(count, wide)) fail("a chunk has not the length of its elements");
    return each_tile([&](std::size_t at, std::size_t size) {
      if (wide) {
        std::memcpy(bits.data(), chunk.data() + 4 * at, 4 * size);
      } else {
        const auto* upper = section<std::uint16_t>(chunk, 2 * at);
        for (std::size_t i = 0; i < size; ++i) bits[i] = static_cast<std::uint32_t>(upper[i]) << 16;
      }
    });
  }
  if (chunk.size() >= Exponents::raw_bytes(count, wide)) fail("a coded chunk is no shorter than its elements");
  alignas(64) std::array<std::uint8_t, kTile> exponents;
  ExponentReader reader{chunk, count, wide};
  const auto* upper = section<std::uint8_t>(chunk, reader.layout().upper_offset());
  const auto* lower = section<std::uint16_t>(chunk, reader.layout().lower_offset());
  each_tile([&](std::size_t at, std::size_t size) {
    reader.read(size, exponents.data());
    if (wide)
      join_wide(exponents.data(), upper + at, lower + at, size, bits.data());
    else
      join_narrow(exponents.data(), upper + at, size, bits.data());
  });
  reader.finish();
}

/// Calls take(first element, elements, patterns) for all tiles of a payload of n elements, from several threads.
template <class Take>
void read_payload(Queue<Space::host> queue, HostView<const std::byte> payload, std::size_t n, const Take& take) {
  const Exponents layout{n};
  if (payload.size() < layout.chunks_offset()) fail("it is shorter than its header");
  std::uint64_t stated = 0;
  std::memcpy(&stated, payload.data(), sizeof stated);
  const auto* entries = section<std::uint32_t>(payload, Exponents::sizes_offset());
  const auto bytes_of = [&](std::size_t chunk) { return std::size_t{entries[chunk] & ~format::kExponentKindMask}; };
  std::size_t total = layout.chunks_offset();
  for (std::size_t chunk = 0; chunk < layout.chunks(); ++chunk) total += bytes_of(chunk);
  if (stated != payload.size() || total != stated) fail("its sizes do not add up to its length");
  // The start of a chunk follows from the sizes before it, which every thread adds up for itself.
  parallel_for(queue, layout.chunks(), 1, 1, [&](std::size_t chunk, std::size_t last) {
    std::size_t start = layout.chunks_offset();
    for (std::size_t before = 0; before < chunk; ++before) start += bytes_of(before);
    for (; chunk < last; start += bytes_of(chunk++)) {
      read_chunk(payload.part(start, bytes_of(chunk)), entries[chunk] & format::kExponentKindMask,
                 chunk * Exponents::kChunk, layout.elements(chunk), take);
    }
  });
}

/// Chunks with the exponents entropy-coded and the mantissas as they are.
class Exponent final : public Codec<Space::host> {
 public:
  explicit Exponent(const Params& params)
      : as_bf16_{params.is("dtype", "bf16")}, may_narrow_{!params.is("dtype", "fp32")} {}

  [[nodiscard]] Footprint plan(std::size_t n) const override {
    return {.payload_bytes = Exponents{n}.most_bytes(as_bf16_),
            .scratch_bytes = planned<Workspace>(Exponents{n}),
            .exact = false};
  }

  /// The first pass over the chunks finds out how long each of them becomes, the second one writes them.
  void encode(Queue<Space::host> queue, HostView<const float> gradient, const EncodeContext& /*context*/,
              HostView<std::byte> payload, HostView<std::byte> scratch) const override {
    const Exponents layout{gradient.size()};
    const Workspace work{layout, Scratch<Space::host>{scratch}};
    parallel_for(queue, layout.chunks(), 1, 1, [&](std::size_t chunk, std::size_t last) {
      for (; chunk < last; ++chunk) {
        const std::size_t first = chunk * Exponents::kChunk;
        encode_exponents(gradient.part(first, layout.elements(chunk)), work.codes[chunk], work.words.data() + first);
      }
    });
    parallel_for(queue, layout.chunks(), 1, 1, [&](std::size_t chunk, std::size_t last) {
      std::size_t start = layout.chunks_offset();
      for (std::size_t before = 0; before < chunk; ++before) start += work.codes[before].bytes();
      for (; chunk < last; start += work.codes[chunk++].bytes()) {
        const ExponentCode& code = work.codes[chunk];
        const std::size_t first = chunk * Exponents::kChunk;
        section<std::uint32_t>(payload, Exponents::sizes_offset())[chunk] = code.entry;
        write_chunk(gradient.part(first, layout.elements(chunk)), code, work.words.data() + first,
                    payload.part(start, code.bytes()));
      }
    });
    std::uint64_t size = layout.chunks_offset();
    for (std::size_t chunk = 0; chunk < layout.chunks(); ++chunk) size += work.codes[chunk].bytes();
    std::memcpy(payload.data(), &size, sizeof size);
  }

  void decode_add(Queue<Space::host> queue, HostView<const std::byte> payload, float weight, HostView<float> out,
                  HostView<std::byte> /*scratch*/) const override {
    read_payload(queue, payload, out.size(), [&](std::size_t first, std::size_t count, const std::uint32_t* bits) {
      add_patterns(bits, count, weight, out.data() + first);
    });
  }

  void decode(Queue<Space::host> queue, HostView<const std::byte> payload, HostView<float> out,
              HostView<std::byte> /*scratch*/) const override {
    read_payload(queue, payload, out.size(), [&](std::size_t first, std::size_t count, const std::uint32_t* bits) {
      std::memcpy(out.data() + first, bits, 4 * count);
    });
  }

  /// Nothing is lost, or what the cast to bfloat16 loses (lib/methods/bf16).
  [[nodiscard]] ErrorBound bound(std::size_t /*n*/) const override {
    if (as_bf16_) return {.nmse = 0x1p-16 * (1.0 + 1e-6), .of_largest = 0x1p-8, .absolute = 0x1p-134};
    return {.nmse = 0.0, .of_largest = 0.0};
  }

 private:
  struct Workspace {
    Workspace(const Exponents& layout, Scratch<Space::host> scratch)
        : codes{scratch.take<ExponentCode>(layout.chunks())}, words{scratch.take<std::uint16_t>(layout.n)} {}
    HostView<ExponentCode> codes;   ///< one a chunk
    HostView<std::uint16_t> words;  ///< of each chunk, at the end of as many as it has elements
  };

  /// `words` has room for one word an element.
  void encode_exponents(HostView<const float> x, ExponentCode& code, std::uint16_t* words) const {
    alignas(64) std::array<std::uint8_t, Exponents::kChunk> exponents;
    const std::uint32_t any = split_exponents(x.data(), x.size(), as_bf16_, exponents.data());
    const bool wide = !may_narrow_ || (any & 0xffffu) != 0;
    std::array<std::uint32_t, Exponents::kSymbols> counts;
    count_exponents(exponents.data(), x.size(), counts.data());
    Exponents::scale_counts(counts.data(), static_cast<std::uint32_t>(x.size()), code.frequencies);
    std::array<std::uint32_t, Exponents::kSymbols> symbols{};
    std::fill(std::begin(code.bitmap), std::end(code.bitmap), 0U);
    code.used = 0;
    for (std::uint32_t s = 0, start = 0; s < Exponents::kSymbols; ++s) {
      if (code.frequencies[s] == 0) continue;
      symbols[s] = Rans::symbol(start, code.frequencies[s]);
      start += code.frequencies[s];
      code.bitmap[s / 32] |= 1u << s % 32;
      ++code.used;
    }
    std::uint16_t* end = words + x.size();
    code.words =
        static_cast<std::uint32_t>(end - push_exponents(exponents.data(), x.size(), symbols.data(), code.states, end));
    code.settle(x.size(), wide);
  }

  void write_chunk(HostView<const float> x, const ExponentCode& code, const std::uint16_t* words,
                   HostView<std::byte> chunk) const {
    const std::size_t count = x.size();
    const bool wide = Exponents::is_wide(code.kind());
    std::memset(chunk.data() + chunk.size() - std::min<std::size_t>(4, chunk.size()), 0,
                std::min<std::size_t>(4, chunk.size()));
    if (!Exponents::is_coded(code.kind())) {
      if (wide)
        std::memcpy(chunk.data(), x.data(), 4 * count);
      else
        write_raw16(x.data(), count, as_bf16_, section<std::uint16_t>(chunk));
      return;
    }
    const CodedChunk layout{count, code.used, wide};
    std::memcpy(chunk.data() + CodedChunk::kBitmapOffset, code.bitmap, sizeof code.bitmap);
    std::memcpy(chunk.data() + CodedChunk::kStatesOffset, code.states, sizeof code.states);
    auto* frequency = section<std::uint16_t>(chunk, CodedChunk::kFrequenciesOffset);
    for (const std::uint16_t f : code.frequencies)
      if (f != 0) *frequency++ = f;
    if (code.used % 2 != 0) *frequency = 0;
    auto* upper = section<std::uint8_t>(chunk, layout.upper_offset());
    write_upper(x.data(), count, as_bf16_, upper);
    std::memset(upper + count, 0, Exponents::padded(count) - count);
    if (wide) {
      auto* lower = section<std::uint16_t>(chunk, layout.lower_offset());
      write_lower(x.data(), count, lower);
      if (count % 2 != 0) lower[count] = 0;
    }
    std::memcpy(chunk.data() + layout.words_offset(), words + (count - code.words), 2 * std::size_t{code.words});
  }

  bool as_bf16_;     ///< values are rounded to bfloat16
  bool may_narrow_;  ///< 16 bits are sent where the others are zero
};

constexpr ParamInfo kParams[] = {
    choice_param("dtype", "auto", "auto|fp32|bf16",
                 "auto sends 16 bits an element where the others are zero, fp32 always 32, bf16 rounds to 16 first")};

}  // namespace

extern constinit const CodecDescriptor exponent_codec{
    .name = "exponent",
    .summary = "lossless: sends exponents entropy-coded by rANS, signs and mantissas as they are",
    .reference =
        "Ma et al., UCCL-Zip, 2026, arXiv 2604.17172; Hershcovitch et al., ZipNN, 2024, arXiv 2411.05239; Zhang et "
        "al., DFloat11, 2025, arXiv 2504.11651; Johnson, dietGPU, 2022",
    .params = kParams,
    .payload =
        "64 + 1312 ceil(n/65536) bits, 16 for each exponent of a chunk, and 24 or 8 bits and the exponent's entropy an "
        "element",
    .make_host = make_method_codec<Space::host, Exponent>,
};

}  // namespace gradtool
