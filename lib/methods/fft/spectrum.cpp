#include "lib/methods/fft/spectrum.hpp"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstring>
#include <mutex>

#include "kernels/bitpack.hpp"
#include "kernels/float_bits.hpp"
#include "kernels/select.hpp"
#include "lib/core/task_pool.hpp"
#include "lib/core/throw_error.hpp"

namespace gradtool {
namespace host {
namespace {

GT_SIMD_CLONES std::uint32_t largest_pattern(const float* x, std::size_t count) {
  std::uint32_t largest = 0;
  for (std::size_t i = 0; i < count; ++i) largest = std::max(largest, format::bits_of(x[i]) & 0x7fffffffu);
  return largest;
}

GT_SIMD_CLONES void round_scaled(float* x, std::size_t count, float scale, float inverse) {
  for (std::size_t i = 0; i < count; ++i) x[i] = format::f32_from_f16(format::f16_from_f32(x[i] * scale)) * inverse;
}

/// out[i] += factor * in[i].
GT_SIMD_CLONES void add_scaled(const float* in, std::size_t count, float factor, float* out) {
  for (std::size_t i = 0; i < count; ++i) out[i] += factor * in[i];
}

/// Codes values[first, last) in groups of 32 codes, which fill whole words, so that threads never share a word. `first`
/// is a multiple of 32.
GT_SIMD_CLONES void quantise(const float* values, std::size_t first, std::size_t last, float factor,
                             const format::RangeFloat& format, std::uint32_t* words) {
  std::array<std::uint32_t, format::kPackGroup> codes{};
  for (std::size_t group = first; group < last; group += format::kPackGroup) {
    const std::size_t count = std::min(format::kPackGroup, last - group);
    for (std::size_t i = 0; i < count; ++i) codes[i] = format.encode(values[group + i] * factor);
    std::uint32_t* out = words + group / format::kPackGroup * format.bits;
    const std::size_t used = format::packed_words(count, format.bits);
    for (std::size_t w = 0; w < used; ++w) {
      out[w] = format::packed_word(codes.data(), static_cast<std::uint32_t>(count), format.bits,
                                   static_cast<std::uint32_t>(w));
    }
  }
}

/// values[i] := the number of code first + i, times the scale. Every code lies in two neighbouring words. The last
/// codes of a payload, whose second word may be missing, are read by format::unpacked, which takes it as zero.
GT_SIMD_CLONES void decode_codes(const PackedSpectrum& spectrum, std::size_t first, std::size_t count, float* values) {
  const std::uint32_t* codes = spectrum.codes;
  const std::size_t available = spectrum.layout.code_words();
  const std::uint32_t bits = spectrum.layout.bits;
  const format::RangeFloat format = spectrum.format;
  const float scale = spectrum.scale;
  if (bits == 32) {
    for (std::size_t i = 0; i < count; ++i) values[i] = scale * format::float_of(codes[first + i]);
    return;
  }
  const std::uint32_t* words = codes + first * bits / 32;
  const auto shift = static_cast<std::uint32_t>(first * bits % 32);
  const std::size_t left = available - first * bits / 32;
  const std::uint32_t mask = (1U << bits) - 1U;
  // The codes in front of `inner` have a second word. A call decodes few codes, so that limiting `left` to 2^20 words
  // changes nothing but keeps the product from overflowing.
  const std::size_t inner =
      left < 2 ? 0 : std::min(count, (32 * std::min<std::size_t>(left - 1, 1U << 20) - shift) / bits);
  for (std::size_t i = 0; i < inner; ++i) {
    const std::uint32_t bit = shift + static_cast<std::uint32_t>(i) * bits;
    const std::uint32_t low = words[bit / 32] >> bit % 32;
    const std::uint32_t high = words[bit / 32 + 1] << 1 << (31 - bit % 32);
    values[i] = scale * format.decode((low | high) & mask);
  }
  for (std::size_t i = inner; i < count; ++i)
    values[i] = scale * format.decode(format::unpacked(codes, available, bits, first + i));
}

/// Sets the bits of `positions`, which ascend, in the bitmap of `words` words and clears all others.
void write_bitmap(Queue<Space::host> queue, HostView<const std::uint32_t> positions, std::size_t words,
                  std::uint32_t* bitmap) {
  parallel_for(queue, words, 1, 1 << 12, [&](std::size_t first, std::size_t last) {
    std::fill(bitmap + first, bitmap + last, 0U);
    const std::uint32_t* end = positions.data() + positions.size();
    const std::uint32_t* position = std::lower_bound(positions.data(), end, 32 * first);
    for (; position != end && *position < 32 * last; ++position) bitmap[*position / 32] |= 1U << *position % 32;
  });
}

}  // namespace

GT_SIMD_CLONES void scale_and_square(const float* complex, std::size_t bins, float factor, float* spectrum,
                                     float* power) {
  for (std::size_t i = 0; i < bins; ++i) {
    const float re = factor * complex[2 * i];
    const float im = factor * complex[2 * i + 1];
    spectrum[2 * i] = re;
    spectrum[2 * i + 1] = im;
    power[i] = re * re + im * im;
  }
}

void round_to_half(float* x, std::size_t count, int top) {
  const auto rounding = format::HalfRounding::of(largest_pattern(x, count), top);
  if (rounding.scale != 0.0F) round_scaled(x, count, rounding.scale, rounding.inverse);
}

KeptBins take_bins(Queue<Space::host> queue, const float* spectrum, std::size_t bins,
                   HostView<const std::uint32_t> positions, bool all, float* values) {
  const std::size_t kept = all ? bins : positions.size();
  std::atomic<std::uint32_t> largest{0};
  parallel_for(queue, kept, format::kPackGroup, 1 << 13, [&](std::size_t first, std::size_t last) {
    if (all) {
      std::memcpy(values + 2 * first, spectrum + 2 * first, 8 * (last - first));
    } else {
      for (std::size_t i = first; i < last; ++i) std::memcpy(values + 2 * i, spectrum + 2 * positions[i], 8);
    }
    const std::uint32_t own = largest_pattern(values + 2 * first, 2 * (last - first));
    for (std::uint32_t seen = largest.load(); seen < own && !largest.compare_exchange_weak(seen, own);) {
    }
  });
  return {all ? HostView<const std::uint32_t>{} : positions, {values, 2 * kept}, largest.load()};
}

void write_payload(Queue<Space::host> queue, const KeptBins& kept, format::FftHeader header,
                   const format::RangeFloat& format, const format::FftScaling& scaling, std::byte* payload) {
  const format::FftLayout layout{header.bins, header.kept, header.bits};
  header.bytes = layout.bytes();
  header.scale = scaling.scale;
  std::memcpy(payload, &header, sizeof header);
  if (layout.has_bitmap()) {
    write_bitmap(queue, kept.positions, layout.bitmap_words(),
                 reinterpret_cast<std::uint32_t*>(payload + sizeof header));
  }
  auto* codes = reinterpret_cast<std::uint32_t*>(payload + layout.codes_offset());
  const float* values = kept.values.data();
  parallel_for(queue, kept.values.size(), format::kPackGroup, 1 << 13, [&](std::size_t first, std::size_t last) {
    if (header.bits != 32) {
      quantise(values, first, last, scaling.factor, format, codes);
    } else {
      for (std::size_t i = first; i < last; ++i) codes[i] = format::bits_of(values[i] * scaling.factor);
    }
  });
}

PackedSpectrum open_spectrum(HostView<const std::byte> payload, const format::FftHeader& expected,
                             const format::RangeFloat& format, const format::FftShape& shape,
                             std::span<std::uint32_t> offsets) {
  format::FftHeader header;
  if (payload.size() < sizeof header)
    throw_error(Fault::data, "fft payload: {} bytes are less than its header", payload.size());
  std::memcpy(&header, payload.data(), sizeof header);
  const auto differs = [](const char* field, auto actual, auto wanted) {
    if (actual != wanted) throw_error(Fault::data, "fft payload: {} is {}, expected {}", field, actual, wanted);
  };
  differs("bits", header.bits, expected.bits);
  differs("mantissa", header.mantissa, expected.mantissa);
  differs("pbase", header.pbase, expected.pbase);
  differs("positives", header.positives, expected.positives);
  differs("bins", header.bins, expected.bins);
  if (header.kept > header.bins) throw_error(Fault::data, "fft payload: {} of {} bins kept", header.kept, header.bins);
  PackedSpectrum spectrum;
  spectrum.layout = {header.bins, header.kept, header.bits};
  differs("size", header.bytes, static_cast<std::uint64_t>(payload.size()));
  differs("length", spectrum.layout.bytes(), payload.size());
  spectrum.scale = header.scale;
  spectrum.format = format;
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

void unpack_add(const PackedSpectrum& spectrum, std::size_t piece, const format::FftShape& shape, float* complex) {
  const std::size_t first = shape.first_bin(piece);
  const std::size_t last = first + shape.piece_bins(piece);
  std::array<float, 1024> values;  // decoded ahead: values[next, decoded) are still to be added
  std::size_t decoded = 0;
  std::size_t next = 0;
  std::size_t code = 2 * std::size_t{spectrum.offsets[piece]};
  const auto add = [&](std::size_t bin) {
    if (next == decoded) {
      decoded = std::min(values.size(), 2 * spectrum.layout.kept - code);
      next = 0;
      decode_codes(spectrum, code, decoded, values.data());
      code += decoded;
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

}  // namespace host

FftWorkspace::FftWorkspace(const FftOptions& options, const format::FftShape& shape, Scratch<Space::host> scratch)
    : part_count{std::min(kMostParts, shape.pieces())} {
  const std::size_t most_kept = options.most_kept(shape);
  spectrum = scratch.take<float>(2 * shape.bins());
  power = scratch.take<float>(shape.bins());
  positions = scratch.take<std::uint32_t>(most_kept);
  kept = scratch.take<float>(2 * most_kept);
  offsets = scratch.take<std::uint32_t>(kMostSummed * shape.pieces());
  if (!options.by_piece()) selection = scratch.take_bytes(host::Largest::scratch_bytes(shape.bins(), most_kept));
  for (std::size_t p = 0; p < part_count; ++p) {
    parts[p].real = scratch.take<float>(shape.length);
    parts[p].complex = scratch.take<float>(2 * shape.bins_per_chunk());
    if (options.by_piece())
      parts[p].selection =
          scratch.take_bytes(host::Largest::scratch_bytes(shape.bins_per_chunk(), shape.bins_per_chunk()));
  }
}

namespace {

/// body(part, piece) for all pieces, with workspace.parts[part] for its own. Pieces of one part follow one another.
template <class Body>
void for_pieces(Queue<Space::host> queue, const format::FftShape& shape, const FftWorkspace& workspace,
                const Body& body) {
  const std::size_t parts = std::min(workspace.part_count, part_count(queue, shape.pieces(), 1));
  parallel_parts(queue, shape.pieces(), parts, 1, [&](std::size_t part, std::size_t piece, std::size_t last) {
    for (; piece < last; ++piece) body(workspace.parts[part], piece);
  });
}

}  // namespace

void FftTransform::plan(const format::FftShape& shape) const {
  make_plan(shape.length);
  if (shape.tail > 0) make_plan(shape.tail);
}

void FftTransform::make_plan(std::size_t length) const {
  const std::unique_lock lock{mutex_};
  auto& plan = plans_[length];
  if (plan == nullptr) plan = std::make_unique<host::RealTransform>(length);
}

const host::RealTransform& FftTransform::plan_of(std::size_t length) const {
  const std::shared_lock lock{mutex_};
  const auto found = plans_.find(length);
  expects(found != plans_.end(), "fft: encode or decode before plan");
  return *found->second;
}

void FftTransform::forward(Queue<Space::host> queue, HostView<const float> gradient, const format::FftShape& shape,
                           const FftWorkspace& workspace) const {
  for_pieces(queue, shape, workspace, [&](const FftWorkspace::Part& part, std::size_t piece) {
    float* real = part.real.data();
    float* complex = part.complex.data();
    const std::size_t first = piece * shape.length;
    const std::size_t length = shape.piece_length(piece);
    const std::size_t count = std::min(length, gradient.size() - first);
    const std::size_t bins = shape.piece_bins(piece);
    std::memcpy(real, gradient.data() + first, count * sizeof(float));
    std::fill(real + count, real + length, 0.0F);
    if (options_.half()) host::round_to_half(real, length, format::HalfRounding::kInputTop);
    plan_of(length).forward(real, complex);
    if (options_.half()) host::round_to_half(complex, 2 * bins, format::HalfRounding::kOutputTop);
    const float factor =
        length == shape.length ? 1.0F : format::unitary_factor(length) / format::unitary_factor(shape.length);
    const std::size_t bin = shape.first_bin(piece);
    host::scale_and_square(complex, bins, factor, workspace.spectrum.data() + 2 * bin, workspace.power.data() + bin);
  });
}

void FftTransform::select(Queue<Space::host> queue, double theta, const format::FftShape& shape,
                          const FftWorkspace& workspace, HostView<std::uint32_t> positions) const {
  if (!options_.by_piece()) {
    host::Largest{queue, {workspace.power.data(), shape.bins()}, workspace.selection}.select(positions, nullptr);
    return;
  }
  const std::size_t kept_of_chunk = options_.kept_of(theta, shape.bins_per_chunk());
  for_pieces(queue, shape, workspace, [&](const FftWorkspace::Part& part, std::size_t piece) {
    const std::size_t bin = shape.first_bin(piece);
    const HostView<const float> power{workspace.power.data() + bin, shape.piece_bins(piece)};
    const auto own = positions.part(piece * kept_of_chunk, options_.kept_of(theta, shape.piece_bins(piece)));
    host::Largest{{}, power, part.selection}.select(own, nullptr);
    for (auto& position : own.span()) position += static_cast<std::uint32_t>(bin);
  });
}

void FftTransform::inverse(Queue<Space::host> queue, std::span<const host::PackedSpectrum> spectra, float weight,
                           const format::FftShape& shape, const FftWorkspace& workspace, HostView<float> out) const {
  for_pieces(queue, shape, workspace, [&](const FftWorkspace::Part& part, std::size_t piece) {
    float* real = part.real.data();
    float* complex = part.complex.data();
    const std::size_t length = shape.piece_length(piece);
    const std::size_t bins = shape.piece_bins(piece);
    std::fill_n(complex, 2 * bins, 0.0F);
    for (const auto& spectrum : spectra) host::unpack_add(spectrum, piece, shape, complex);
    complex[1] = 0.0F;  // the first bin of a real signal is real, and with an even length the last one too
    if (length % 2 == 0) complex[2 * bins - 1] = 0.0F;
    plan_of(length).inverse(complex, real);
    const std::size_t first = piece * shape.length;
    host::add_scaled(real, std::min(length, out.size() - first), weight * format::unitary_factor(length),
                     out.data() + first);
  });
}

}  // namespace gradtool
