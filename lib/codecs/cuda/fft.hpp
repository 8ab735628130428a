#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "kernels/cuda/fft_calibrate.hpp"
#include "kernels/cuda/fft_transform.hpp"
#include "lib/codecs/cuda/fft_scratch.hpp"
#include "lib/codecs/cuda/per_device.hpp"
#include "lib/codecs/cuda/twin.hpp"
#include "lib/codecs/fft_options.hpp"

namespace gradtool {

/// The fft codec with cuFFT. Transforms round differently from FFTW's, so payloads are the same from run to run on one
/// kind of GPU; everything behind the transform gives the host's bytes. precision=fp16 rounds around a transform in
/// float32, as the host does: cuFFT's own half transforms, for powers of two alone, would round in between as well.
///
/// Chunks are transformed in groups, small enough that what one kernel leaves for the next is still in the GPU's cache
/// and large enough to keep the GPU busy. The tail is a group of its own.
class CudaFft final : public CudaTwin {
 public:
  using Bytes = View<std::byte, Space::cuda>;
  /// A spectrum, its rows and cuFFT's work area are 36 MiB then, of the 40 to 60 that GPUs of this class keep.
  static constexpr std::size_t kGroup = std::size_t{3} << 20;

  /// `group`: elements that are transformed at a time, unless a chunk has more; for tests.
  explicit CudaFft(const Params& params, std::size_t group = kGroup)
      : CudaTwin{"fft", params}, options_{params}, group_{group} {}

  [[nodiscard]] Footprint plan(std::size_t n) const override;
  void encode(Queue<Space::cuda> queue, View<const float, Space::cuda> gradient, const EncodeContext& context,
              Bytes payload, Bytes scratch) const override {
    encode_with(queue, gradient, context, payload, scratch, nullptr);
  }
  /// With `calibration`, that decides on the range.
  void encode_with(Queue<Space::cuda> queue, View<const float, Space::cuda> gradient, const EncodeContext& context,
                   Bytes payload, Bytes scratch, const cuda::Calibration* calibration) const;
  void decode_add(Queue<Space::cuda> queue, View<const std::byte, Space::cuda> payload, float weight,
                  View<float, Space::cuda> out, Bytes scratch) const override {
    decode_add_all(queue, {&payload, 1}, weight, out, scratch);
  }
  /// The transform is linear, so the spectra are added and transformed back once.
  void decode_add_all(Queue<Space::cuda> queue, std::span<const View<const std::byte, Space::cuda>> payloads,
                      float weight, View<float, Space::cuda> out, Bytes scratch) const override;
  [[nodiscard]] std::unique_ptr<Encoder<Space::cuda>> make_encoder(std::size_t n, int ranks,
                                                                   Queue<Space::cuda> queue) const override;
  [[nodiscard]] const FftOptions& options() const { return options_; }

 private:
  /// Rows of one length that are transformed together.
  struct Rows {
    std::size_t length, count;
    std::size_t first, first_bin;  ///< in the gradient and in the spectrum
    [[nodiscard]] std::size_t elements() const { return length * count; }
    [[nodiscard]] std::size_t row_bins() const { return length / 2 + 1; }
    [[nodiscard]] std::size_t bins() const { return row_bins() * count; }
    /// Makes the transform of this length unitary.
    [[nodiscard]] float unit() const { return unit_of(length); }
  };
  static float unit_of(std::size_t length);
  template <class Body>
  void each_group(const law::FftShape& shape, const Body& body) const;

  [[nodiscard]] const float* input_of(Queue<Space::cuda> queue, View<const float, Space::cuda> gradient,
                                      const Rows& rows, const CudaFftScratch& at) const;
  void transform(Queue<Space::cuda> queue, View<const float, Space::cuda> gradient, const law::FftShape& shape,
                 const CudaFftScratch& at) const;
  [[nodiscard]] CudaFftScratch places(const law::FftShape& shape, Bytes scratch) const;
  void check_length(std::size_t bytes, std::size_t n) const;

  FftOptions options_;
  std::size_t group_;
  PerDevice<std::unique_ptr<const cuda::RealTransforms>, std::size_t, std::size_t> plans_;  ///< by length and rows
};

}  // namespace gradtool
