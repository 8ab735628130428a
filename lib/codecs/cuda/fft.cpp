#include <algorithm>
#include <cmath>

#include "kernels/cuda/fft_pack.hpp"
#include "kernels/cuda/vector.hpp"
#include "kernels/law/half_rows.hpp"
#include "lib/codecs/cuda/fft_plans.hpp"
#include "lib/codecs/cuda/twin.hpp"
#include "lib/codecs/cuda_factories.hpp"
#include "lib/codecs/fft_calibration.hpp"
#include "lib/codecs/fft_options.hpp"
#include "lib/codecs/payload.hpp"

namespace gradtool {
namespace {

using DeviceBytes = View<std::byte, Space::cuda>;

/// The fft codec with cuFFT. Transforms round differently from FFTW's, so payloads are the same from run to run on one
/// kind of GPU; everything behind the transform gives the host's bytes. precision=fp16 rounds around a transform in
/// float32, as the host does: cuFFT's own half transforms, for powers of two alone, would round in between as well.
class CudaFft final : public CudaTwin {
 public:
  explicit CudaFft(const Params& params) : CudaTwin{"fft", params}, options_{params} {}

  [[nodiscard]] Footprint plan(std::size_t n) const override {
    if (n < law::kFftSmallest) return {.payload_bytes = 4 * n};
    const law::FftShape shape = options_.shape(n);
    plans_.make(shape.length, shape.chunks);
    if (shape.tail > 0) plans_.make(shape.tail, 1);
    return {.payload_bytes = options_.payload_bound(n),
            .scratch_bytes = Scratch::bytes(shape, transforms(shape)),
            .exact = options_.constant()};
  }

  void encode(Queue<Space::cuda> queue, View<const float, Space::cuda> gradient, const EncodeContext& context,
              DeviceBytes payload, DeviceBytes scratch) const override {
    encode_with(queue, gradient, context, payload, scratch, nullptr);
  }

  /// With `calibration`, that decides on the range.
  void encode_with(Queue<Space::cuda> queue, View<const float, Space::cuda> gradient, const EncodeContext& context,
                   DeviceBytes payload, DeviceBytes scratch, const cuda::Calibration* calibration) const {
    const std::size_t n = gradient.size();
    if (n < law::kFftSmallest) return cuda::copy(queue, payload.first(gradient.bytes()), as_bytes(gradient));
    const law::FftShape shape = options_.shape(n);
    const Transforms transform = transforms(shape);
    const Scratch at{shape, transform, scratch};
    transform.chunks->forward(queue, rows_of(queue, gradient, shape, at), at.spectrum, at.transform);
    if (options_.half()) round_spectrum(queue, at, at.spectrum, shape.chunks, 2 * shape.bins_per_chunk());
    if (shape.tail > 0) {
      const std::size_t first = shape.length * shape.chunks;
      const auto left = gradient.part(first, gradient.size() - first);
      const View<float, Space::cuda> row{at.tail, shape.tail};
      cuda::copy(queue, as_writable_bytes(row.first(left.size())), as_bytes(left));
      cuda::fill(queue, as_writable_bytes(row.part(left.size(), shape.tail - left.size())), 0);
      if (options_.half())
        cuda::round_rows_to_half(queue, {at.tail, at.tail, 1, shape.tail, shape.tail, law::kHalfTopIn, at.keys});
      transform.tail->forward(queue, row.data(), at.tail_spectrum(shape), at.transform);
      if (options_.half()) round_spectrum(queue, at, at.tail_spectrum(shape), 1, 2 * shape.tail_bins());
      // As if the tail had the length of the others, so that bins compare by their unitary coefficients.
      cuda::scale(queue, {at.tail_spectrum(shape), 2 * shape.tail_bins()}, unit(shape.tail) / unit(shape.length));
    }
    const double theta = options_.theta(context);
    const std::size_t kept = options_.kept(theta, shape);
    const cuda::PieceShares shares{
        shape, static_cast<std::uint32_t>(options_.kept_of(theta, shape.bins_per_chunk())),
        shape.tail == 0 ? 0U : static_cast<std::uint32_t>(options_.kept_of(theta, shape.tail_bins()))};
    // A single piece is selected by the whole GPU: its own strongest bins are the strongest of all.
    const bool by_piece = options_.by_piece() && shape.pieces() > 1;
    cuda::pack_spectrum(queue, {at.spectrum, at.keys, at.real, at.work}, options_.header(shape.bins(), kept),
                        options_.formats(), unit(shape.length), options_.scaled(), by_piece ? &shares : nullptr,
                        calibration, payload.data());
  }

  void decode_add(Queue<Space::cuda> queue, View<const std::byte, Space::cuda> payload, float weight,
                  View<float, Space::cuda> out, DeviceBytes scratch) const override {
    decode_add_all(queue, {&payload, 1}, weight, out, scratch);
  }

  /// The transform is linear, so the spectra are added and transformed back once.
  void decode_add_all(Queue<Space::cuda> queue, std::span<const View<const std::byte, Space::cuda>> payloads,
                      float weight, View<float, Space::cuda> out, DeviceBytes scratch) const override {
    const std::size_t n = out.size();
    for (const auto& payload : payloads) check_length(payload.size(), n);
    if (n < law::kFftSmallest) {
      for (const auto& payload : payloads) cuda::add_scaled(queue, elements<float>(payload, 0, n), weight, out);
      return;
    }
    const law::FftShape shape = options_.shape(n);
    const Transforms transform = transforms(shape);
    const Scratch at{shape, transform, scratch};
    const std::size_t whole = std::min(n, shape.length * shape.chunks);
    for (std::size_t first = 0; first < payloads.size(); first += cuda::kMostUnpacked) {
      const auto batch = payloads.subspan(first, std::min(cuda::kMostUnpacked, payloads.size() - first));
      cuda::unpack_spectra(queue, batch, options_.header(shape.bins(), 0), options_.formats(), shape, at.spectrum,
                           at.work);
      transform.chunks->inverse(queue, at.spectrum, at.real, at.transform);
      cuda::add_scaled(queue, {at.real, whole}, weight * unit(shape.length), out.first(whole));
      if (shape.tail == 0) continue;
      transform.tail->inverse(queue, at.tail_spectrum(shape), at.tail, at.transform);
      cuda::add_scaled(queue, {at.tail, n - whole}, weight * unit(shape.tail), out.part(whole, n - whole));
    }
  }

  [[nodiscard]] const FftOptions& options() const { return options_; }
  [[nodiscard]] std::unique_ptr<Encoder<Space::cuda>> make_encoder(std::size_t n, int ranks,
                                                                   Queue<Space::cuda> queue) const override;

 private:
  /// cuFFT's plans for the rows of one length, and for the tail where there is one.
  struct Transforms {
    const cuda::RealTransforms* chunks;
    const cuda::RealTransforms* tail;
    [[nodiscard]] std::size_t work_bytes() const {
      return std::max(chunks->work_bytes(), tail == nullptr ? 0 : tail->work_bytes());
    }
  };
  [[nodiscard]] Transforms transforms(const law::FftShape& shape) const {
    return {&plans_.get(shape.length, shape.chunks), shape.tail == 0 ? nullptr : &plans_.get(shape.tail, 1)};
  }

  /// Pieces of the scratch view, each 256-byte aligned; encode and decode use them differently.
  struct Scratch {
    float* real;           ///< rows of the chunks; later the kept components
    float* tail;           ///< the shorter row
    float* spectrum;       ///< bins (re, im), chunks in a row
    std::uint32_t* keys;   ///< for selection
    std::byte* transform;  ///< cuFFT's work area
    DeviceBytes work;      ///< of packing and unpacking

    static std::size_t padded(std::size_t bytes) { return Arena<Space::cuda>::padded_size(bytes); }
    static std::size_t real_bytes(const law::FftShape& shape) {
      return padded(4 * std::max(shape.length * shape.chunks, 2 * shape.bins()));
    }
    /// What lies in front of `work`.
    static std::size_t front_bytes(const law::FftShape& shape, const Transforms& transforms) {
      return real_bytes(shape) + padded(4 * shape.tail) + padded(8 * shape.bins()) + padded(4 * shape.bins()) +
             padded(transforms.work_bytes());
    }
    static std::size_t bytes(const law::FftShape& shape, const Transforms& transforms) {
      return front_bytes(shape, transforms) +
             std::max(cuda::pack_work_bytes(shape.bins()), cuda::unpack_work_bytes(shape.bins()));
    }

    Scratch(const law::FftShape& shape, const Transforms& transforms, DeviceBytes view) {
      const std::size_t front = front_bytes(shape, transforms);
      expects(view.size() > front, "fft: scratch is smaller than planned");
      std::byte* next = view.data();
      real = reinterpret_cast<float*>(next);
      next += real_bytes(shape);
      tail = reinterpret_cast<float*>(next);
      next += padded(4 * shape.tail);
      spectrum = reinterpret_cast<float*>(next);
      next += padded(8 * shape.bins());
      keys = reinterpret_cast<std::uint32_t*>(next);
      next += padded(4 * shape.bins());
      transform = next;
      work = view.part(front, view.size() - front);
    }
    [[nodiscard]] float* tail_spectrum(const law::FftShape& shape) const {
      return spectrum + 2 * shape.first_bin(shape.chunks);
    }
  };

  static float unit(std::size_t length) { return static_cast<float>(1.0 / std::sqrt(static_cast<double>(length))); }

  /// The chunks' elements as rows for the transform: themselves where they are, else a copy.
  [[nodiscard]] const float* rows_of(Queue<Space::cuda> queue, View<const float, Space::cuda> gradient,
                                     const law::FftShape& shape, const Scratch& at) const {
    const std::size_t count = shape.length * shape.chunks;
    if (options_.half()) {
      cuda::round_rows_to_half(queue,
                               {gradient.data(), at.real, shape.chunks, shape.length, count, law::kHalfTopIn, at.keys});
      return at.real;
    }
    if (reinterpret_cast<std::uintptr_t>(gradient.data()) % 16 == 0) return gradient.data();
    const View<float, Space::cuda> rows{at.real, count};
    cuda::copy(queue, as_writable_bytes(rows), as_bytes(gradient.first(count)));
    return rows.data();
  }
  static void round_spectrum(Queue<Space::cuda> queue, const Scratch& at, float* spectrum, std::size_t rows,
                             std::size_t length) {
    cuda::round_rows_to_half(queue, {spectrum, spectrum, rows, length, rows * length, law::kHalfTopOut, at.keys});
  }

  /// What can be told without reading the payload, which lies on the GPU. Throws Fault::data.
  void check_length(std::size_t bytes, std::size_t n) const {
    const std::size_t bound = options_.payload_bound(n);
    if (n < law::kFftSmallest || options_.constant()) return expect_length("fft", bytes, bound);
    expect_room("fft", bytes, sizeof(law::FftHeader), bound);
  }

  FftOptions options_;
  CudaFftPlans plans_;
};

/// The memory of range=calibrated.
class CudaFftEncoder final : public Encoder<Space::cuda> {
 public:
  CudaFftEncoder(const CudaFft& codec, Queue<Space::cuda> queue)
      : codec_{codec},
        samples_{4 * cuda::Calibration::kSamples * codec.options().calibration_steps()},
        errors_{8 * law::RangeFormats::kMantissas},
        state_{sizeof(cuda::CalibrationState)},
        calibration_{.state = state_.as<cuda::CalibrationState>().data(),
                     .samples = samples_.as<float>().data(),
                     .errors = errors_.as<double>().data(),
                     .mantissa = codec.options().mantissa(),
                     .steps = static_cast<std::uint32_t>(codec.options().calibration_steps()),
                     .choose = codec.options().mantissa_varies()} {
    CudaFftEncoder::reset(queue);
  }

  void encode(Queue<Space::cuda> queue, View<const float, Space::cuda> gradient,
              const SideInputs<Space::cuda>& /*side*/, const EncodeContext& context, DeviceBytes payload,
              DeviceBytes scratch) override {
    codec_.encode_with(queue, gradient, context, payload, scratch, &calibration_);
  }
  void reset(Queue<Space::cuda> queue) override { cuda::fill(queue, state_.bytes(), 0); }

  /// Waits for the GPU.
  [[nodiscard]] std::string note() const override {
    cuda::CalibrationState state{};
    cuda::synchronize_device();
    cuda::copy({}, HostView<std::byte>{reinterpret_cast<std::byte*>(&state), sizeof state}, state_.bytes());
    cuda::synchronize({});
    const std::size_t steps = state.started == 0 ? calibration_.steps : state.steps_left;
    return FftCalibration::note_of(state.range, state.started == 0 ? calibration_.mantissa : state.mantissa, steps,
                                   state.recalibrations);
  }

 private:
  const CudaFft& codec_;
  cuda::DeviceBuffer samples_, errors_, state_;
  cuda::Calibration calibration_;
};

std::unique_ptr<Encoder<Space::cuda>> CudaFft::make_encoder(std::size_t n, int /*ranks*/,
                                                            Queue<Space::cuda> queue) const {
  if (!options_.calibrated() || n < law::kFftSmallest) return nullptr;
  return std::make_unique<CudaFftEncoder>(*this, queue);
}

}  // namespace

std::unique_ptr<Codec<Space::cuda>> make_cuda_fft(const Params& params, const Layout& /*layout*/) {
  return std::make_unique<CudaFft>(params);
}

}  // namespace gradtool
