#include "kernels/cuda/runtime.hpp"
#include "lib/codecs/cuda/fft.hpp"
#include "lib/codecs/fft_calibration.hpp"

namespace gradtool {
namespace {

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
              const SideInputs<Space::cuda>& /*side*/, const EncodeContext& context, CudaFft::Bytes payload,
              CudaFft::Bytes scratch) override {
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

}  // namespace

std::unique_ptr<Encoder<Space::cuda>> CudaFft::make_encoder(std::size_t n, int /*ranks*/,
                                                            Queue<Space::cuda> queue) const {
  if (!options_.calibrated() || n < law::kFftSmallest) return nullptr;
  return std::make_unique<CudaFftEncoder>(*this, queue);
}

}  // namespace gradtool
