#include "lib/codecs/cuda/fft.hpp"

#include <algorithm>
#include <cmath>

#include "kernels/cuda/half_rows.hpp"
#include "kernels/cuda/vector.hpp"
#include "kernels/law/half_rows.hpp"
#include "lib/codecs/cuda_factories.hpp"
#include "lib/codecs/payload.hpp"

namespace gradtool {

float CudaFft::unit_of(std::size_t length) {
  return static_cast<float>(1.0 / std::sqrt(static_cast<double>(length)));
}

/// body(rows) for groups of chunks, all but the last of one size, and for the tail. At most three plans are needed.
template <class Body>
void CudaFft::each_group(const law::FftShape& shape, const Body& body) const {
  const std::size_t most = std::max<std::size_t>(group_ / shape.length, 1);
  const std::size_t groups = (shape.chunks + most - 1) / most;
  const std::size_t rows = (shape.chunks + groups - 1) / groups;
  for (std::size_t chunk = 0; chunk < shape.chunks; chunk += rows) {
    body(Rows{shape.length, std::min(rows, shape.chunks - chunk), chunk * shape.length, shape.first_bin(chunk)});
  }
  if (shape.tail > 0) body(Rows{shape.tail, 1, shape.chunks * shape.length, shape.first_bin(shape.chunks)});
}

CudaFftScratch CudaFft::places(const law::FftShape& shape, Bytes scratch) const {
  std::size_t elements = 0, rows = 0, transform_bytes = 0;
  each_group(shape, [&](const Rows& group) {
    elements = std::max(elements, group.elements());
    rows = std::max(rows, group.count);
    transform_bytes = std::max(transform_bytes, plans_.get(group.length, group.count)->work_bytes());
  });
  return {options_, shape, elements, rows, transform_bytes, scratch};
}

Footprint CudaFft::plan(std::size_t n) const {
  if (n < law::kFftSmallest) return {.payload_bytes = 4 * n};
  const law::FftShape shape = options_.shape(n);
  each_group(shape, [&](const Rows& rows) {
    plans_.make([&] { return std::make_unique<const cuda::RealTransforms>(rows.length, rows.count); }, rows.length,
                rows.count);
  });
  return {.payload_bytes = options_.payload_bound(n),
          .scratch_bytes = places(shape, {}).bytes,
          .exact = options_.constant()};
}

/// Rows of the gradient for the transform: themselves where they are, else a copy, with zeros behind the end.
const float* CudaFft::input_of(Queue<Space::cuda> queue, View<const float, Space::cuda> gradient, const Rows& rows,
                               const CudaFftScratch& at) const {
  const std::size_t given = std::min(rows.elements(), gradient.size() - rows.first);
  const auto here = gradient.part(rows.first, given);
  if (options_.half()) {
    cuda::round_rows_to_half(queue,
                             {here.data(), at.real, rows.count, rows.length, given, law::kHalfTopIn, at.row_largest});
    return at.real;
  }
  if (given == rows.elements() && reinterpret_cast<std::uintptr_t>(here.data()) % 16 == 0) return here.data();
  const View<float, Space::cuda> copy{at.real, rows.elements()};
  cuda::copy_elements(queue, copy.first(given), here);
  cuda::fill(queue, as_writable_bytes(copy.part(given, rows.elements() - given)), 0);
  return copy.data();
}

/// The spectra of all rows, on the scale of the chunks', so that bins compare by their unitary coefficients.
void CudaFft::transform(Queue<Space::cuda> queue, View<const float, Space::cuda> gradient, const law::FftShape& shape,
                        const CudaFftScratch& at) const {
  each_group(shape, [&](const Rows& rows) {
    float* spectrum = at.spectrum + 2 * rows.first_bin;
    plans_.get(rows.length, rows.count)->forward(queue, input_of(queue, gradient, rows, at), spectrum, at.transform);
    if (options_.half()) {
      cuda::round_rows_to_half(queue, {spectrum, spectrum, rows.count, 2 * rows.row_bins(), 2 * rows.bins(),
                                       law::kHalfTopOut, at.row_largest});
    }
    if (rows.length != shape.length)
      cuda::scale(queue, {spectrum, 2 * rows.bins()}, rows.unit() / unit_of(shape.length));
  });
}

void CudaFft::encode_with(Queue<Space::cuda> queue, View<const float, Space::cuda> gradient,
                          const EncodeContext& context, Bytes payload, Bytes scratch,
                          const cuda::Calibration* calibration) const {
  const std::size_t n = gradient.size();
  if (n < law::kFftSmallest) return cuda::copy(queue, payload.first(gradient.bytes()), as_bytes(gradient));
  const law::FftShape shape = options_.shape(n);
  const CudaFftScratch at = places(shape, scratch);
  transform(queue, gradient, shape, at);
  const double theta = options_.theta(context);
  const std::size_t kept = options_.kept(theta, shape);
  const cuda::PieceShares shares{
      shape, static_cast<std::uint32_t>(options_.kept_of(theta, shape.bins_per_chunk())),
      shape.tail == 0 ? 0U : static_cast<std::uint32_t>(options_.kept_of(theta, shape.tail_bins()))};
  // A single piece is selected by the whole GPU: its own strongest bins are the strongest of all.
  const bool by_piece = options_.by_piece() && shape.pieces() > 1;
  cuda::pack_spectrum(queue, {at.spectrum, at.kept, at.work}, options_.header(shape.bins(), kept), options_.formats(),
                      unit_of(shape.length), options_.scaled(), by_piece ? &shares : nullptr, calibration,
                      payload.data());
}

void CudaFft::decode_add_all(Queue<Space::cuda> queue, std::span<const View<const std::byte, Space::cuda>> payloads,
                             float weight, View<float, Space::cuda> out, Bytes scratch) const {
  const std::size_t n = out.size();
  for (const auto& payload : payloads) check_length(payload.size(), n);
  if (n < law::kFftSmallest) {
    for (const auto& payload : payloads) cuda::add_scaled(queue, elements<float>(payload, 0, n), weight, out);
    return;
  }
  const law::FftShape shape = options_.shape(n);
  const CudaFftScratch at = places(shape, scratch);
  for (std::size_t first = 0; first < payloads.size(); first += cuda::kMostUnpacked) {
    const cuda::PackedSpectra spectra{payloads.subspan(first, std::min(cuda::kMostUnpacked, payloads.size() - first)),
                                      options_.header(shape.bins(), 0), options_.formats(), shape, at.work};
    cuda::open_spectra(queue, spectra);
    each_group(shape, [&](const Rows& rows) {
      cuda::unpack_spectra(queue, spectra, rows.first_bin, rows.bins(), at.spectrum);
      plans_.get(rows.length, rows.count)->inverse(queue, at.spectrum, at.real, at.transform);
      const std::size_t count = std::min(rows.elements(), n - rows.first);
      cuda::add_scaled(queue, {at.real, count}, weight * rows.unit(), out.part(rows.first, count));
    });
  }
}

/// What can be told without reading the payload, which lies on the GPU. Throws Fault::data.
void CudaFft::check_length(std::size_t bytes, std::size_t n) const {
  const std::size_t bound = options_.payload_bound(n);
  if (n < law::kFftSmallest || options_.constant()) return expect_length("fft", bytes, bound);
  expect_room("fft", bytes, sizeof(law::FftHeader), bound);
}

std::unique_ptr<Codec<Space::cuda>> make_cuda_fft(const Params& params, const Layout& /*layout*/) {
  return std::make_unique<CudaFft>(params);
}

}  // namespace gradtool
