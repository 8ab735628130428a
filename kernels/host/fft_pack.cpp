#include "kernels/host/fft_pack.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstring>

#include "kernels/host/largest.hpp"
#include "kernels/law/bitpack.hpp"
#include "lib/core/error.hpp"
#include "lib/core/task_pool.hpp"

namespace gradtool::host {

GT_SIMD_CLONES void keep_power(const float* complex, std::size_t bins, float factor, float* spectrum, float* power) {
  for (std::size_t i = 0; i < bins; ++i) {
    const float re = factor * complex[2 * i];
    const float im = factor * complex[2 * i + 1];
    spectrum[2 * i] = re;
    spectrum[2 * i + 1] = im;
    power[i] = re * re + im * im;
  }
}

GT_SIMD_CLONES void add_scaled(const float* in, std::size_t count, float factor, float* out) {
  for (std::size_t i = 0; i < count; ++i) out[i] += factor * in[i];
}

namespace {

GT_SIMD_CLONES std::uint32_t largest_pattern(const float* x, std::size_t count) {
  std::uint32_t largest = 0;
  for (std::size_t i = 0; i < count; ++i) largest = std::max(largest, law::bits_of(x[i]) & 0x7fffffffu);
  return largest;
}

/// One group of 32 codes at a time, so that threads never share a word.
GT_SIMD_CLONES void quantise(const float* values, std::size_t first, std::size_t last, float factor,
                             const law::RangeFloat& format, std::uint32_t* words) {
  std::array<std::uint32_t, law::kPackGroup> codes{};
  for (std::size_t at = first; at < last; at += law::kPackGroup) {
    const std::size_t count = std::min(law::kPackGroup, last - at);
    for (std::size_t i = 0; i < count; ++i) codes[i] = format.encode(values[at + i] * factor);
    std::uint32_t* out = words + at / law::kPackGroup * format.bits;
    const std::size_t used = law::packed_words(count, format.bits);
    for (std::size_t w = 0; w < used; ++w) {
      out[w] =
          law::packed_word(codes.data(), static_cast<std::uint32_t>(count), format.bits, static_cast<std::uint32_t>(w));
    }
  }
}

constexpr std::size_t kUnpacked = 512;  // bins that unpack_add decodes at a time

/// values[i] := what code first + i stands for, times the scale. Two words hold every code; where there is no second
/// one, nothing of it is needed.
GT_SIMD_CLONES void decode_codes(const PackedSpectrum& spectrum, std::size_t first, std::size_t count, float* values) {
  const std::uint32_t* codes = spectrum.codes;
  const std::size_t available = spectrum.layout.code_words();
  const std::uint32_t bits = spectrum.layout.bits;
  const law::RangeFloat format = spectrum.format;
  const float scale = spectrum.scale;
  if (bits == 32) {
    for (std::size_t i = 0; i < count; ++i) values[i] = scale * law::float_of(codes[first + i]);
    return;
  }
  const std::uint32_t* words = codes + first * bits / 32;
  const auto shift = static_cast<std::uint32_t>(first * bits % 32);
  const std::size_t left = available - first * bits / 32;
  const std::uint32_t mask = (1U << bits) - 1U;
  // Codes up to here have a second word. left * 32 is far below 2^31 for the few codes of one call.
  const std::size_t inner =
      left < 2 ? 0 : std::min(count, (32 * std::min<std::size_t>(left - 1, 1U << 20) - shift) / bits);
  for (std::size_t i = 0; i < inner; ++i) {
    const std::uint32_t at = shift + static_cast<std::uint32_t>(i) * bits;
    const std::uint32_t low = words[at / 32] >> at % 32;
    const std::uint32_t high = words[at / 32 + 1] << 1 << (31 - at % 32);
    values[i] = scale * format.decode((low | high) & mask);
  }
  for (std::size_t i = inner; i < count; ++i)
    values[i] = scale * format.decode(law::unpacked(codes, available, bits, first + i));
}

/// Bit b mod 32 of word b div 32 for the positions b.
void write_bitmap(Queue<Space::host> queue, HostView<const std::uint32_t> positions, std::size_t words,
                  std::uint32_t* bitmap) {
  parallel_for(queue, words, 1, 1 << 12, [&](std::size_t first, std::size_t last) {
    std::fill(bitmap + first, bitmap + last, 0U);
    const std::uint32_t* end = positions.data() + positions.size();
    const std::uint32_t* at = std::lower_bound(positions.data(), end, 32 * first);
    for (; at != end && *at < 32 * last; ++at) bitmap[*at / 32] |= 1U << *at % 32;
  });
}

}  // namespace

KeptBins take_bins(Queue<Space::host> queue, const float* spectrum, std::size_t bins,
                   HostView<const std::uint32_t> positions, bool all, float* values) {
  const std::size_t kept = all ? bins : positions.size();
  std::atomic<std::uint32_t> largest{0};
  parallel_for(queue, kept, law::kPackGroup, 1 << 13, [&](std::size_t first, std::size_t last) {
    if (all) {
      std::memcpy(values + 2 * first, spectrum + 2 * first, 8 * (last - first));
    } else {
      for (std::size_t i = first; i < last; ++i) std::memcpy(values + 2 * i, spectrum + 2 * positions[i], 8);
    }
    const std::uint32_t here = largest_pattern(values + 2 * first, 2 * (last - first));
    for (std::uint32_t seen = largest.load(); seen < here && !largest.compare_exchange_weak(seen, here);) {
    }
  });
  return {all ? HostView<const std::uint32_t>{} : positions, {values, 2 * kept}, largest.load()};
}

FftScaling scaling_of(std::uint32_t largest, float unit, bool quantised, bool scaled) {
  const bool finite = largest < 0x7f800000U;
  if (!quantised || !scaled || !finite) return {unit, finite ? 1.0F : law::float_of(0x7fc00000U)};
  const float peak = law::float_of(largest);
  if (peak < law::kSmallestScale) return {0.0F, 0.0F};
  return {1.0F / peak, peak * unit};
}

void write_payload(Queue<Space::host> queue, const KeptBins& kept, law::FftHeader header, const law::RangeFloat& format,
                   const FftScaling& scaling, std::byte* payload) {
  const law::FftLayout layout{header.bins, header.kept, header.bits};
  header.bytes = layout.bytes();
  header.scale = scaling.scale;
  std::memcpy(payload, &header, sizeof header);
  if (layout.has_bitmap()) {
    write_bitmap(queue, kept.positions, layout.bitmap_words(),
                 reinterpret_cast<std::uint32_t*>(payload + sizeof header));
  }
  auto* codes = reinterpret_cast<std::uint32_t*>(payload + layout.codes_offset());
  const float* values = kept.values.data();
  parallel_for(queue, kept.values.size(), law::kPackGroup, 1 << 13, [&](std::size_t first, std::size_t last) {
    if (header.bits != 32) {
      quantise(values, first, last, scaling.factor, format, codes);
    } else {
      for (std::size_t i = first; i < last; ++i) codes[i] = law::bits_of(values[i] * scaling.factor);
    }
  });
}

void pack_spectrum(Queue<Space::host> queue, const PackWork& work, const law::FftHeader& header,
                   const law::RangeFloat& format, float unit, bool scaled, std::byte* payload) {
  const bool all = header.kept == header.bins;
  const HostView<std::uint32_t> positions{work.positions, header.kept};
  if (!all) Largest{queue, {work.power, header.bins}, work.selector}.select(positions, nullptr);
  const KeptBins kept = take_bins(queue, work.spectrum, header.bins, positions, all, work.values);
  write_payload(queue, kept, header, format, scaling_of(kept.largest, unit, header.bits != 32, scaled), payload);
}

PackedSpectrum open_spectrum(HostView<const std::byte> payload, const law::FftHeader& expected,
                             const law::FftShape& shape, std::span<std::uint32_t> offsets) {
  law::FftHeader header;
  if (payload.size() < sizeof header)
    throw Error{Fault::data, fmt::format("fft payload: {} bytes are less than its header", payload.size())};
  std::memcpy(&header, payload.data(), sizeof header);
  const auto differs = [](const char* field, auto is, auto should) {
    if (is != should) throw Error{Fault::data, fmt::format("fft payload: {} is {}, expected {}", field, is, should)};
  };
  differs("bits", header.bits, expected.bits);
  differs("mantissa", header.mantissa, expected.mantissa);
  differs("pbase", header.pbase, expected.pbase);
  differs("positives", header.positives, expected.positives);
  differs("bins", header.bins, expected.bins);
  if (header.kept > header.bins)
    throw Error{Fault::data, fmt::format("fft payload: {} of {} bins kept", header.kept, header.bins)};
  PackedSpectrum spectrum;
  spectrum.layout = {header.bins, header.kept, header.bits};
  differs("size", header.bytes, static_cast<std::uint64_t>(payload.size()));
  differs("length", spectrum.layout.bytes(), payload.size());
  spectrum.scale = header.scale;
  spectrum.codes = reinterpret_cast<const std::uint32_t*>(payload.data() + spectrum.layout.codes_offset());
  spectrum.offsets = offsets;
  if (!spectrum.layout.has_bitmap()) {
    for (std::size_t p = 0; p < shape.pieces(); ++p) offsets[p] = static_cast<std::uint32_t>(shape.first_bin(p));
    return spectrum;
  }
  spectrum.bitmap = reinterpret_cast<const std::uint32_t*>(payload.data() + sizeof header);
  std::size_t count = 0;
  std::size_t piece = 0;
  for (std::size_t word = 0; word < spectrum.layout.bitmap_words(); ++word) {
    const std::uint32_t bits = spectrum.bitmap[word];
    for (; piece < shape.pieces() && shape.first_bin(piece) < 32 * (word + 1); ++piece) {
      const auto inside = static_cast<std::uint32_t>(shape.first_bin(piece) % 32);
      offsets[piece] =
          static_cast<std::uint32_t>(count) + static_cast<std::uint32_t>(std::popcount(bits & ((1u << inside) - 1u)));
    }
    count += static_cast<std::size_t>(std::popcount(bits));
  }
  differs("number of marked bins", count, spectrum.layout.kept);
  const auto used = static_cast<std::uint32_t>(spectrum.layout.bins % 32);
  if (used != 0 && spectrum.bitmap[spectrum.layout.bitmap_words() - 1] >> used != 0) {
    throw Error{Fault::data, "fft payload: the bitmap marks bins behind the last one"};
  }
  return spectrum;
}

void unpack_add(const PackedSpectrum& spectrum, std::size_t piece, const law::FftShape& shape, float* complex) {
  const std::size_t first = shape.first_bin(piece);
  const std::size_t last = first + shape.piece_bins(piece);
  std::array<float, 2 * kUnpacked> values;
  std::size_t held = 0;  // values that were decoded, and the next of them
  std::size_t next = 0;
  std::size_t code = 2 * std::size_t{spectrum.offsets[piece]};
  const auto add = [&](std::size_t bin) {
    if (next == held) {
      held = std::min(values.size(), 2 * spectrum.layout.kept - code);
      next = 0;
      decode_codes(spectrum, code, held, values.data());
      code += held;
    }
    complex[2 * bin] += values[next];
    complex[2 * bin + 1] += values[next + 1];
    next += 2;
  };
  if (spectrum.bitmap == nullptr) {
    for (std::size_t bin = 0; bin < last - first; ++bin) add(bin);
    return;
  }
  for (std::size_t word = first / 32; word * 32 < last; ++word) {
    std::uint32_t rest = spectrum.bitmap[word];
    if (word * 32 < first) rest &= ~((1u << (first % 32)) - 1u);
    if (last - word * 32 < 32) rest &= (1u << (last - word * 32)) - 1u;
    for (; rest != 0; rest &= rest - 1) add(word * 32 + static_cast<std::size_t>(std::countr_zero(rest)) - first);
  }
}

}  // namespace gradtool::host
