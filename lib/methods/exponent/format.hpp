#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/float_bits.hpp"

/// Arithmetic and layout of `exponent` payloads, for every processor. The README describes them byte by byte.
namespace gradtool::format {

/// How a chunk is written. The codes stand in the two lowest bits of its entry in the table of sizes.
constexpr std::uint32_t kRaw16 = 0;    ///< the upper 16 bits of every element as they are; the lower ones are zero
constexpr std::uint32_t kRaw32 = 1;    ///< every element as it is
constexpr std::uint32_t kCoded16 = 2;  ///< exponents entropy-coded; the lower 16 bits of every element are zero
constexpr std::uint32_t kCoded32 = 3;  ///< exponents entropy-coded
constexpr std::uint32_t kExponentKindMask = 3;

/// Range variant of asymmetric numeral systems (Duda 2013): a state in [2^16, 2^32), frequencies that sum to 2^12, and
/// words of 16 bits. One symbol moves at most one word.
struct Rans {
  static constexpr std::uint32_t kTotalBits = 12;
  static constexpr std::uint32_t kTotal = 1u << kTotalBits;
  static constexpr std::uint32_t kLowest = 1u << 16;  ///< smallest state between symbols, and that before the first

  /// The encoder's entry for a symbol: its frequency, 1 to 2^12, from bit 12 on; below, the sum of the frequencies of
  /// the symbols before it.
  GT_HD static std::uint32_t symbol(std::uint32_t start, std::uint32_t frequency) {
    return frequency << kTotalBits | start;
  }
  /// True when the state must give up its lower 16 bits before the symbol enters.
  GT_HD static bool is_full(std::uint32_t state, std::uint32_t symbol) {
    return state >> (32 - kTotalBits) >= symbol >> kTotalBits;
  }
  /// The state with the symbol in it: floor(state / f) 2^12 + start + state mod f. The quotient is below 2^20, so that
  /// of float32 is off by one at most; without an integer division, loops over lanes become vector code.
  GT_HD static std::uint32_t push(std::uint32_t state, std::uint32_t symbol) {
    const std::uint32_t f = symbol >> kTotalBits;
    auto quotient = static_cast<std::int32_t>(static_cast<float>(state) / static_cast<float>(f));
    const auto rest = static_cast<std::int32_t>(state - static_cast<std::uint32_t>(quotient) * f);
    quotient += (rest >= static_cast<std::int32_t>(f) ? 1 : 0) - (rest < 0 ? 1 : 0);
    return state + symbol % kTotal + static_cast<std::uint32_t>(quotient) * (kTotal - f);
  }

  /// An entry of the decoder's table, for one of the 2^12 slots: the symbol's frequency less one in bits 20 to 31, the
  /// symbol in bits 12 to 19, the slot less the symbol's start in bits 0 to 11.
  GT_HD static std::uint32_t slot(std::uint32_t symbol, std::uint32_t frequency, std::uint32_t offset) {
    return (frequency - 1) << 20 | symbol << kTotalBits | offset;
  }
  GT_HD static std::uint32_t symbol_of(std::uint32_t slot) { return slot >> kTotalBits & 0xffu; }
  /// The state without its last symbol; below kLowest it takes in a word.
  GT_HD static std::uint32_t pop(std::uint32_t state, std::uint32_t slot) {
    const std::uint32_t above = state >> kTotalBits;
    return (slot >> 20) * above + (above + slot % kTotal);
  }
};

/// A symbol for an encoder without division and without branches.
struct alignas(16) RansSymbol {
  std::uint32_t limit;      ///< the largest state that the symbol may enter without giving up bits
  std::uint32_t inverse;    ///< floor((2^32 - 1) / frequency)
  std::uint32_t frequency;  ///< 1 to 2^12
  std::uint32_t start;

  GT_HD static RansSymbol of(std::uint32_t start, std::uint32_t frequency) {
    return {(frequency << (32 - Rans::kTotalBits)) - 1u, 0xffffffffu / frequency, frequency, start};
  }
  /// A symbol of all of the range, which changes no state.
  GT_HD static RansSymbol none() { return of(0, Rans::kTotal); }

  /// Rans::push. With m the inverse, 2^32 - m f lies in [1, f], so that state m / 2^32 is at most state / f and less
  /// than 1 below it. The quotient is therefore right or one too small, and the rest below 2 f. Bit 31 of f - 1 - rest
  /// says which; it takes the place of a comparison, because a predicate is later than a number.
  GT_HD std::uint32_t push(std::uint32_t state) const {
    const auto quotient = static_cast<std::uint32_t>(std::uint64_t{state} * inverse >> 32);
    const std::uint32_t missing = (quotient * frequency + (frequency - 1 - state)) >> 31;
    return (quotient + missing) * (Rans::kTotal - frequency) + (state + start);
  }
};

/// A payload for n elements: size, sizes of the chunks, chunks.
struct Exponents {
  static constexpr std::size_t kChunk = 65536;  ///< elements with a table of their own
  static constexpr std::uint32_t kLanes = 32;   ///< states of a chunk; element i belongs to state i mod 32
  static constexpr std::uint32_t kSymbols = 256;

  std::size_t n = 0;

  GT_HD std::size_t chunks() const { return (n + kChunk - 1) / kChunk; }
  GT_HD std::size_t elements(std::size_t chunk) const {
    const std::size_t left = n - chunk * kChunk;
    return left < kChunk ? left : kChunk;
  }
  static constexpr std::size_t sizes_offset() { return 8; }
  GT_HD std::size_t chunks_offset() const { return sizes_offset() + 4 * chunks(); }
  /// The longest payload.
  GT_HD std::size_t most_bytes(bool as_bf16) const {
    const std::size_t chunk = raw_bytes(kChunk, !as_bf16);
    return chunks_offset() + (n / kChunk) * chunk + raw_bytes(n % kChunk, !as_bf16);
  }

  GT_HD static std::size_t padded(std::size_t bytes) { return (bytes + 3) / 4 * 4; }
  GT_HD static bool is_wide(std::uint32_t kind) { return (kind & 1u) != 0; }
  GT_HD static bool is_coded(std::uint32_t kind) { return kind >= kCoded16; }
  GT_HD static std::size_t raw_bytes(std::size_t count, bool wide) { return wide ? 4 * count : padded(2 * count); }

  /// The pattern of an element that is sent.
  GT_HD static std::uint32_t pattern(float x, bool as_bf16) {
    return as_bf16 ? static_cast<std::uint32_t>(bf16_from_f32(x)) << 16 : bits_of(x);
  }
  GT_HD static std::uint32_t exponent(std::uint32_t bits) { return bits >> 23 & 0xffu; }
  /// Sign and upper 7 bits of the mantissa.
  GT_HD static std::uint8_t upper(std::uint32_t bits) {
    return static_cast<std::uint8_t>((bits >> 24 & 0x80u) | (bits >> 16 & 0x7fu));
  }
  GT_HD static std::uint32_t join(std::uint32_t exponent, std::uint32_t upper, std::uint32_t lower) {
    return (upper & 0x80u) << 24 | exponent << 23 | (upper & 0x7fu) << 16 | lower;
  }

  /// frequencies := how often each exponent occurs, in parts of 2^12; at least 1 where `counts` is not 0. The sum of
  /// `counts` is `total`, at most kChunk and not 0.
  GT_HD static void scale_counts(const std::uint32_t* counts, std::uint32_t total, std::uint16_t* frequencies) {
    std::uint32_t sum = 0;
    for (std::uint32_t s = 0; s < kSymbols; ++s) {
      frequencies[s] = static_cast<std::uint16_t>(share(counts[s], total));
      sum += frequencies[s];
    }
    while (sum != Rans::kTotal) {
      std::uint32_t largest = 0;
      for (std::uint32_t s = 1; s < kSymbols; ++s)
        if (frequencies[s] > frequencies[largest]) largest = s;
      const std::uint32_t added = correction(sum, frequencies[largest]);
      frequencies[largest] = static_cast<std::uint16_t>(frequencies[largest] + added);
      sum += added;
    }
  }
  /// The frequency before corrections of what occurs `count` times.
  GT_HD static std::uint32_t share(std::uint32_t count, std::uint32_t total) {
    const std::uint32_t share = count * Rans::kTotal / total;
    return count != 0 && share == 0 ? 1 : share;
  }
  /// Added, modulo 2^32, to the largest frequency where all add up to `sum`. It takes the counts that rounding
  /// left, because they cost least there; it also gives those that rounding took too much, a quarter of itself at a
  /// time, so that no frequency falls to zero.
  GT_HD static std::uint32_t correction(std::uint32_t sum, std::uint32_t largest) {
    const std::uint32_t most = largest / 4, over = sum - Rans::kTotal;
    return sum > Rans::kTotal && over > most ? 0u - most : 0u - over;
  }
};

/// Sections of a coded chunk of `count` elements with `used` different exponents, from the start of the chunk.
struct CodedChunk {
  static constexpr std::size_t kBitmapOffset = 0;
  static constexpr std::size_t kStatesOffset = Exponents::kSymbols / 8;
  static constexpr std::size_t kFrequenciesOffset = kStatesOffset + 4 * Exponents::kLanes;

  std::size_t count = 0;
  std::size_t used = 0;
  bool wide = false;

  GT_HD std::size_t upper_offset() const { return kFrequenciesOffset + Exponents::padded(2 * used); }
  GT_HD std::size_t lower_offset() const { return upper_offset() + Exponents::padded(count); }
  GT_HD std::size_t words_offset() const { return lower_offset() + (wide ? Exponents::padded(2 * count) : 0); }
  GT_HD std::size_t bytes(std::size_t words) const { return words_offset() + Exponents::padded(2 * words); }
};

/// The result of the first pass over a chunk for the second: everything but the mantissas and the words.
struct ExponentCode {
  std::uint32_t states[Exponents::kLanes];
  std::uint32_t bitmap[Exponents::kSymbols / 32];
  std::uint16_t frequencies[Exponents::kSymbols];
  std::uint32_t words;  ///< how many there are
  std::uint32_t used;   ///< different exponents
  std::uint32_t entry;  ///< bytes of the chunk, and its kind

  /// Chooses the smaller way to write a chunk.
  GT_HD void settle(std::size_t count, bool wide) {
    const std::size_t coded = CodedChunk{count, used, wide}.bytes(words);
    const std::size_t raw = Exponents::raw_bytes(count, wide);
    const std::uint32_t kind = (coded < raw ? kCoded16 : kRaw16) + (wide ? 1u : 0u);
    entry = static_cast<std::uint32_t>(coded < raw ? coded : raw) | kind;
  }
  GT_HD std::uint32_t kind() const { return entry & kExponentKindMask; }
  GT_HD std::uint32_t bytes() const { return entry & ~kExponentKindMask; }
};

}  // namespace gradtool::format
