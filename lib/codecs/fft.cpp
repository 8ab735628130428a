#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <utility>

#include "kernels/host/fft_pack.hpp"
#include "kernels/host/real_transform.hpp"
#include "kernels/host/select.hpp"
#include "lib/codecs/cuda_factories.hpp"
#include "lib/codecs/fft_options.hpp"
#include "lib/codecs/fft_plans.hpp"
#include "lib/codecs/payload.hpp"
#include "lib/codecs/registry.hpp"
#include "lib/core/task_pool.hpp"

namespace gradtool {
namespace {

constexpr std::size_t kMaxSummed = 16;  // payloads that share one inverse transform

constexpr std::size_t padded(std::size_t floats) {
  return (floats + 63) / 64 * 64;
}

/// Transform, keep the strongest bins, quantise, pack (Wang et al., HPDC 2020, section 3.1).
class Fft final : public Codec<Space::host> {
 public:
  explicit Fft(const Params& params) : options_{params} {}

  [[nodiscard]] Footprint plan(std::size_t n) const override {
    if (n < law::kFftSmallest) return {.payload_bytes = 4 * n, .exact = true};
    const law::FftShape shape = options_.shape(n);
    plans_.make(shape.length);
    return {.payload_bytes = options_.payload_bound(n),
            .scratch_bytes = Scratch::bytes(shape),
            .exact = options_.constant()};
  }

  void encode(Queue<Space::host> queue, HostView<const float> gradient, const EncodeContext& context,
              HostView<std::byte> payload, HostView<std::byte> scratch) const override {
    const std::size_t n = gradient.size();
    if (n < law::kFftSmallest) {
      if (n > 0) std::memcpy(payload.data(), gradient.data(), 4 * n);
      return;
    }
    const law::FftShape shape = options_.shape(n);
    const Scratch at{shape, scratch};
    const host::RealTransform& transform = plans_.get(shape.length);
    forward(queue, transform, gradient, shape, at);
    const std::size_t kept = FftOptions::kept(options_.theta(context), shape.bins());
    const auto unit = static_cast<float>(1.0 / std::sqrt(static_cast<double>(shape.length)));
    host::pack_spectrum(queue, {at.spectrum, at.keys, at.kept, at.selector}, options_.header(shape.bins(), kept, 0.0F),
                        options_.format(), unit, options_.scaled(), payload.data());
  }

  void decode_add(Queue<Space::host> queue, HostView<const std::byte> payload, float weight, HostView<float> out,
                  HostView<std::byte> scratch) const override {
    decode_add_all(queue, {&payload, 1}, weight, out, scratch);
  }

  /// The transform is linear, so the spectra are added and transformed back once.
  void decode_add_all(Queue<Space::host> queue, std::span<const HostView<const std::byte>> payloads, float weight,
                      HostView<float> out, HostView<std::byte> scratch) const override {
    const std::size_t n = out.size();
    if (n < law::kFftSmallest) {
      for (const auto& payload : payloads) {
        expect_length("fft", payload.size(), 4 * n);
        for (std::size_t i = 0; i < n; ++i) out[i] += weight * section<float>(payload)[i];
      }
      return;
    }
    const law::FftShape shape = options_.shape(n);
    const Scratch at{shape, scratch};
    for (std::size_t first = 0; first < payloads.size(); first += kMaxSummed) {
      const auto batch = payloads.subspan(first, std::min(kMaxSummed, payloads.size() - first));
      std::array<host::PackedSpectrum, kMaxSummed> spectra;
      for (std::size_t i = 0; i < batch.size(); ++i) {
        spectra[i] = host::open_spectrum(batch[i], options_.header(shape.bins(), 0, 0.0F), shape,
                                         {at.offsets + i * shape.chunks, shape.chunks});
        spectra[i].format = options_.format();
      }
      inverse(queue, plans_.get(shape.length), {spectra.data(), batch.size()}, weight, shape, at, out);
    }
  }

  /// Dropping the smallest theta of the bins leaves at most theta of the energy, counted once a bin; inner bins count
  /// twice and the first and last once, hence the factor 2. Quantising adds 2^-m of each component, and eps of the
  /// largest to those that underflow.
  [[nodiscard]] ErrorBound bound(std::size_t n) const override {
    if (n < law::kFftSmallest) return {.nmse = 0.0, .of_largest = 0.0};
    if (!options_.scaled()) return {};  // a fixed range clips what it does not cover
    const std::size_t bins = options_.shape(n).bins();
    const double kept = static_cast<double>(FftOptions::kept(options_.largest_theta(), bins));
    const double dropped = std::sqrt(std::min(1.0, 2.0 * (1.0 - kept / static_cast<double>(bins))));
    const bool plain = options_.bits() == 32;
    const double relative = plain ? 1e-6 : std::ldexp(1.0, -static_cast<int>(options_.mantissa()));
    const double underflow = plain ? 0.0 : static_cast<double>(options_.format().eps()) * std::sqrt(4.0 * kept);
    const double norm = dropped + relative + underflow + 1e-6;
    return {.nmse = norm * norm};
  }

  [[nodiscard]] std::size_t values_sent(std::size_t n) const override {
    return n < law::kFftSmallest ? n : 2 * FftOptions::kept(options_.largest_theta(), options_.shape(n).bins());
  }

 private:
  /// Pieces of the scratch view; encode and decode use it differently.
  struct Scratch {
    static constexpr std::size_t kParts = 16;  // chunks that are in work at once

    float* spectrum;         ///< bins (re, im), chunks in a row
    std::uint32_t* keys;     ///< |X|^2 as ordered patterns
    float* kept;             ///< components of the kept bins
    float* real;             ///< a chunk for each part
    float* complex;          ///< and its spectrum, aligned as FFTW wants
    std::uint32_t* offsets;  ///< first kept bin of each chunk, for each summed payload
    HostView<std::byte> selector;

    static std::size_t parts(const law::FftShape& shape) { return std::min(kParts, shape.chunks); }
    static std::size_t bytes(const law::FftShape& shape) {
      const std::size_t floats = 2 * padded(2 * shape.bins()) + padded(shape.bins()) +
                                 parts(shape) * (padded(shape.length) + padded(2 * shape.bins_per_chunk())) +
                                 padded(kMaxSummed * shape.chunks);
      return 4 * floats + host::Selector::scratch_bytes();
    }
    Scratch(const law::FftShape& shape, HostView<std::byte> view) {
      auto* next = reinterpret_cast<float*>(view.data());
      const auto take = [&next](std::size_t floats) { return std::exchange(next, next + padded(floats)); };
      spectrum = take(2 * shape.bins());
      kept = take(2 * shape.bins());
      keys = reinterpret_cast<std::uint32_t*>(take(shape.bins()));
      real = next;
      next += parts(shape) * padded(shape.length);
      complex = next;
      next += parts(shape) * padded(2 * shape.bins_per_chunk());
      offsets = reinterpret_cast<std::uint32_t*>(take(kMaxSummed * shape.chunks));
      selector = {reinterpret_cast<std::byte*>(next), host::Selector::scratch_bytes()};
    }
  };

  static std::size_t chunk_parts(Queue<Space::host> queue, const law::FftShape& shape) {
    return std::min(Scratch::parts(shape), part_count(queue, shape.chunks, 1));
  }

  static void forward(Queue<Space::host> queue, const host::RealTransform& transform, HostView<const float> gradient,
                      const law::FftShape& shape, const Scratch& at) {
    const std::size_t bins = shape.bins_per_chunk();
    parallel_parts(queue, shape.chunks, chunk_parts(queue, shape), 1,
                   [&](std::size_t part, std::size_t chunk, std::size_t last) {
                     float* real = at.real + part * padded(shape.length);
                     float* complex = at.complex + part * padded(2 * bins);
                     for (; chunk < last; ++chunk) {
                       const std::size_t first = chunk * shape.length;
                       const std::size_t count = std::min(shape.length, gradient.size() - first);
                       std::memcpy(real, gradient.data() + first, count * sizeof(float));
                       std::fill(real + count, real + shape.length, 0.0F);
                       transform.forward(real, complex);
                       host::keep_keys(complex, bins, at.spectrum + 2 * chunk * bins, at.keys + chunk * bins);
                     }
                   });
  }

  static void inverse(Queue<Space::host> queue, const host::RealTransform& transform,
                      std::span<const host::PackedSpectrum> spectra, float weight, const law::FftShape& shape,
                      const Scratch& at, HostView<float> out) {
    const std::size_t bins = shape.bins_per_chunk();
    const auto unit = static_cast<float>(1.0 / std::sqrt(static_cast<double>(shape.length)));
    parallel_parts(queue, shape.chunks, chunk_parts(queue, shape), 1,
                   [&](std::size_t part, std::size_t chunk, std::size_t last) {
                     float* real = at.real + part * padded(shape.length);
                     float* complex = at.complex + part * padded(2 * bins);
                     for (; chunk < last; ++chunk) {
                       std::fill_n(complex, 2 * bins, 0.0F);
                       for (const auto& spectrum : spectra) host::unpack_add(spectrum, chunk, bins, complex);
                       complex[1] = 0.0F;  // the ends of a real signal's spectrum are real
                       if (shape.length % 2 == 0) complex[2 * bins - 1] = 0.0F;
                       transform.inverse(complex, real);
                       const std::size_t first = chunk * shape.length;
                       const std::size_t count = std::min(shape.length, out.size() - first);
                       host::add_scaled(real, count, weight * unit, out.data() + first);
                     }
                   });
  }

  FftOptions options_;
  FftPlans plans_;
};

constexpr ParamInfo kParams[] = {
    {.name = "theta",
     .kind = ParamInfo::Kind::real,
     .default_value = "0.85",
     .min = 0.0,
     .max = 1.0,
     .meaning = "share of the frequencies that is dropped"},
    {.name = "bits",
     .kind = ParamInfo::Kind::integer,
     .default_value = "10",
     .min = 4,
     .max = 32,
     .meaning = "bits per real number sent, 4 to 16; 32 sends float32"},
    {.name = "mantissa",
     .kind = ParamInfo::Kind::integer,
     .default_value = "auto",
     .min = 0,
     .max = 15,
     .choices = "auto",
     .meaning = "mantissa bits of the range-based float; auto is bits-4, eight octaves"},
    {.name = "range",
     .kind = ParamInfo::Kind::real,
     .default_value = "auto",
     .min = 1e-30,
     .max = 1e30,
     .choices = "auto",
     .meaning = "largest unitary coefficient that has a code; auto scales each payload to fit"},
    {.name = "rounding",
     .kind = ParamInfo::Kind::choice,
     .default_value = "truncate",
     .choices = "truncate|nearest",
     .meaning = "truncate as in the paper, or round half up"},
    {.name = "chunk",
     .kind = ParamInfo::Kind::integer,
     .default_value = "65536",
     .min = 64,
     .max = 1 << 26,
     .choices = "whole",
     .meaning = "longest transform; larger tensors are cut, the last piece padded with zeros"},
    {.name = "schedule",
     .kind = ParamInfo::Kind::choice,
     .default_value = "constant",
     .choices = "constant|sqrt_lr|drop",
     .meaning =
         "theta over training: constant; falling with the square root of the learning rate; theta_end from drop_at on"},
    {.name = "theta_end",
     .kind = ParamInfo::Kind::real,
     .default_value = "0",
     .min = 0.0,
     .max = 1.0,
     .meaning = "theta from iteration drop_at on, with schedule=drop"},
    {.name = "drop_at",
     .kind = ParamInfo::Kind::integer,
     .default_value = "0",
     .min = 0,
     .max = 1e15,
     .meaning = "first training iteration with theta_end"}};

}  // namespace

extern constinit const CodecDescriptor fft_codec{
    .name = "fft",
    .summary = "strongest frequencies as range-based floats, with a bitmap",
    .reference = "Wang et al., FFT-based Gradient Sparsification, HPDC 2020, arXiv 1811.08596",
    .params = kParams,
    .aggregation = Aggregation::gather,
    .determinism = Determinism::run_to_run,
    .payload = "256 + B + 2 bits K bits, B = L/2+1 bins a chunk, K = round((1-theta) B)",
    .make_host = [](const Params& p, const Layout&) -> std::unique_ptr<Codec<Space::host>> {
      return std::make_unique<Fft>(p);
    },
    .make_cuda = GT_MAKE_CUDA(make_cuda_fft),
};

}  // namespace gradtool
