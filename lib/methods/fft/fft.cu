#include <cuda_runtime.h>

#include <algorithm>

#include "kernels/cuda/launch.hpp"
#include "kernels/cuda/runtime.hpp"
#include "kernels/cuda/warp.hpp"
#include "kernels/transform.hpp"
#include "kernels/vector.hpp"
#include "lib/codecs/gpu_codec.hpp"
#include "lib/codecs/payload.hpp"
#include "lib/codecs/per_device.hpp"
#include "lib/core/scratch.hpp"
#include "lib/methods/fft/gpu.hpp"
#include "lib/methods/fft/options.hpp"

namespace gradtool {
namespace cuda {
namespace {

constexpr std::size_t kRowTile = 1024;  ///< floats of a row that a warp takes at a time

__host__ __device__ std::size_t tiles_of(const HalfRows& rows) {
  return (rows.length + kRowTile - 1) / kRowTile;
}

/// body(row, first, count) by a warp for each tile that falls to it: floats [first, first + count) of all rows.
template <class Body>
__device__ void for_row_tiles(const HalfRows& rows, const Body& body) {
  const std::size_t tiles = tiles_of(rows);
  for (std::size_t i = warp_in_grid(); i < rows.rows * tiles; i += warps_in_grid()) {
    const std::size_t row = i / tiles;
    const std::size_t in_row = (i - row * tiles) * kRowTile;
    body(row, row * rows.length + in_row, min(kRowTile, rows.length - in_row));
  }
}

__global__ void largest_of_rows_kernel(HalfRows rows) {
  for_row_tiles(rows, [&](std::size_t row, std::size_t first, std::size_t count) {
    const std::size_t end = min(first + count, rows.given);
    std::uint32_t largest = 0;
#pragma unroll 8
    for (std::size_t i = first + lane_in_warp(); i < end; i += kWarpSize)
      largest = max(largest, format::bits_of(rows.in[i]) & 0x7fffffffu);
    largest = __reduce_max_sync(kAllLanes, largest);
    if (lane_in_warp() == 0) atomicMax(rows.largest + row, largest);
  });
}

__global__ void round_rows_kernel(HalfRows rows) {
  for_row_tiles(rows, [&](std::size_t row, std::size_t first, std::size_t count) {
    const auto rounding = format::HalfRounding::of(rows.largest[row], rows.top);
#pragma unroll 8
    for (std::size_t i = first + lane_in_warp(); i < first + count; i += kWarpSize)
      rows.out[i] = i < rows.given ? rounding.round(rows.in[i]) : 0.0f;
  });
}

}  // namespace

void round_rows_to_half(Queue<Space::cuda> queue, const HalfRows& rows) {
  if (rows.rows * rows.length == 0) return;
  fill(queue, {reinterpret_cast<std::byte*>(rows.largest), 4 * rows.rows}, 0);
  const unsigned blocks = blocks_for(rows.rows * tiles_of(rows), kThreads / kWarpSize);
  launch(queue, "fft largest of rows", largest_of_rows_kernel, blocks, rows);
  launch(queue, "fft round rows", round_rows_kernel, blocks, rows);
}

}  // namespace cuda

namespace {

using Bytes = View<std::byte, Space::cuda>;

/// Elements that are transformed at a time. Their spectrum, their rows and cuFFT's work area together take 36 MiB,
/// which fits into the 40 to 60 MiB of second-level cache of data-centre GPUs.
constexpr std::size_t kGroup = std::size_t{3} << 20;

/// The fft codec with cuFFT. cuFFT rounds differently from FFTW, so payloads are the same from run to run on one kind
/// of GPU, and not those of the CPU. precision=fp16 rounds around a transform in float32, as on the CPU: cuFFT's own
/// transforms in binary16 take only powers of two and round in between as well.
///
/// Chunks are transformed in groups, small enough that the next kernel finds in the GPU's cache what the one before
/// left and large enough to keep the GPU busy. The tail is a group of its own.
class CudaFft final : public GpuCodec {
 public:
  CudaFft(const Params& params, std::size_t group) : GpuCodec{"fft", params}, options_{params}, group_{group} {}

  [[nodiscard]] const FftOptions& options() const { return options_; }

  [[nodiscard]] Footprint plan(std::size_t n) const override {
    if (n < format::kFftSmallest) return {.payload_bytes = 4 * n};
    const format::FftShape shape = options_.shape(n);
    for_groups(shape, [&](const Group& group) {
      plans_.make([&] { return std::make_unique<const cuda::RealTransforms>(group.length, group.rows); }, group.length,
                  group.rows);
    });
    return {.payload_bytes = options_.payload_bound(n),
            .scratch_bytes = planned<Workspace>(*this, shape),
            .exact = options_.constant()};
  }

  void encode(Queue<Space::cuda> queue, View<const float, Space::cuda> gradient, const EncodeContext& context,
              Bytes payload, Bytes scratch) const override {
    encode_with(queue, gradient, context, payload, scratch, nullptr);
  }

  /// Encodes; `calibration`, unless it is null, decides how the kept bins are coded and learns from them.
  void encode_with(Queue<Space::cuda> queue, View<const float, Space::cuda> gradient, const EncodeContext& context,
                   Bytes payload, Bytes scratch, const cuda::Calibration* calibration) const {
    const std::size_t n = gradient.size();
    if (n < format::kFftSmallest) return cuda::copy(queue, payload.first(gradient.bytes()), as_bytes(gradient));
    const format::FftShape shape = options_.shape(n);
    const Workspace workspace{*this, shape, Scratch<Space::cuda>{scratch}};
    transform(queue, gradient, shape, workspace);
    const double theta = options_.theta(context);
    const std::size_t kept = options_.kept(theta, shape);
    const cuda::PieceShares shares{
        shape, static_cast<std::uint32_t>(options_.kept_of(theta, shape.bins_per_chunk())),
        shape.tail == 0 ? 0U : static_cast<std::uint32_t>(options_.kept_of(theta, shape.tail_bins()))};
    // The strongest bins of a single piece are the strongest of all, so the whole GPU selects them.
    const bool by_piece = options_.by_piece() && shape.pieces() > 1;
    cuda::pack_spectrum(queue,
                        {.spectrum = workspace.spectrum.data(),
                         .kept = workspace.kept.data(),
                         .work = workspace.packing,
                         .header = options_.header(shape.bins(), kept),
                         .formats = options_.formats(),
                         .unit = format::unitary_factor(shape.length),
                         .to_peak = options_.scaled_to_peak(),
                         .shares = by_piece ? &shares : nullptr,
                         .calibration = calibration},
                        payload.data());
  }

  void decode_add(Queue<Space::cuda> queue, View<const std::byte, Space::cuda> payload, float weight,
                  View<float, Space::cuda> out, Bytes scratch) const override {
    decode_add_all(queue, {&payload, 1}, weight, out, scratch);
  }

  /// The transform is linear, so the spectra are added first and transformed back once.
  void decode_add_all(Queue<Space::cuda> queue, std::span<const View<const std::byte, Space::cuda>> payloads,
                      float weight, View<float, Space::cuda> out, Bytes scratch) const override {
    const std::size_t n = out.size();
    for (const auto& payload : payloads) check_length(payload.size(), n);
    if (n < format::kFftSmallest) {
      for (const auto& payload : payloads) cuda::add_scaled(queue, elements<float>(payload, 0, n), weight, out);
      return;
    }
    const format::FftShape shape = options_.shape(n);
    const Workspace workspace{*this, shape, Scratch<Space::cuda>{scratch}};
    for (std::size_t first = 0; first < payloads.size(); first += cuda::kMostUnpacked) {
      const cuda::PackedSpectra spectra{payloads.subspan(first, std::min(cuda::kMostUnpacked, payloads.size() - first)),
                                        options_.header(shape.bins(), 0), options_.formats(), shape, workspace.packing};
      cuda::open_spectra(queue, spectra);
      for_groups(shape, [&](const Group& group) {
        float* real = workspace.real.data();
        cuda::unpack_spectra(queue, spectra, group.first_bin, group.bins(), workspace.spectrum.data());
        plans_.get(group.length, group.rows)
            ->inverse(queue, workspace.spectrum.data(), real, workspace.transform.data());
        const std::size_t count = std::min(group.elements(), n - group.first);
        cuda::add_scaled(queue, {real, count}, weight * format::unitary_factor(group.length),
                         out.part(group.first, count));
      });
    }
  }

  [[nodiscard]] std::unique_ptr<Encoder<Space::cuda>> make_encoder(std::size_t n, int ranks,
                                                                   Queue<Space::cuda> queue) const override;

 private:
  /// Pieces of one length that are transformed together: rows of a matrix.
  struct Group {
    std::size_t length, rows;
    std::size_t first, first_bin;  ///< where the group begins in the gradient and in the spectrum
    [[nodiscard]] std::size_t elements() const { return length * rows; }
    [[nodiscard]] std::size_t row_bins() const { return length / 2 + 1; }
    [[nodiscard]] std::size_t bins() const { return row_bins() * rows; }
  };

  /// body(group) for groups of chunks, all but the last of one size, and for the tail. There are at most three kinds of
  /// groups, and so at most three plans of cuFFT.
  template <class Body>
  void for_groups(const format::FftShape& shape, const Body& body) const {
    const std::size_t most_rows = std::max<std::size_t>(group_ / shape.length, 1);
    const std::size_t groups = (shape.chunks + most_rows - 1) / most_rows;
    const std::size_t rows = (shape.chunks + groups - 1) / groups;
    for (std::size_t chunk = 0; chunk < shape.chunks; chunk += rows) {
      body(Group{shape.length, std::min(rows, shape.chunks - chunk), chunk * shape.length, shape.first_bin(chunk)});
    }
    if (shape.tail > 0) body(Group{shape.tail, 1, shape.chunks * shape.length, shape.first_bin(shape.chunks)});
  }

  /// Working memory of one call of encode or decode. The plans of the shape must exist.
  struct Workspace {
    Workspace(const CudaFft& codec, const format::FftShape& shape, Scratch<Space::cuda> scratch) {
      const FftOptions& options = codec.options_;
      std::size_t elements = 0, rows = 0, transform_bytes = 0;
      codec.for_groups(shape, [&](const Group& group) {
        elements = std::max(elements, group.elements());
        rows = std::max(rows, group.rows);
        transform_bytes = std::max(transform_bytes, codec.plans_.get(group.length, group.rows)->work_bytes());
      });
      real = scratch.take<float>(elements);
      spectrum = scratch.take<float>(2 * shape.bins());
      kept = scratch.take<float>(2 * options.most_kept(shape));
      row_largest = scratch.take<std::uint32_t>(options.half() ? rows : 0);
      transform = scratch.take_bytes(transform_bytes);
      packing =
          scratch.take_bytes(std::max(cuda::pack_work_bytes(shape.bins()), cuda::unpack_work_bytes(shape.bins())));
    }
    View<float, Space::cuda> real;                 ///< the signal of one group
    View<float, Space::cuda> spectrum;             ///< encode: (re, im) of all bins; decode: of one group
    View<float, Space::cuda> kept;                 ///< (re, im) of the kept bins
    View<std::uint32_t, Space::cuda> row_largest;  ///< precision=fp16: HalfRows::largest
    Bytes transform;                               ///< cuFFT's work area
    Bytes packing;                                 ///< of pack_spectrum and unpack_spectra
    std::size_t bytes = 0;
  };

  /// The group's part of the gradient as cuFFT needs it: aligned, as long as the group, and rounded with
  /// precision=fp16. It is the gradient itself where that will do, otherwise a copy with zeros behind the end.
  [[nodiscard]] const float* input_of(Queue<Space::cuda> queue, View<const float, Space::cuda> gradient,
                                      const Group& group, const Workspace& workspace) const {
    const std::size_t given = std::min(group.elements(), gradient.size() - group.first);
    const auto part = gradient.part(group.first, given);
    float* real = workspace.real.data();
    if (options_.half()) {
      cuda::round_rows_to_half(queue, {part.data(), real, group.rows, group.length, given,
                                       format::HalfRounding::kInputTop, workspace.row_largest.data()});
      return real;
    }
    if (given == group.elements() && cuda::aligned_to(part.data(), 16)) return part.data();
    const View<float, Space::cuda> copy{real, group.elements()};
    cuda::copy_elements(queue, copy.first(given), part);
    cuda::fill(queue, as_writable_bytes(copy.part(given, group.elements() - given)), 0);
    return real;
  }

  /// workspace.spectrum := that of all pieces. The tail's bins are scaled as if it had the length of a chunk, so that
  /// bins compare by their unitary coefficients.
  void transform(Queue<Space::cuda> queue, View<const float, Space::cuda> gradient, const format::FftShape& shape,
                 const Workspace& workspace) const {
    for_groups(shape, [&](const Group& group) {
      float* spectrum = workspace.spectrum.data() + 2 * group.first_bin;
      plans_.get(group.length, group.rows)
          ->forward(queue, input_of(queue, gradient, group, workspace), spectrum, workspace.transform.data());
      if (options_.half()) {
        cuda::round_rows_to_half(queue, {spectrum, spectrum, group.rows, 2 * group.row_bins(), 2 * group.bins(),
                                         format::HalfRounding::kOutputTop, workspace.row_largest.data()});
      }
      if (group.length != shape.length) {
        cuda::scale(queue, {spectrum, 2 * group.bins()},
                    format::unitary_factor(group.length) / format::unitary_factor(shape.length));
      }
    });
  }

  /// Checks what can be told without reading the payload, which lies on the GPU. Throws Fault::data.
  void check_length(std::size_t bytes, std::size_t n) const {
    const std::size_t bound = options_.payload_bound(n);
    if (n < format::kFftSmallest || options_.constant()) return expect_length("fft", bytes, bound);
    expect_room("fft", bytes, sizeof(format::FftHeader), bound);
  }

  FftOptions options_;
  std::size_t group_;
  PerDevice<std::unique_ptr<const cuda::RealTransforms>, std::size_t, std::size_t> plans_;  ///< by length and rows
};

/// Keeps what range=calibrated has learnt from step to step.
class CudaFftEncoder final : public Encoder<Space::cuda> {
 public:
  CudaFftEncoder(const CudaFft& codec, Queue<Space::cuda> queue)
      : codec_{codec},
        state_{sizeof(cuda::DeviceCalibrationState)},
        samples_{4 * CalibrationRules::kSamplesPerStep * codec.options().calibration_steps()},
        errors_{8 * format::RangeFormats::kMantissas},
        calibration_{.rules = CalibrationRules{codec.options()},
                     .chooses_mantissa = codec.options().mantissa_varies(),
                     .device = state_.as<cuda::DeviceCalibrationState>().data(),
                     .samples = samples_.as<float>().data(),
                     .errors = errors_.as<double>().data()} {
    CudaFftEncoder::reset(queue);
  }

  void encode(Queue<Space::cuda> queue, View<const float, Space::cuda> gradient,
              const SideInputs<Space::cuda>& /*side*/, const EncodeContext& context, Bytes payload,
              Bytes scratch) override {
    codec_.encode_with(queue, gradient, context, payload, scratch, &calibration_);
  }

  void visit_state(StateVisitor& /*visitor*/) override {
    throw Error{Fault::unavailable, "what is kept between steps cannot be saved from the memory of a GPU"};
  }
  void reset(Queue<Space::cuda> queue) override {
    cuda::DeviceCalibrationState initial{};
    initial.state.start(calibration_.rules);
    cuda::copy(queue, state_.bytes(),
               HostView<const std::byte>{reinterpret_cast<const std::byte*>(&initial), sizeof initial});
  }

  /// Waits for the GPU.
  [[nodiscard]] std::string note() const override {
    cuda::DeviceCalibrationState current{};
    cuda::synchronize_device();
    cuda::copy({}, HostView<std::byte>{reinterpret_cast<std::byte*>(&current), sizeof current}, state_.bytes());
    cuda::synchronize({});
    return current.state.note();
  }

 private:
  const CudaFft& codec_;
  cuda::DeviceBuffer state_, samples_, errors_;
  cuda::Calibration calibration_;
};

std::unique_ptr<Encoder<Space::cuda>> CudaFft::make_encoder(std::size_t n, int /*ranks*/,
                                                            Queue<Space::cuda> queue) const {
  if (!options_.calibrated() || n < format::kFftSmallest) return nullptr;
  return std::make_unique<CudaFftEncoder>(*this, queue);
}

std::unique_ptr<Codec<Space::cuda>> make_cuda_fft(const Params& params, const Layout& /*layout*/) {
  return cuda::make_fft(params, kGroup);
}

}  // namespace

std::unique_ptr<Codec<Space::cuda>> cuda::make_fft(const Params& params, std::size_t group) {
  return std::make_unique<CudaFft>(params, group);
}

extern constinit const GpuFactories fft_gpu{.codec = make_cuda_fft};

}  // namespace gradtool
