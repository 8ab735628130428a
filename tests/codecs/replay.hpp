#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <span>
#include <vector>

#include "kernels/law/fft_payload.hpp"
#include "kernels/law/fft_power.hpp"
#include "kernels/law/qsgd_layout.hpp"
#include "kernels/schedule/blocks.hpp"
#include "kernels/schedule/fft_codes.hpp"
#include "kernels/schedule/fft_unpack.hpp"
#include "kernels/schedule/natural.hpp"
#include "kernels/schedule/qsgd_bucket.hpp"
#include "kernels/schedule/warp.hpp"
#include "tests/codecs/inputs.hpp"

/// What the .cu files launch, played on the CPU: the same schedules over the same buckets and tiles, lanes and tiles in
/// an order of choice. Memory is as large as it must be and no larger, so that sanitizers see a step outside.
namespace gradtool::test {

using schedule::HostWarp;

/// 0: forward, 1: backward, above: shuffled.
template <class T>
void reorder(std::span<T> items, std::uint32_t order) {
  if (order == 1) std::reverse(items.begin(), items.end());
  for (std::size_t i = items.size(); order > 1 && i > 1; --i) {
    std::swap(items[i - 1], items[static_cast<std::size_t>(uniform_at(order, i) * static_cast<float>(i))]);
  }
}
inline HostWarp::Order lane_order(std::uint32_t order) {
  HostWarp::Order lanes{};
  std::iota(lanes.begin(), lanes.end(), std::uint8_t{0});
  reorder(std::span<std::uint8_t>{lanes}, order);
  return lanes;
}
inline std::vector<std::size_t> item_order(std::size_t items, std::uint32_t order) {
  std::vector<std::size_t> all(items);
  std::iota(all.begin(), all.end(), std::size_t{0});
  reorder(std::span<std::size_t>{all}, order);
  return all;
}

template <class T>
T* at_byte(std::vector<std::byte>& bytes, std::size_t offset) {
  return reinterpret_cast<T*>(bytes.data() + offset);
}
template <class T>
const T* at_byte(const std::vector<std::byte>& bytes, std::size_t offset) {
  return reinterpret_cast<const T*>(bytes.data() + offset);
}
inline bool sixteen(const void* pointer) {
  return reinterpret_cast<std::uintptr_t>(pointer) % 16 == 0;
}

/// kernels/cuda/qsgd.cu: qsgd_encode.
template <std::uint32_t Bits>
std::vector<std::byte> replay_qsgd_encode(std::span<const float> x, std::size_t bucket, bool l2,
                                          const law::DrawKey& key, std::uint32_t order) {
  const law::QsgdLayout layout{x.size(), bucket, Bits};
  std::vector<std::byte> payload(layout.bytes(), std::byte{0xA5});
  const HostWarp warp{lane_order(order)};
  const bool aligned = sixteen(x.data());
  for (const std::size_t b : item_order(layout.buckets(), order)) {
    const std::size_t count = std::min(bucket, x.size() - b * bucket);
    at_byte<float>(payload, 0)[b] = schedule::bucket_norm(warp, x.data() + b * bucket, count, l2, aligned);
  }
  for (const std::size_t p : item_order(schedule::QsgdPiece::pieces(layout), order)) {
    const schedule::QsgdPiece piece{layout, p};
    if (piece.count == 0) continue;
    alignas(16) std::array<std::uint32_t, schedule::kWindow> codes;
    codes.fill(0xA5A5A5A5u);
    const float norm = at_byte<float>(payload, 0)[piece.bucket];
    if (aligned && bucket == schedule::kHeldBucket && piece.count == bucket) {
      const auto held = schedule::load_windows<schedule::kHeldBucket / schedule::kWindow>(warp, x.data() + piece.first);
      at_byte<float>(payload, 0)[piece.bucket] = schedule::bucket_norm(warp, held, l2, codes.data());
      schedule::encode_held<law::QsgdElement<Bits>, true>(
          warp, held, piece.first, law::Qsgd::with_bits(Bits).encode_factor(norm), key, codes.data(),
          at_byte<std::uint32_t>(payload, layout.codes_offset()) + piece.first_word);
      continue;
    }
    schedule::encode_elements<law::QsgdElement<Bits>, true>(
        warp, x.data() + piece.first, piece.first, piece.count, aligned, law::Qsgd::with_bits(Bits).encode_factor(norm),
        key, codes.data(), at_byte<std::uint32_t>(payload, layout.codes_offset()) + piece.first_word);
  }
  return payload;
}

/// kernels/cuda/qsgd.cu: qsgd_decode_add.
template <std::uint32_t Bits>
void replay_qsgd_decode(const std::vector<std::byte>& payload, std::size_t bucket, float weight, std::span<float> out,
                        std::uint32_t order) {
  const law::QsgdLayout layout{out.size(), bucket, Bits};
  const HostWarp warp{lane_order(order)};
  for (const std::size_t p : item_order(schedule::QsgdPiece::pieces(layout), order)) {
    const schedule::QsgdPiece piece{layout, p};
    if (piece.count == 0) continue;
    const float factor = law::Qsgd::with_bits(Bits).decode_factor(at_byte<float>(payload, 0)[piece.bucket]);
    schedule::decode_elements<law::QsgdElement<Bits>>(
        warp, at_byte<std::uint32_t>(payload, layout.codes_offset()) + piece.first_word, piece.count,
        [factor](std::size_t) { return factor; }, weight, out.data() + piece.first, sixteen(out.data()));
  }
}

/// kernels/cuda/block_kernels.hpp: encode_blocks.
template <class Format>
std::vector<std::byte> replay_encode_blocks(std::span<const float> x, const law::BlockLayout& layout, bool stochastic,
                                            const law::DrawKey& key, std::uint32_t order) {
  using schedule::BlockPiece;
  std::vector<std::byte> payload(layout.bytes(), std::byte{0xA5});
  const HostWarp warp{lane_order(order)};
  const bool aligned = sixteen(x.data());
  auto* scales = at_byte<typename Format::Scale>(payload, 0);
  auto* words = at_byte<std::uint32_t>(payload, layout.codes_offset());
  std::vector<std::uint32_t> largest(layout.blocks(), 0);
  const auto pieces = item_order(BlockPiece::pieces(layout), order);
  for (const std::size_t p : pieces) {
    const BlockPiece piece{layout, p};
    if (schedule::in_window(layout.block)) break;
    const auto most = schedule::largest_pattern(warp, x.data() + piece.first, piece.count, aligned);
    largest[piece.block] = std::max(largest[piece.block], most);
  }
  const auto encode = [&]<bool Stochastic>() {
    for (const std::size_t p : pieces) {
      const BlockPiece piece{layout, p};
      if (piece.count == 0) continue;
      alignas(16) std::array<std::uint32_t, schedule::kWindow> room;
      room.fill(0xA5A5A5A5u);
      if (schedule::in_window(layout.block)) {
        schedule::encode_in_windows<Format, Stochastic>(warp, layout, piece, x.data(), aligned, key, scales,
                                                        room.data(), words + piece.first_word);
      } else if (schedule::can_be_held<schedule::kAhead>(layout, piece, aligned)) {
        schedule::encode_held_block<Format, Stochastic, schedule::kAhead>(warp, piece, x.data(), key, scales,
                                                                          room.data(), words + piece.first_word);
      } else if (schedule::can_be_held<schedule::kMostHeld>(layout, piece, aligned)) {
        schedule::encode_held_block<Format, Stochastic, schedule::kMostHeld>(warp, piece, x.data(), key, scales,
                                                                             room.data(), words + piece.first_word);
      } else {
        schedule::encode_piece<Format, Stochastic>(warp, piece, x.data(), aligned, largest[piece.block], key, scales,
                                                   room.data(), words + piece.first_word);
      }
    }
  };
  if (stochastic)
    encode.template operator()<true>();
  else
    encode.template operator()<false>();
  schedule::clear_padding<Format>(warp, layout, payload.data());
  return payload;
}

/// kernels/cuda/block_kernels.hpp: decode_add_blocks.
template <class Format>
void replay_decode_blocks(const std::vector<std::byte>& payload, const law::BlockLayout& layout, float weight,
                          std::span<float> out, std::uint32_t order) {
  const HostWarp warp{lane_order(order)};
  for (const std::size_t p : item_order(schedule::BlockPiece::pieces(layout), order)) {
    const schedule::BlockPiece piece{layout, p};
    if (piece.count == 0) continue;
    schedule::decode_piece<Format>(
        warp, layout, piece, at_byte<std::uint32_t>(payload, layout.codes_offset()) + piece.first_word,
        at_byte<typename Format::Scale>(payload, 0), weight, out.data(), sixteen(out.data()));
  }
}

/// kernels/cuda/natural.cu: natural_encode, natural_decode_add.
inline std::vector<std::byte> replay_natural_encode(std::span<const float> x, const law::DrawKey& key,
                                                    std::uint32_t order) {
  constexpr std::size_t kPiece = 1024;
  const std::size_t exponents = (x.size() + 3) / 4 * 4;
  std::vector<std::byte> payload(exponents + (x.size() + 31) / 32 * 4, std::byte{0xA5});
  for (const std::size_t p : item_order((x.size() + kPiece - 1) / kPiece, order)) {
    const std::size_t count = std::min(kPiece, x.size() - p * kPiece);
    schedule::natural_encode(HostWarp{lane_order(order)}, x.data() + p * kPiece, p * kPiece, count, sixteen(x.data()),
                             key, at_byte<std::uint32_t>(payload, 0), at_byte<std::uint32_t>(payload, exponents));
  }
  return payload;
}
inline void replay_natural_decode(const std::vector<std::byte>& payload, float weight, std::span<float> out,
                                  std::uint32_t order) {
  constexpr std::size_t kPiece = 1024;
  const std::size_t exponents = (out.size() + 3) / 4 * 4;
  for (const std::size_t p : item_order((out.size() + kPiece - 1) / kPiece, order)) {
    const std::size_t count = std::min(kPiece, out.size() - p * kPiece);
    schedule::natural_decode(HostWarp{lane_order(order)}, at_byte<std::uint32_t>(payload, 0),
                             at_byte<std::uint32_t>(payload, exponents), p * kPiece, count, weight,
                             out.data() + p * kPiece, sixteen(out.data()));
  }
}

/// kernels/cuda/fft_pack.cu: pack_spectrum, of what a sort selects. `spectrum` holds header.bins pairs.
inline std::vector<std::byte> replay_fft_pack(const std::vector<float>& spectrum, law::FftHeader header,
                                              const law::RangeFloat& format, float unit, bool scaled,
                                              std::uint32_t order) {
  const law::FftLayout layout{header.bins, header.kept, header.bits};
  const HostWarp warp{lane_order(order)};
  std::vector<std::byte> payload(layout.bytes(), std::byte{0xA5});
  std::vector<std::size_t> bins(layout.bins);
  std::iota(bins.begin(), bins.end(), std::size_t{0});
  const auto power = [&](std::size_t bin) { return law::power_pattern(spectrum[2 * bin], spectrum[2 * bin + 1]); };
  std::ranges::stable_sort(bins, [&](std::size_t a, std::size_t b) { return power(a) > power(b); });
  bins.resize(layout.kept);
  std::ranges::sort(bins);
  if (layout.has_bitmap()) {
    auto* bitmap = at_byte<std::uint32_t>(payload, sizeof header);
    std::fill_n(bitmap, layout.bitmap_words(), 0u);
    for (const std::size_t bin : bins) bitmap[bin / 32] |= 1u << bin % 32;
  }
  std::vector<float> kept;
  for (const std::size_t bin : bins) kept.insert(kept.end(), {spectrum[2 * bin], spectrum[2 * bin + 1]});
  std::uint32_t largest = 0;
  for (const float value : kept) largest = std::max(largest, law::bits_of(value) & 0x7fffffffu);
  const bool quantised = header.bits != 32;
  const schedule::Scaling scaling = schedule::scaling_of(largest, unit, quantised, scaled);
  header.scale = scaling.scale;
  std::memcpy(payload.data(), &header, sizeof header);
  auto* words = at_byte<std::uint32_t>(payload, layout.codes_offset());
  for (std::size_t i = 0; !quantised && i < kept.size(); ++i)
    words[i] = law::bits_of(law::times(kept[i], scaling.factor));
  const std::size_t windows = (kept.size() + schedule::kCodeWindow - 1) / schedule::kCodeWindow;
  for (const std::size_t window : item_order(quantised ? windows : 0, order)) {
    std::array<std::uint32_t, schedule::kCodeRoom> room;
    room.fill(0xA5A5A5A5u);
    schedule::quantise_window(warp, kept.data(), window * schedule::kCodeWindow, kept.size(), scaling.factor, format,
                              room.data(), words);
  }
  return payload;
}

/// kernels/cuda/fft_unpack.cu: open_spectra, and unpack_spectra for `rows` rows of bins. Returns expected.bins pairs.
inline std::vector<float> replay_fft_unpack(const std::vector<std::vector<std::byte>>& payloads,
                                            const law::FftHeader& expected, const law::RangeFloat& format,
                                            const law::FftShape& shape, std::uint32_t order, std::size_t rows = 1) {
  const HostWarp warp{lane_order(order)};
  const std::size_t tiles = schedule::tiles_of(expected.bins);
  std::vector<std::uint32_t> offsets(payloads.size() * tiles + 1, 0xA5A5A5A5u);
  std::vector<schedule::Opened> opened(payloads.size());
  std::memset(opened.data(), 0xA5, sizeof(schedule::Opened) * opened.size());
  schedule::Unpacking at{};
  for (const auto& payload : payloads) at.payloads[at.count++] = {payload.data(), payload.size()};
  at.expected = expected;
  at.formats = law::RangeFormats::only(expected.mantissa, format);
  at.chunk_bins = static_cast<std::uint32_t>(shape.bins_per_chunk());
  at.real_end = shape.length % 2 == 0;
  at.real_tail = shape.tail != 0 && shape.tail % 2 == 0;
  at.offsets = offsets.data();
  at.opened = opened.data();
  const std::size_t warps = (tiles + schedule::kLanes - 1) / schedule::kLanes;
  for (const std::size_t i : item_order(payloads.size() * warps, order))
    schedule::count_marked(warp, at, static_cast<std::uint32_t>(i / warps), i % warps * schedule::kLanes);
  offsets.back() = 0;
  std::exclusive_scan(offsets.begin(), offsets.end(), offsets.begin(), 0u);
  schedule::open_payloads(warp, at);
  std::vector<float> all;
  for (std::size_t row = 0; row < rows; ++row) {
    at.first = row * expected.bins / rows;
    at.last = (row + 1) * expected.bins / rows;
    std::vector<float> spectrum(2 * (at.last - at.first), -7.0F);
    at.spectrum = spectrum.data();
    const std::size_t first = at.first / schedule::kTileBins;
    for (const std::size_t tile : item_order(schedule::tiles_of(at.last) - first, order)) {
      std::vector<schedule::Pair> values(schedule::kTileBins, {-7.0F, -7.0F});
      schedule::unpack_tile(warp, at, first + tile, values.data());
    }
    all.insert(all.end(), spectrum.begin(), spectrum.end());
  }
  return all;
}

}  // namespace gradtool::test
