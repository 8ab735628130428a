#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "kernels/cuda/fft_pack.hpp"
#include "kernels/cuda/vector.hpp"
#include "lib/codecs/cuda/fft_plans.hpp"
#include "lib/codecs/cuda/twin.hpp"
#include "lib/codecs/cuda_factories.hpp"
#include "lib/codecs/fft_options.hpp"
#include "lib/codecs/payload.hpp"

namespace gradtool {
namespace {

using DeviceBytes = View<std::byte, Space::cuda>;

/// The fft codec with cuFFT. Transforms round differently from FFTW's, so payloads are the same from run to run on one
/// kind of GPU; everything behind the transform gives the host's bytes.
class CudaFft final : public CudaTwin {
 public:
  explicit CudaFft(const Params& params) : CudaTwin{"fft", params}, options_{params} {}

  [[nodiscard]] Footprint plan(std::size_t n) const override {
    if (n < law::kFftSmallest) return {.payload_bytes = 4 * n};
    const law::FftShape shape = options_.shape(n);
    const cuda::RealTransforms& transforms = plans_.make(shape);
    return {.payload_bytes = options_.payload_bound(n),
            .scratch_bytes = Scratch::bytes(shape, transforms),
            .exact = options_.constant()};
  }

  void encode(Queue<Space::cuda> queue, View<const float, Space::cuda> gradient, const EncodeContext& context,
              DeviceBytes payload, DeviceBytes scratch) const override {
    const std::size_t n = gradient.size();
    if (n < law::kFftSmallest) return cuda::copy(queue, payload.first(gradient.bytes()), as_bytes(gradient));
    const law::FftShape shape = options_.shape(n);
    const cuda::RealTransforms& transforms = plans_.get(shape);
    const Scratch at{shape, transforms, scratch};
    transforms.forward(queue, whole_rows(queue, gradient, shape, at), at.spectrum, at.transform);
    const std::size_t kept = FftOptions::kept(options_.theta(context), shape.bins());
    cuda::pack_spectrum(queue, {at.spectrum, at.keys, at.real, at.work}, options_.header(shape.bins(), kept, 0.0F),
                        options_.format(), unit(shape), options_.scaled(), payload.data());
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
    const cuda::RealTransforms& transforms = plans_.get(shape);
    const Scratch at{shape, transforms, scratch};
    for (std::size_t first = 0; first < payloads.size(); first += cuda::kMostUnpacked) {
      const auto batch = payloads.subspan(first, std::min(cuda::kMostUnpacked, payloads.size() - first));
      cuda::unpack_spectra(queue, batch, options_.header(shape.bins(), 0, 0.0F), options_.format(), shape, at.spectrum,
                           at.work);
      transforms.inverse(queue, at.spectrum, at.real, at.transform);
      cuda::add_scaled(queue, {at.real, n}, weight * unit(shape), out);
    }
  }

 private:
  /// Pieces of the scratch view, each 256-byte aligned; encode and decode use them differently.
  struct Scratch {
    float* real;           ///< rows, the last one padded; later the kept components
    float* spectrum;       ///< bins (re, im), chunks in a row
    std::uint32_t* keys;   ///< for selection
    std::byte* transform;  ///< cuFFT's work area
    DeviceBytes work;      ///< of packing and unpacking

    static std::size_t padded(std::size_t bytes) { return Arena<Space::cuda>::padded_size(bytes); }
    static std::size_t real_bytes(const law::FftShape& shape) {
      return padded(4 * std::max(shape.length * shape.chunks, 2 * shape.bins()));
    }
    /// What lies in front of `work`.
    static std::size_t front_bytes(const law::FftShape& shape, const cuda::RealTransforms& transforms) {
      return real_bytes(shape) + padded(8 * shape.bins()) + padded(4 * shape.bins()) + padded(transforms.work_bytes());
    }
    static std::size_t bytes(const law::FftShape& shape, const cuda::RealTransforms& transforms) {
      return front_bytes(shape, transforms) +
             std::max(cuda::pack_work_bytes(shape.bins()), cuda::unpack_work_bytes(shape.bins()));
    }

    Scratch(const law::FftShape& shape, const cuda::RealTransforms& transforms, DeviceBytes view) {
      const std::size_t front = front_bytes(shape, transforms);
      expects(view.size() > front, "fft: scratch is smaller than planned");
      std::byte* next = view.data();
      real = reinterpret_cast<float*>(next);
      next += real_bytes(shape);
      spectrum = reinterpret_cast<float*>(next);
      next += padded(8 * shape.bins());
      keys = reinterpret_cast<std::uint32_t*>(next);
      next += padded(4 * shape.bins());
      transform = next;
      work = view.part(front, view.size() - front);
    }
  };

  static float unit(const law::FftShape& shape) {
    return static_cast<float>(1.0 / std::sqrt(static_cast<double>(shape.length)));
  }

  /// The gradient as whole rows for the transform: itself where it is, else a copy padded with zeros.
  static const float* whole_rows(Queue<Space::cuda> queue, View<const float, Space::cuda> gradient,
                                 const law::FftShape& shape, const Scratch& at) {
    const std::size_t padding = shape.length * shape.chunks - gradient.size();
    if (padding == 0 && reinterpret_cast<std::uintptr_t>(gradient.data()) % 16 == 0) return gradient.data();
    const View<float, Space::cuda> rows{at.real, gradient.size() + padding};
    cuda::copy(queue, as_writable_bytes(rows.first(gradient.size())), as_bytes(gradient));
    cuda::fill(queue, as_writable_bytes(rows.part(gradient.size(), padding)), 0);
    return rows.data();
  }

  /// What can be told without reading the payload, which lies on the GPU. Throws Fault::data.
  void check_length(std::size_t bytes, std::size_t n) const {
    const std::size_t bound = options_.payload_bound(n);
    if (n < law::kFftSmallest || options_.constant()) return expect_length("fft", bytes, bound);
    if (bytes < sizeof(law::FftHeader) || bytes > bound || bytes % 4 != 0) {
      throw Error{Fault::data,
                  fmt::format("fft payload: {} bytes, but this many elements make a multiple of 4 from {} to {}", bytes,
                              sizeof(law::FftHeader), bound)};
    }
  }

  FftOptions options_;
  CudaFftPlans plans_;
};

}  // namespace

std::unique_ptr<Codec<Space::cuda>> make_cuda_fft(const Params& params) {
  return std::make_unique<CudaFft>(params);
}

}  // namespace gradtool
