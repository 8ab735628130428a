#include "lib/codecs/adacomp_payload.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "kernels/host/marks.hpp"
#include "kernels/law/adacomp.hpp"
#include "lib/codecs/payload.hpp"
#include "lib/core/error.hpp"

namespace gradtool {
namespace {

using law::AdaComp;

template <class Entry>
void write_bins(const AdaCompBins& bins, const AdaCompBins::Piece& piece, const std::uint32_t* marks,
                HostView<const float> gradient, float* residue, float scale, std::byte* counts_at, std::size_t place) {
  const AdaCompBins::Tensor& tensor = bins.tensors[piece.tensor];
  auto* counts = reinterpret_cast<Entry*>(counts_at);
  auto* entries = counts + tensor.bins + place;
  const bool finite = scale < HUGE_VALF;
  const std::uint32_t* words = marks + piece.word;
  for (std::size_t b = 0; b < piece.bins; ++b, words += (tensor.bin + 31) / 32) {
    const std::size_t first = piece.first + b * tensor.bin;
    const std::size_t count = std::min(tensor.bin, piece.first + piece.count - first);
    const auto* begin = entries;
    host::for_marked(words, count, [&](std::size_t j) {
      const float sum = residue != nullptr ? residue[first + j] : gradient[first + j];
      *entries++ = static_cast<Entry>(j << 2 | AdaComp::code(sum));
      if (residue == nullptr) return;
      residue[first + j] = finite ? sum - law::float_of(law::bits_of(scale) | (law::bits_of(sum) & 0x80000000u)) : 0.0F;
    });
    counts[piece.first_bin + b] = static_cast<Entry>(entries - begin);
  }
}

template <class Entry>
std::size_t place_pieces(const AdaCompBins& bins, const AdaCompBins::Tensor& tensor, HostView<const std::byte> tail,
                         AdaCompFound* places) {
  if (tail.size() < tensor.bytes(0)) bad_adacomp_payload("too short for its counts");
  const auto* counts = section<Entry>(tail);
  std::size_t total = 0;
  for (std::size_t i = tensor.first_piece; i < tensor.last_piece; ++i) {
    places[i].place = static_cast<std::uint32_t>(total);
    const auto* own = counts + bins.pieces[i].first_bin;
    for (std::size_t b = 0; b < bins.pieces[i].bins; ++b) total += own[b];
  }
  if (total > tensor.elements || tail.size() < tensor.bytes(total)) bad_adacomp_payload("too short for its entries");
  return tensor.bytes(total);
}

template <class Entry>
void add_bins(const AdaCompBins& bins, const AdaCompBins::Piece& piece, HostView<const std::byte> tail,
              std::size_t place, float scale, HostView<float> out) {
  const AdaCompBins::Tensor& tensor = bins.tensors[piece.tensor];
  const auto* counts = section<Entry>(tail);
  const auto* entry = counts + tensor.bins + place;
  for (std::size_t b = 0; b < piece.bins; ++b) {
    const std::size_t first = piece.first + b * tensor.bin;
    const std::size_t count = std::min(tensor.bin, piece.first + piece.count - first);
    std::size_t least = 0;
    for (std::size_t left = counts[piece.first_bin + b]; left > 0; --left, ++entry) {
      const std::size_t j = *entry >> 2;
      const std::uint32_t code = *entry & 3u;
      if (j < least || j >= count || code == 0 || code == 3)
        bad_adacomp_payload("its entries do not ascend, go past the end of a bin, or have no sign");
      least = j + 1;
      out[first + j] += law::float_of(law::bits_of(scale) ^ (code - AdaComp::kPositive) << 31);
    }
  }
}

}  // namespace

void adacomp_write(const AdaCompBins& bins, const AdaCompBins::Piece& piece, const std::uint32_t* marks,
                   HostView<const float> gradient, float* residue, float scale, std::byte* counts, std::size_t place) {
  if (bins.tensors[piece.tensor].width() == 1)
    write_bins<std::uint8_t>(bins, piece, marks, gradient, residue, scale, counts, place);
  else
    write_bins<std::uint16_t>(bins, piece, marks, gradient, residue, scale, counts, place);
}

std::size_t adacomp_place(const AdaCompBins& bins, const AdaCompBins::Tensor& tensor, HostView<const std::byte> tail,
                          AdaCompFound* places) {
  return tensor.width() == 1 ? place_pieces<std::uint8_t>(bins, tensor, tail, places)
                             : place_pieces<std::uint16_t>(bins, tensor, tail, places);
}

void adacomp_add(const AdaCompBins& bins, const AdaCompBins::Piece& piece, HostView<const std::byte> tail,
                 std::size_t place, float scale, HostView<float> out) {
  if (bins.tensors[piece.tensor].width() == 1)
    add_bins<std::uint8_t>(bins, piece, tail, place, scale, out);
  else
    add_bins<std::uint16_t>(bins, piece, tail, place, scale, out);
}

void bad_adacomp_payload(const char* what) {
  throw Error{Fault::data, fmt::format("adacomp payload: {}", what)};
}

}  // namespace gradtool
