
#include <algorithm>
#include <array>
#include <cstring>

#include "lib/codecs/payload.hpp"
#include "lib/codecs/registry.hpp"
#include "lib/core/throw_error.hpp"
#include "lib/methods/fft/calibration.hpp"
#include "lib/methods/fft/options.hpp"
#include "lib/methods/fft/spectrum.hpp"

namespace gradtool {
namespace {

/// Transforms the gradient, keeps the strongest bins, quantises and packs them (Wang et al., HPDC 2020, section 3.1).
class Fft final : public Codec<Space::host> {
 public:
  explicit Fft(const Params& params) : options_{params} {}

  [[nodiscard]] const FftOptions& options() const { return options_; }

  [[nodiscard]] Footprint plan(std::size_t n) const override {
    if (n < format::kFftSmallest) return {.payload_bytes = 4 * n, .exact = true};
    const format::FftShape shape = options_.shape(n);
    transform_.plan(shape);
    return {.payload_bytes = options_.payload_bound(n),
            .scratch_bytes = planned<FftWorkspace>(options_, shape),
            .exact = options_.constant()};
  }

  void encode(Queue<Space::host> queue, HostView<const float> gradient, const EncodeContext& context,
              HostView<std::byte> payload, HostView<std::byte> scratch) const override {
    encode_with(queue, gradient, context, payload, scratch, nullptr);
  }

  /// Encodes; `calibration`, unless it is null, decides how the kept bins are coded and learns from them.
  void encode_with(Queue<Space::host> queue, HostView<const float> gradient, const EncodeContext& context,
                   HostView<std::byte> payload, HostView<std::byte> scratch, FftCalibration* calibration) const {
    const std::size_t n = gradient.size();
    if (n < format::kFftSmallest) {
      if (n > 0) std::memcpy(payload.data(), gradient.data(), 4 * n);
      return;
    }
    const format::FftShape shape = options_.shape(n);
    const FftWorkspace workspace{options_, shape, Scratch<Space::host>{scratch}};
    transform_.forward(queue, gradient, shape, workspace);
    const double theta = options_.theta(context);
    const std::size_t count = options_.kept(theta, shape);
    const bool all = count == shape.bins();
    const HostView<std::uint32_t> positions = workspace.positions.first(count);
    if (!all) transform_.select(queue, theta, shape, workspace, positions);
    const host::KeptBins kept =
        host::take_bins(queue, workspace.spectrum.data(), shape.bins(), positions, all, workspace.kept.data());
    const float unit = format::unitary_factor(shape.length);
    format::FftScaling scaling;
    std::uint32_t mantissa = options_.mantissa();
    if (calibration != nullptr) {
      const CalibrationStep step = calibration->next(kept, unit);
      scaling = step.scaling;
      mantissa = step.mantissa;
    } else {
      scaling = format::FftScaling::of(kept.largest, unit, options_.scaled_to_peak());
    }
    host::write_payload(queue, kept, options_.header(shape.bins(), count, mantissa),
                        options_.formats().format[mantissa], scaling, payload.data());
  }

  void decode_add(Queue<Space::host> queue, HostView<const std::byte> payload, float weight, HostView<float> out,
                  HostView<std::byte> scratch) const override {
    decode_add_all(queue, {&payload, 1}, weight, out, scratch);
  }

  /// The transform is linear, so the spectra are added first and transformed back once.
  void decode_add_all(Queue<Space::host> queue, std::span<const HostView<const std::byte>> payloads, float weight,
                      HostView<float> out, HostView<std::byte> scratch) const override {
    constexpr std::size_t kMostSummed = FftWorkspace::kMostSummed;
    const std::size_t n = out.size();
    if (n < format::kFftSmallest) {
      for (const auto& payload : payloads) {
        expect_length("fft", payload.size(), 4 * n);
        for (std::size_t i = 0; i < n; ++i) out[i] += weight * section<float>(payload)[i];
      }
      return;
    }
    const format::FftShape shape = options_.shape(n);
    const FftWorkspace workspace{options_, shape, Scratch<Space::host>{scratch}};
    for (std::size_t first = 0; first < payloads.size(); first += kMostSummed) {
      const auto batch = payloads.subspan(first, std::min(kMostSummed, payloads.size() - first));
      std::array<host::PackedSpectrum, kMostSummed> spectra;
      for (std::size_t i = 0; i < batch.size(); ++i) {
        const std::uint32_t mantissa = mantissa_of(batch[i]);
        const auto offsets = workspace.offsets.part(i * shape.pieces(), shape.pieces());
        spectra[i] = host::open_spectrum(batch[i], options_.header(shape.bins(), 0, mantissa),
                                         options_.formats().format[mantissa], shape, offsets.span());
      }
      transform_.inverse(queue, {spectra.data(), batch.size()}, weight, shape, workspace, out);
    }
  }

  [[nodiscard]] ErrorBound bound(std::size_t n) const override { return options_.bound(n); }

  [[nodiscard]] std::size_t values_sent(std::size_t n) const override {
    return n < format::kFftSmallest ? n : 2 * options_.kept(options_.largest_theta(), options_.shape(n));
  }
  [[nodiscard]] std::size_t values_in(HostView<const std::byte> payload, std::size_t n) const override {
    return n < format::kFftSmallest ? n : 2 * std::size_t{section<format::FftHeader>(payload)->kept};
  }

  [[nodiscard]] std::unique_ptr<Encoder<Space::host>> make_encoder(std::size_t n, int ranks,
                                                                   Queue<Space::host> queue) const override;

 private:
  /// m of a payload: what its header says where calibration chooses it, otherwise that of the parameters.
  [[nodiscard]] std::uint32_t mantissa_of(HostView<const std::byte> payload) const {
    if (!options_.mantissa_varies() || payload.size() < sizeof(format::FftHeader)) return options_.mantissa();
    const std::uint32_t mantissa = section<format::FftHeader>(payload)->mantissa;
    if (!options_.formats().has(mantissa))
      throw_error(Fault::data, "fft payload: no format has {} mantissa bits", mantissa);
    return mantissa;
  }

  FftOptions options_;
  FftTransform transform_{options_};
};

/// Keeps what range=calibrated has learnt from step to step.
class FftEncoder final : public Encoder<Space::host> {
 public:
  explicit FftEncoder(const Fft& codec) : codec_{codec}, calibration_{codec.options()} {}

  void encode(Queue<Space::host> queue, HostView<const float> gradient, const SideInputs<Space::host>& /*side*/,
              const EncodeContext& context, HostView<std::byte> payload, HostView<std::byte> scratch) override {
    codec_.encode_with(queue, gradient, context, payload, scratch, &calibration_);
  }
  void reset(Queue<Space::host> /*queue*/) override { calibration_.reset(); }
  void visit_state(StateVisitor& visitor) override { calibration_.visit_state(visitor); }
  [[nodiscard]] std::string note() const override { return calibration_.note(); }

 private:
  const Fft& codec_;
  FftCalibration calibration_;
};

std::unique_ptr<Encoder<Space::host>> Fft::make_encoder(std::size_t n, int /*ranks*/,
                                                        Queue<Space::host> /*queue*/) const {
  if (!options_.calibrated() || n < format::kFftSmallest) return nullptr;
  return std::make_unique<FftEncoder>(*this);
}

constexpr ParamInfo kParams[] = {
    real_param("theta", "0.85", {0.0, 1.0}, "share of the frequencies that is dropped")
        .searched("0.5|0.7|0.85|0.95|0.99"),
    integer_param("bits", "10", {4, 32}, "bits per real number sent, 4 to 16; 32 sends float32").searched("6|8|10|12"),
    integer_param(
        "mantissa", "auto", {0, 15},
        "mantissa bits of the range-based float; auto is bits-4, eight octaves, or what calibration finds best")
        .or_words("auto"),
    real_param("range", "auto", {1e-30, 1e30},
               "largest unitary coefficient that has a code; auto scales each payload to fit, calibrated takes the "
               "largest of the first steps")
        .or_words("auto|calibrated"),
    integer_param("calibrate", "5", {1, 1000}, "steps that range=calibrated learns from"),
    choice_param("rounding", "truncate", "truncate|nearest", "truncate as in the paper, or round half up"),
    integer_param("chunk", "65536", {64, 1 << 26},
                  "longest transform; larger tensors are cut, the last piece is shorter")
        .or_words("whole"),
    choice_param("select", "global", "global|chunk",
                 "the strongest frequencies of all chunks, or the same share of each"),
    choice_param("precision", "fp32", "fp32|fp16",
                 "fp16 rounds what the encoder transforms and what comes out, scaled by powers of two, to binary16"),
    choice_param(
        "schedule", "constant", "constant|sqrt_lr|drop",
        "theta over training: constant; falling with the square root of the learning rate; theta_end from drop_at on"),
    real_param("theta_end", "0", {0.0, 1.0}, "theta from iteration drop_at on, with schedule=drop"),
    integer_param("drop_at", "0", {0, 1e15}, "first training iteration with theta_end")};

}  // namespace

extern constinit const CodecDescriptor fft_codec{
    .name = "fft",
    .summary = "sends the strongest frequencies as range-based floats, and a bitmap of which they are",
    .reference = "Wang et al., FFT-based Gradient Sparsification, HPDC 2020, arXiv 1811.08596",
    .params = kParams,
    .determinism = Determinism::run_to_run,
    .payload = "256 + B + 2 bits K bits, B = L/2+1 bins for each transform, K = round((1-theta) B)",
    .make_host = make_method_codec<Space::host, Fft>,
};

}  // namespace gradtool
