#include "lib/codecs/fft_transform.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/host/half_round.hpp"
#include "kernels/host/largest.hpp"
#include "kernels/host/real_transform.hpp"
#include "kernels/law/half_rows.hpp"
#include "lib/core/task_pool.hpp"

namespace gradtool {
namespace {

/// body(part, piece) for all pieces; a part's pieces come one after the other.
template <class Body>
void for_pieces(Queue<Space::host> queue, const law::FftShape& shape, const Body& body) {
  const std::size_t parts = std::min(FftScratch::parts(shape), part_count(queue, shape.pieces(), 1));
  parallel_parts(queue, shape.pieces(), parts, 1, [&](std::size_t part, std::size_t piece, std::size_t last) {
    for (; piece < last; ++piece) body(part, piece);
  });
}

}  // namespace

void FftTransform::plan(const law::FftShape& shape) const {
  plans_.make(shape.length);
  if (shape.tail > 0) plans_.make(shape.tail);
}

float FftTransform::unit_of(std::size_t length) {
  return static_cast<float>(1.0 / std::sqrt(static_cast<double>(length)));
}

void FftTransform::forward(Queue<Space::host> queue, HostView<const float> gradient, const law::FftShape& shape,
                           const FftScratch& at) const {
  for_pieces(queue, shape, [&](std::size_t part, std::size_t piece) {
    float* real = at.real + part * FftScratch::padded(shape.length);
    float* complex = at.complex + part * FftScratch::padded(2 * shape.bins_per_chunk());
    const std::size_t first = piece * shape.length;
    const std::size_t length = shape.piece_length(piece);
    const std::size_t count = std::min(length, gradient.size() - first);
    const std::size_t bins = shape.piece_bins(piece);
    std::memcpy(real, gradient.data() + first, count * sizeof(float));
    std::fill(real + count, real + length, 0.0F);
    if (options_.half()) host::round_to_half(real, length, law::kHalfTopIn);
    plans_.get(length).forward(real, complex);
    if (options_.half()) host::round_to_half(complex, 2 * bins, law::kHalfTopOut);
    // As if the tail had the length of the others, so that bins compare by their unitary coefficients.
    const float level = length == shape.length ? 1.0F : unit_of(length) / unit_of(shape.length);
    const std::size_t bin = shape.first_bin(piece);
    host::keep_power(complex, bins, level, at.spectrum + 2 * bin, at.power + bin);
  });
}

void FftTransform::select(Queue<Space::host> queue, double theta, const law::FftShape& shape, const FftScratch& at,
                          HostView<std::uint32_t> positions) const {
  if (!options_.by_piece()) {
    const HostView<std::byte> selector{at.selector, FftScratch::selector_bytes(options_, shape)};
    host::Largest{queue, {at.power, shape.bins()}, selector}.select(positions, nullptr);
    return;
  }
  const std::size_t of_chunk = options_.kept_of(theta, shape.bins_per_chunk());
  const std::size_t bytes = FftScratch::selector_bytes(options_, shape) / FftScratch::parts(shape);
  for_pieces(queue, shape, [&](std::size_t part, std::size_t piece) {
    const std::size_t bin = shape.first_bin(piece);
    const auto own = positions.part(piece * of_chunk, options_.kept_of(theta, shape.piece_bins(piece)));
    host::Largest{{}, {at.power + bin, shape.piece_bins(piece)}, {at.selector + part * bytes, bytes}}.select(own,
                                                                                                             nullptr);
    for (auto& position : own.span()) position += static_cast<std::uint32_t>(bin);
  });
}

void FftTransform::inverse(Queue<Space::host> queue, std::span<const host::PackedSpectrum> spectra, float weight,
                           const law::FftShape& shape, const FftScratch& at, HostView<float> out) const {
  for_pieces(queue, shape, [&](std::size_t part, std::size_t piece) {
    float* real = at.real + part * FftScratch::padded(shape.length);
    float* complex = at.complex + part * FftScratch::padded(2 * shape.bins_per_chunk());
    const std::size_t length = shape.piece_length(piece);
    const std::size_t bins = shape.piece_bins(piece);
    std::fill_n(complex, 2 * bins, 0.0F);
    for (const auto& spectrum : spectra) host::unpack_add(spectrum, piece, shape, complex);
    complex[1] = 0.0F;  // the ends of a real signal's spectrum are real
    if (length % 2 == 0) complex[2 * bins - 1] = 0.0F;
    plans_.get(length).inverse(complex, real);
    const std::size_t first = piece * shape.length;
    host::add_scaled(real, std::min(length, out.size() - first), weight * unit_of(length), out.data() + first);
  });
}

}  // namespace gradtool
