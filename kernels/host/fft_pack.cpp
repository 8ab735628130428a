#include "kernels/host/fft_pack.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstring>

#include "kernels/host/select.hpp"
#include "kernels/law/bitpack.hpp"
#include "lib/core/error.hpp"
#include "lib/core/task_pool.hpp"

namespace gradtool::host {

GT_SIMD_CLONES void keep_keys(const float* complex, std::size_t bins, float* spectrum, std::uint32_t* keys) {
  for (std::size_t i = 0; i < bins; ++i) {
    const float re = complex[2 * i];
    const float im = complex[2 * i + 1];
    spectrum[2 * i] = re;
    spectrum[2 * i + 1] = im;
    keys[i] = law::bits_of(re * re + im * im) & 0x7fffffffu;
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

/// Writes the bitmap and collects the components of the kept bins in ascending order.
void select_bins(Queue<Space::host> queue, const PackWork& work, const law::FftLayout& layout, std::uint32_t* bitmap) {
  if (!layout.has_bitmap()) {
    std::memcpy(work.kept, work.spectrum, 8 * layout.bins);
    return;
  }
  if (layout.kept == 0) {
    std::fill_n(bitmap, layout.bitmap_words(), 0u);
    return;
  }
  const auto key = [keys = work.keys](std::size_t i) { return keys[i]; };
  const Selector selector{queue, layout.bins, work.selector};
  const Cut cut = selector.find(layout.kept, key);
  selector.for_each_part(cut, key,
                         [&](std::size_t, std::size_t first, std::size_t last, std::size_t at, std::size_t ties) {
                           for (std::size_t word = first; word < last; word += 32) {
                             std::uint32_t status = 0;
                             const std::size_t end = std::min(last, word + 32);
                             for (std::size_t i = word; i < end; ++i) {
                               if (key(i) < cut.threshold || (key(i) == cut.threshold && ties == 0)) continue;
                               if (key(i) == cut.threshold) --ties;
                               status |= 1u << (i - word);
                               work.kept[2 * at] = work.spectrum[2 * i];
                               work.kept[2 * at + 1] = work.spectrum[2 * i + 1];
                               ++at;
                             }
                             bitmap[word / 32] = status;
                           }
                         });
}

}  // namespace

void pack_spectrum(Queue<Space::host> queue, const PackWork& work, law::FftHeader header, const law::RangeFloat& format,
                   float unit, bool scaled, std::byte* payload) {
  const law::FftLayout layout{header.bins, header.kept, header.bits};
  auto* codes = reinterpret_cast<std::uint32_t*>(payload + layout.codes_offset());
  select_bins(queue, work, layout, reinterpret_cast<std::uint32_t*>(payload + sizeof header));

  const std::size_t values = 2 * layout.kept;
  std::atomic<std::uint32_t> largest{0};
  parallel_for(queue, values, law::kPackGroup, 1 << 14, [&](std::size_t first, std::size_t last) {
    const std::uint32_t here = largest_pattern(work.kept + first, last - first);
    for (std::uint32_t seen = largest.load(); seen < here && !largest.compare_exchange_weak(seen, here);) {
    }
  });
  const float peak = law::float_of(largest.load());
  const bool finite = largest.load() < 0x7f800000u;
  const bool quantised = header.bits != 32;
  float factor = unit;  // plain floats and a fixed range: the unitary coefficient itself
  header.scale = finite ? 1.0F : law::float_of(0x7fc00000u);
  if (quantised && scaled && finite) {
    const bool zero = peak < law::kSmallestScale;
    factor = zero ? 0.0F : 1.0F / peak;
    header.scale = zero ? 0.0F : peak * unit;
  }
  std::memcpy(payload, &header, sizeof header);
  parallel_for(queue, values, law::kPackGroup, 1 << 13, [&](std::size_t first, std::size_t last) {
    if (quantised) {
      quantise(work.kept, first, last, factor, format, codes);
    } else {
      for (std::size_t i = first; i < last; ++i) codes[i] = law::bits_of(work.kept[i] * factor);
    }
  });
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
    for (std::size_t c = 0; c < shape.chunks; ++c) offsets[c] = static_cast<std::uint32_t>(c * shape.bins_per_chunk());
    return spectrum;
  }
  spectrum.bitmap = reinterpret_cast<const std::uint32_t*>(payload.data() + sizeof header);
  std::size_t count = 0;
  std::size_t chunk = 0;
  for (std::size_t word = 0; word < spectrum.layout.bitmap_words(); ++word) {
    const std::uint32_t bits = spectrum.bitmap[word];
    for (; chunk < shape.chunks && chunk * shape.bins_per_chunk() < 32 * (word + 1); ++chunk) {
      const auto inside = static_cast<std::uint32_t>(chunk * shape.bins_per_chunk() % 32);
      offsets[chunk] =
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

void unpack_add(const PackedSpectrum& spectrum, std::size_t chunk, std::size_t bins_per_chunk, float* complex) {
  const std::size_t words = spectrum.layout.code_words();
  const std::uint32_t bits = spectrum.layout.bits;
  std::size_t code = 2 * std::size_t{spectrum.offsets[chunk]};
  const auto add = [&](std::size_t bin) {
    for (std::size_t part = 0; part < 2; ++part, ++code) {
      const std::uint32_t pattern = law::unpacked(spectrum.codes, words, bits, code);
      complex[2 * bin + part] +=
          spectrum.scale * (bits == 32 ? law::float_of(pattern) : spectrum.format.decode(pattern));
    }
  };
  const std::size_t first = chunk * bins_per_chunk;
  const std::size_t last = first + bins_per_chunk;
  if (spectrum.bitmap == nullptr) {
    for (std::size_t bin = 0; bin < bins_per_chunk; ++bin) add(bin);
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
