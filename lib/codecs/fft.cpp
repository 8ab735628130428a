#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <utility>

#include "kernels/host/fft_pack.hpp"
#include "kernels/host/half_round.hpp"
#include "kernels/host/largest.hpp"
#include "kernels/host/real_transform.hpp"
#include "lib/codecs/cuda_factories.hpp"
#include "lib/codecs/fft_calibration.hpp"
#include "lib/codecs/fft_options.hpp"
#include "lib/codecs/fft_plans.hpp"
#include "lib/codecs/payload.hpp"
#include "lib/codecs/registry.hpp"
#include "lib/core/task_pool.hpp"

namespace gradtool {
namespace {

// precision=fp16: largest magnitudes lie below 2^top. The input leaves 2^8 for the sum to grow, the sum just fits.
constexpr int kHalfTopIn = 8;
constexpr int kHalfTopOut = 15;

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
    if (shape.tail > 0) plans_.make(shape.tail);
    return {.payload_bytes = options_.payload_bound(n),
            .scratch_bytes = Scratch::bytes(options_, shape),
            .exact = options_.constant()};
  }

  void encode(Queue<Space::host> queue, HostView<const float> gradient, const EncodeContext& context,
              HostView<std::byte> payload, HostView<std::byte> scratch) const override {
    encode_with(queue, gradient, context, payload, scratch, [&](const host::KeptBins& kept, float unit) {
      return FftCalibration::Choice{host::scaling_of(kept.largest, unit, options_.bits() != 32, options_.scaled()),
                                    options_.mantissa()};
    });
  }

  /// `choose(kept, unit)` says how the kept bins are scaled and with which m they are coded.
  template <class Choose>
  void encode_with(Queue<Space::host> queue, HostView<const float> gradient, const EncodeContext& context,
                   HostView<std::byte> payload, HostView<std::byte> scratch, const Choose& choose) const {
    const std::size_t n = gradient.size();
    if (n < law::kFftSmallest) {
      if (n > 0) std::memcpy(payload.data(), gradient.data(), 4 * n);
      return;
    }
    const law::FftShape shape = options_.shape(n);
    const Scratch at{options_, shape, scratch};
    forward(queue, gradient, shape, at);
    const double theta = options_.theta(context);
    const std::size_t count = options_.kept(theta, shape);
    const bool all = count == shape.bins();
    const HostView<std::uint32_t> positions{at.positions, count};
    if (!all) select(queue, theta, shape, at, positions);
    const host::KeptBins kept = host::take_bins(queue, at.spectrum, shape.bins(), positions, all, at.kept);
    const FftCalibration::Choice choice = choose(kept, unit_of(shape.length));
    host::write_payload(queue, kept, options_.header(shape.bins(), count, choice.mantissa),
                        options_.format_with(choice.mantissa).format, choice.scaling, payload.data());
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
    const Scratch at{options_, shape, scratch};
    for (std::size_t first = 0; first < payloads.size(); first += kMaxSummed) {
      const auto batch = payloads.subspan(first, std::min(kMaxSummed, payloads.size() - first));
      std::array<host::PackedSpectrum, kMaxSummed> spectra;
      for (std::size_t i = 0; i < batch.size(); ++i) {
        const std::uint32_t mantissa = mantissa_of(batch[i]);
        spectra[i] = host::open_spectrum(batch[i], options_.header(shape.bins(), 0, mantissa), shape,
                                         {at.offsets + i * shape.pieces(), shape.pieces()});
        spectra[i].format = options_.format_with(mantissa).format;
      }
      inverse(queue, {spectra.data(), batch.size()}, weight, shape, at, out);
    }
  }

  /// Dropping the smallest theta of the bins leaves at most theta of the energy, counted once a bin; inner bins count
  /// twice and the first and last once, hence the factor 2. Quantising adds 2^-m of each component, and eps of the
  /// largest to those that underflow; rounding to binary16 twice 2^-11.
  [[nodiscard]] ErrorBound bound(std::size_t n) const override {
    if (n < law::kFftSmallest) return {.nmse = 0.0, .of_largest = 0.0};
    // A fixed range clips what it does not cover; a calibrated one what is larger than in the first steps.
    if (!options_.scaled() || options_.calibrated()) return {};
    const law::FftShape shape = options_.shape(n);
    const double theta = options_.largest_theta();
    const auto share = [&](std::size_t bins) {
      return static_cast<double>(options_.kept_of(theta, bins)) / static_cast<double>(bins);
    };
    double least = share(options_.by_piece() ? shape.bins_per_chunk() : shape.bins());
    if (options_.by_piece() && shape.tail > 0) least = std::min(least, share(shape.tail_bins()));
    const double dropped = std::sqrt(std::min(1.0, 2.0 * (1.0 - least)));
    const bool plain = options_.bits() == 32;
    const double relative = plain ? 1e-6 : std::ldexp(1.0, -static_cast<int>(options_.mantissa()));
    const double kept = static_cast<double>(options_.kept(theta, shape));
    const double underflow = plain ? 0.0 : static_cast<double>(options_.format().eps()) * std::sqrt(4.0 * kept);
    const double norm = dropped + relative + underflow + (options_.half() ? 0x1p-10 : 0.0) + 1e-6;
    return {.nmse = norm * norm};
  }

  [[nodiscard]] std::size_t values_sent(std::size_t n) const override {
    return n < law::kFftSmallest ? n : 2 * options_.kept(options_.largest_theta(), options_.shape(n));
  }
  [[nodiscard]] std::size_t values_in(HostView<const std::byte> payload, std::size_t n) const override {
    return n < law::kFftSmallest ? n : 2 * std::size_t{section<law::FftHeader>(payload)->kept};
  }

  [[nodiscard]] std::unique_ptr<Encoder<Space::host>> make_encoder(std::size_t n, int ranks,
                                                                   Queue<Space::host> queue) const override;

 private:
  /// Pieces of the scratch view; encode and decode use it differently.
  struct Scratch {
    static constexpr std::size_t kParts = 16;  // transforms that are in work at once

    float* spectrum;           ///< bins (re, im), pieces in a row
    float* power;              ///< |X|^2
    std::uint32_t* positions;  ///< of the kept bins
    float* kept;               ///< and their components
    float* real;               ///< a piece for each part
    float* complex;            ///< and its spectrum, aligned as FFTW wants
    std::uint32_t* offsets;    ///< first kept bin of each piece, for each summed payload
    std::byte* selector;

    static std::size_t parts(const law::FftShape& shape) { return std::min(kParts, shape.pieces()); }
    static std::size_t selector_bytes(const FftOptions& options, const law::FftShape& shape) {
      return options.by_piece() ? parts(shape) * 4 * padded(host::Largest::scratch_bytes(shape.bins_per_chunk()) / 4)
                                : host::Largest::scratch_bytes(shape.bins());
    }
    static std::size_t bytes(const FftOptions& options, const law::FftShape& shape) {
      const std::size_t most = options.most_kept(shape);
      const std::size_t floats = padded(2 * shape.bins()) + padded(shape.bins()) + padded(most) + padded(2 * most) +
                                 parts(shape) * (padded(shape.length) + padded(2 * shape.bins_per_chunk())) +
                                 padded(kMaxSummed * shape.pieces());
      return 4 * floats + selector_bytes(options, shape);
    }
    Scratch(const FftOptions& options, const law::FftShape& shape, HostView<std::byte> view) {
      const std::size_t most = options.most_kept(shape);
      auto* next = reinterpret_cast<float*>(view.data());
      const auto take = [&next](std::size_t floats) { return std::exchange(next, next + padded(floats)); };
      spectrum = take(2 * shape.bins());
      power = take(shape.bins());
      positions = reinterpret_cast<std::uint32_t*>(take(most));
      kept = take(2 * most);
      real = take(parts(shape) * padded(shape.length));
      complex = take(parts(shape) * padded(2 * shape.bins_per_chunk()));
      offsets = reinterpret_cast<std::uint32_t*>(take(kMaxSummed * shape.pieces()));
      selector = reinterpret_cast<std::byte*>(next);
    }
  };

  static float unit_of(std::size_t length) { return static_cast<float>(1.0 / std::sqrt(static_cast<double>(length))); }

  /// body(part, piece) for all pieces; a part's pieces come one after the other.
  template <class Body>
  static void for_pieces(Queue<Space::host> queue, const law::FftShape& shape, const Body& body) {
    const std::size_t parts = std::min(Scratch::parts(shape), part_count(queue, shape.pieces(), 1));
    parallel_parts(queue, shape.pieces(), parts, 1, [&](std::size_t part, std::size_t piece, std::size_t last) {
      for (; piece < last; ++piece) body(part, piece);
    });
  }

  void forward(Queue<Space::host> queue, HostView<const float> gradient, const law::FftShape& shape,
               const Scratch& at) const {
    for_pieces(queue, shape, [&](std::size_t part, std::size_t piece) {
      float* real = at.real + part * padded(shape.length);
      float* complex = at.complex + part * padded(2 * shape.bins_per_chunk());
      const std::size_t first = piece * shape.length;
      const std::size_t length = shape.piece_length(piece);
      const std::size_t count = std::min(length, gradient.size() - first);
      const std::size_t bins = shape.piece_bins(piece);
      std::memcpy(real, gradient.data() + first, count * sizeof(float));
      std::fill(real + count, real + length, 0.0F);
      if (options_.half()) host::round_to_half(real, length, kHalfTopIn);
      plans_.get(length).forward(real, complex);
      if (options_.half()) host::round_to_half(complex, 2 * bins, kHalfTopOut);
      // As if the tail had the length of the others, so that bins compare by their unitary coefficients.
      const float level = length == shape.length ? 1.0F : unit_of(length) / unit_of(shape.length);
      const std::size_t bin = shape.first_bin(piece);
      host::keep_power(complex, bins, level, at.spectrum + 2 * bin, at.power + bin);
    });
  }

  void select(Queue<Space::host> queue, double theta, const law::FftShape& shape, const Scratch& at,
              HostView<std::uint32_t> positions) const {
    if (!options_.by_piece()) {
      const HostView<std::byte> selector{at.selector, Scratch::selector_bytes(options_, shape)};
      host::Largest{queue, {at.power, shape.bins()}, selector}.select(positions, nullptr);
      return;
    }
    const std::size_t of_chunk = options_.kept_of(theta, shape.bins_per_chunk());
    const std::size_t bytes = Scratch::selector_bytes(options_, shape) / Scratch::parts(shape);
    for_pieces(queue, shape, [&](std::size_t part, std::size_t piece) {
      const std::size_t bin = shape.first_bin(piece);
      const auto own = positions.part(piece * of_chunk, options_.kept_of(theta, shape.piece_bins(piece)));
      host::Largest{{}, {at.power + bin, shape.piece_bins(piece)}, {at.selector + part * bytes, bytes}}.select(own,
                                                                                                               nullptr);
      for (auto& position : own.span()) position += static_cast<std::uint32_t>(bin);
    });
  }

  void inverse(Queue<Space::host> queue, std::span<const host::PackedSpectrum> spectra, float weight,
               const law::FftShape& shape, const Scratch& at, HostView<float> out) const {
    for_pieces(queue, shape, [&](std::size_t part, std::size_t piece) {
      float* real = at.real + part * padded(shape.length);
      float* complex = at.complex + part * padded(2 * shape.bins_per_chunk());
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

  /// m of a payload; what its header says where calibration chooses it.
  [[nodiscard]] std::uint32_t mantissa_of(HostView<const std::byte> payload) const {
    if (!options_.mantissa_varies() || payload.size() < sizeof(law::FftHeader)) return options_.mantissa();
    const std::uint32_t mantissa = section<law::FftHeader>(payload)->mantissa;
    if (mantissa >= FftOptions::kMantissas || !options_.format_with(mantissa).valid)
      throw Error{Fault::data, fmt::format("fft payload: no format has {} mantissa bits", mantissa)};
    return mantissa;
  }

  FftOptions options_;
  FftPlans plans_;

  friend class FftEncoder;
};

/// The memory of range=calibrated.
class FftEncoder final : public Encoder<Space::host> {
 public:
  explicit FftEncoder(const Fft& codec) : codec_{codec}, calibration_{codec.options_} {}

  void encode(Queue<Space::host> queue, HostView<const float> gradient, const SideInputs<Space::host>& /*side*/,
              const EncodeContext& context, HostView<std::byte> payload, HostView<std::byte> scratch) override {
    codec_.encode_with(queue, gradient, context, payload, scratch,
                       [&](const host::KeptBins& kept, float unit) { return calibration_.next(kept, unit); });
  }
  void reset(Queue<Space::host> /*queue*/) override { calibration_.reset(); }
  [[nodiscard]] std::string note() const override { return calibration_.note(); }

 private:
  const Fft& codec_;
  FftCalibration calibration_;
};

std::unique_ptr<Encoder<Space::host>> Fft::make_encoder(std::size_t n, int /*ranks*/,
                                                        Queue<Space::host> /*queue*/) const {
  if (!options_.calibrated() || n < law::kFftSmallest) return nullptr;
  return std::make_unique<FftEncoder>(*this);
}

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
     .meaning =
         "mantissa bits of the range-based float; auto is bits-4, eight octaves, or what calibration finds best"},
    {.name = "range",
     .kind = ParamInfo::Kind::real,
     .default_value = "auto",
     .min = 1e-30,
     .max = 1e30,
     .choices = "auto|calibrated",
     .meaning = "largest unitary coefficient that has a code; auto scales each payload to fit, calibrated takes the "
                "largest of the first steps"},
    {.name = "calibrate",
     .kind = ParamInfo::Kind::integer,
     .default_value = "5",
     .min = 1,
     .max = 1000,
     .meaning = "steps that range=calibrated learns from"},
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
     .meaning = "longest transform; larger tensors are cut, the last piece is shorter"},
    {.name = "select",
     .kind = ParamInfo::Kind::choice,
     .default_value = "global",
     .choices = "global|chunk",
     .meaning = "the strongest frequencies of all chunks, or the same share of each"},
    {.name = "precision",
     .kind = ParamInfo::Kind::choice,
     .default_value = "fp32",
     .choices = "fp32|fp16",
     .meaning = "fp16 rounds what the encoder transforms and what comes out, scaled by powers of two, to binary16"},
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
    .description =
        "Takes the gradient as a signal, transforms it in chunks, keeps the strongest complex frequencies and sends "
        "their parts in a float format of few bits that covers just the range needed; a bitmap says which they are. "
        "What the paper leaves open and is decided here: the transform is unitary, chunks are 65536 long and the "
        "last one shorter, the status has one bit for each complex frequency, each payload is scaled to its own "
        "largest component (range=auto), m is bits - 4, and error feedback is off. range=calibrated is the paper's "
        "estimate from the first steps: m is then the one with the least mean squared error, which is a "
        "reconstruction, and a step with more than a 1e-4th of saturated codes starts a new calibration. "
        "precision=fp16 rounds input and output of the encoder's transform to binary16 as a half-precision FFT would "
        "hold them. It pays where neighbouring gradients are correlated; on white noise plain topk keeps more energy "
        "for the same bits.",
    .params = kParams,
    .aggregation = Aggregation::gather,
    .determinism = Determinism::run_to_run,
    .payload = "256 + B + 2 bits K bits, B = L/2+1 bins for each transform, K = round((1-theta) B)",
    .make_host = [](const Params& p, const Layout&) -> std::unique_ptr<Codec<Space::host>> {
      return std::make_unique<Fft>(p);
    },
    .make_cuda = GT_MAKE_CUDA(make_cuda_fft),
};

}  // namespace gradtool
