// The fft codec on a GPU: the steps behind the transform give the bytes and sums of the CPU, chunks may be transformed
// in several groups, and calibration decides as on the CPU.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <tuple>
#include <utility>

#include "kernels/select.hpp"
#include "kernels/transform.hpp"
#include "lib/methods/fft/gpu.hpp"
#include "lib/methods/fft/spectrum.hpp"
#include "tests/codecs/codec_run.hpp"
#include "tests/codecs/inputs.hpp"
#include "tests/codecs/same_bits.hpp"
#include "tests/gpu/cuda_run.hpp"

namespace gradtool::test {
namespace {

/// A spectrum's shape and how it is packed, without the transform: what the GPU's steps are compared with.
struct FftCase {
  format::FftShape shape;
  format::FftHeader header;
  format::RangeFloat format;
  float unit;
  bool to_peak;

  FftCase(format::FftShape cut, std::size_t kept, std::uint32_t bits, bool stretch)
      : shape{cut}, unit{format::unitary_factor(cut.length)}, to_peak{stretch && bits != 32} {
    if (bits != 32) format = format::RangeFloat::make(bits, bits - 4, 1.0F, 1.0F, bits % 2 == 0).value();
    header.bins = static_cast<std::uint32_t>(shape.bins());
    header.kept = static_cast<std::uint32_t>(kept);
    header.bits = static_cast<std::uint16_t>(bits);
    header.mantissa = static_cast<std::uint16_t>(bits == 32 ? 0 : bits - 4);
    header.pbase = format.pbase;
    header.positives = format.positives;
    header.bytes = layout().bytes();
  }
  [[nodiscard]] format::FftLayout layout() const { return {header.bins, header.kept, header.bits}; }
  [[nodiscard]] std::string name() const {
    return fmt::format("length {} chunks {} tail {} kept {} bits {} to peak {}", shape.length, shape.chunks, shape.tail,
                       header.kept, header.bits, to_peak);
  }

  /// The CPU's payload when the bins at `select(power)` are kept.
  template <class Select>
  [[nodiscard]] std::vector<std::byte> pack_selected(const std::vector<float>& spectrum, const Select& select) const {
    std::vector<float> copy(spectrum.size());
    std::vector<float> power(spectrum.size() / 2);
    host::scale_and_square(spectrum.data(), power.size(), 1.0F, copy.data(), power.data());
    const bool all = header.kept == header.bins;
    std::vector<std::uint32_t> positions(header.kept);
    if (!all) select(power, positions);
    std::vector<float> values(2 * std::size_t{header.kept});
    const auto kept =
        host::take_bins({}, copy.data(), header.bins, {positions.data(), positions.size()}, all, values.data());
    std::vector<std::byte> payload(layout().bytes(), std::byte{0x3C});
    host::write_payload({}, kept, header, format, format::FftScaling::of(kept.largest, unit, to_peak), payload.data());
    return payload;
  }

  /// The CPU's payload that keeps the strongest bins of all pieces.
  [[nodiscard]] std::vector<std::byte> pack(const std::vector<float>& spectrum) const {
    return pack_selected(spectrum, [](std::span<const float> power, std::span<std::uint32_t> positions) {
      select_largest(power, positions, 0);
    });
  }

  /// The CPU's payload when every piece keeps its own strongest bins.
  [[nodiscard]] std::vector<std::byte> pack_pieces(const cuda::PieceShares& shares,
                                                   const std::vector<float>& spectrum) const {
    return pack_selected(spectrum, [&](std::span<const float> power, std::span<std::uint32_t> positions) {
      std::size_t before = 0;
      for (std::size_t p = 0; p < shape.pieces(); ++p) {
        const std::size_t count = p < shape.chunks ? shares.of_chunk : shares.of_tail;
        select_largest(power.subspan(shape.first_bin(p), shape.piece_bins(p)), positions.subspan(before, count),
                       static_cast<std::uint32_t>(shape.first_bin(p)));
        before += count;
      }
    });
  }

  /// The CPU's sum of the spectra of payloads; throws where it refuses one.
  [[nodiscard]] std::vector<float> unpack(const std::vector<std::vector<std::byte>>& payloads) const {
    std::vector<float> spectrum(2 * shape.bins(), 0.0F);
    for (const auto& payload : payloads) {
      std::vector<std::uint32_t> offsets(shape.pieces());
      const auto opened = host::open_spectrum({payload.data(), payload.size()}, header, format, shape, offsets);
      for (std::size_t p = 0; p < shape.pieces(); ++p)
        host::unpack_add(opened, p, shape, spectrum.data() + 2 * shape.first_bin(p));
    }
    for (std::size_t p = 0; p < shape.pieces(); ++p) {
      spectrum[2 * shape.first_bin(p) + 1] = 0.0F;
      if (shape.piece_length(p) % 2 == 0) spectrum[2 * (shape.first_bin(p) + shape.piece_bins(p)) - 1] = 0.0F;
    }
    return spectrum;
  }

 private:
  /// positions := `first` plus where the largest numbers are.
  static void select_largest(std::span<const float> power, std::span<std::uint32_t> positions, std::uint32_t first) {
    std::vector<std::byte> scratch(host::Largest::scratch_bytes(power.size(), power.size()));
    host::Largest{{}, {power.data(), power.size()}, {scratch.data(), scratch.size()}}.select(
        {positions.data(), positions.size()}, nullptr);
    for (auto& position : positions) position += first;
  }
};

class GpuFftKernels : public NeedsGpu<testing::Test> {};

std::vector<std::byte> pack_on_gpu(const FftCase& test, const std::vector<float>& spectrum,
                                   const cuda::PieceShares* shares = nullptr) {
  const cuda::Stream stream;
  const auto queue = stream.queue();
  const Guarded input{queue, bytes_of(spectrum)};
  const Guarded kept{queue, 8 * std::size_t{test.header.kept}};
  const Guarded work{queue, cuda::pack_work_bytes(test.header.bins)};
  const Guarded payload{queue, test.layout().bytes()};
  cuda::pack_spectrum(queue,
                      {.spectrum = input.as<float>().data(),
                       .kept = kept.as<float>().data(),
                       .work = work.bytes(),
                       .header = test.header,
                       .formats = format::RangeFormats::only(test.header.mantissa, test.format),
                       .unit = test.unit,
                       .to_peak = test.to_peak,
                       .shares = shares},
                      payload.bytes().data());
  static_cast<void>(kept.download());
  static_cast<void>(work.download());
  return payload.download();
}

/// The GPU's sum of the spectra of payloads, made in `rows` calls for parts of the bins.
std::vector<float> unpack_on_gpu(const FftCase& test, const std::vector<std::vector<std::byte>>& payloads,
                                 std::size_t rows = 1) {
  const cuda::Stream stream;
  const auto queue = stream.queue();
  std::vector<Guarded> sources;
  std::vector<View<const std::byte, Space::cuda>> views;
  for (const auto& payload : payloads) {
    views.emplace_back(sources.emplace_back(queue, std::span<const std::byte>{payload}).bytes());
  }
  const std::size_t bins = test.header.bins;
  const Guarded work{queue, cuda::unpack_work_bytes(bins)};
  const cuda::PackedSpectra spectra{views, test.header, format::RangeFormats::only(test.header.mantissa, test.format),
                                    test.shape, work.bytes()};
  cuda::open_spectra(queue, spectra);
  std::vector<float> all;
  for (std::size_t row = 0; row < rows; ++row) {
    const std::size_t first = row * bins / rows;
    const std::size_t count = (row + 1) * bins / rows - first;
    const Guarded spectrum{queue, 8 * count};
    cuda::unpack_spectra(queue, spectra, first, count, spectrum.as<float>().data());
    const auto part = spectrum.download_floats();
    all.insert(all.end(), part.begin(), part.end());
  }
  static_cast<void>(work.download());
  return all;
}

void check_fft(const FftCase& test, const std::vector<float>& spectrum) {
  const auto payload = test.pack(spectrum);
  ASSERT_EQ(pack_on_gpu(test, spectrum), payload) << test.name();
  const auto other = test.pack(gradient_like(spectrum.size(), 5));
  const auto sum = test.unpack({payload, other, payload});
  for (const std::size_t rows : {1, 3})
    expect_same(unpack_on_gpu(test, {payload, other, payload}, rows), sum, test.name());
}

TEST_F(GpuFftKernels, PacksTheHostsBytes) {
  for (const format::FftShape shape :
       {format::FftShape{4, 1}, format::FftShape{63, 1}, format::FftShape{65, 1}, format::FftShape{2046, 1},
        format::FftShape{2048, 1}, format::FftShape{256, 20}, format::FftShape{4099, 3}, format::FftShape{256, 3, 100},
        format::FftShape{65, 2, 64}, format::FftShape{4099, 1, 7}, format::FftShape{65536, 7},
        format::FftShape{(1 << 21) + 1, 1}}) {
    const std::size_t bins = shape.bins();
    const auto spectrum = gradient_like(2 * bins);
    for (const std::size_t kept : {std::size_t{0}, std::size_t{1}, bins / 7, bins / 2, bins - 1, bins}) {
      if (kept == bins / 2 && bins > 10'000) continue;  // adds nothing but time on an emulated GPU
      for (const std::uint32_t bits : {4u, 9u, 10u, 16u, 32u})
        check_fft(FftCase{shape, kept, bits, bits % 2 == 0}, spectrum);
    }
  }
}

/// Pieces that begin inside a word of the bitmap, many bins of equal power, and bins that are not finite.
TEST_F(GpuFftKernels, PiecesKeepTheHostsBins) {
  for (const auto& [shape, of_chunk, of_tail] :
       {std::tuple<format::FftShape, std::uint32_t, std::uint32_t>{{256, 5, 100}, 19, 8},
        {{1000, 3, 0}, 500, 0},
        {{64, 40, 4}, 1, 3},
        {{4098, 2, 63}, 1, 1}}) {
    const cuda::PieceShares shares{shape, of_chunk, of_tail};
    const std::size_t kept = shape.chunks * of_chunk + of_tail;
    const FftCase test{shape, kept, 10, true};
    auto spectrum = gradient_like(2 * shape.bins());
    ASSERT_EQ(pack_on_gpu(test, spectrum, &shares), test.pack_pieces(shares, spectrum)) << test.name();
    for (std::size_t i = 0; i < spectrum.size(); ++i) spectrum[i] = i / 2 % 3 == 0 ? 0.5F : spectrum[i];
    ASSERT_EQ(pack_on_gpu(test, spectrum, &shares), test.pack_pieces(shares, spectrum)) << test.name();
    spectrum[shape.bins()] = NAN;
    ASSERT_EQ(pack_on_gpu(test, spectrum, &shares), test.pack_pieces(shares, spectrum)) << test.name();
    std::fill(spectrum.begin(), spectrum.end(), 0.0F);
    ASSERT_EQ(pack_on_gpu(test, spectrum, &shares), test.pack_pieces(shares, spectrum)) << test.name();
  }
}

/// Rows of several tiles and short ones, with an input that is not 16-byte aligned.
TEST_F(GpuFftKernels, RowsAreRoundedToHalfAsOnTheHost) {
  const cuda::Stream stream;
  constexpr std::size_t kRows = 12;
  for (const std::size_t length : {5000, 33, 1}) {
    const std::size_t given = kRows * length - length / 10;
    auto x = gradient_like(kRows * length);
    const float factors[6] = {1.0F, 0.0F, 1e-42F, 1e30F, 1e-20F, 3.0F};
    for (std::size_t i = 0; i < x.size(); ++i) x[i] *= factors[i / length % 6];
    if (length > 17) x[17] = INFINITY;
    for (const auto& [top, shift] :
         {std::pair{format::HalfRounding::kInputTop, 4U}, std::pair{format::HalfRounding::kOutputTop, 0U}}) {
      auto expected = x;
      std::fill(expected.begin() + static_cast<std::ptrdiff_t>(given), expected.end(), 0.0F);
      for (std::size_t row = 0; row < kRows; ++row) host::round_to_half(expected.data() + row * length, length, top);
      const Guarded in{stream.queue(), bytes_of({x.data(), given}), shift};
      const Guarded out{stream.queue(), bytes_of(x)};
      const Guarded largest{stream.queue(), 4 * kRows};
      cuda::round_rows_to_half(stream.queue(), {in.as<float>().data(), out.as<float>().data(), kRows, length, given,
                                                top, largest.as<std::uint32_t>().data()});
      expect_same(out.download_floats(), expected,
                  "rows of " + std::to_string(length) + ", top " + std::to_string(top));
      static_cast<void>(largest.download());
    }
  }
}

TEST_F(GpuFftKernels, BreaksTiesInIndexOrder) {
  for (const format::FftShape shape : {format::FftShape{1000, 9}, format::FftShape{65536, 9}}) {
    auto spectrum = gradient_like(2 * shape.bins());
    for (std::size_t i = 0; i < spectrum.size(); ++i) spectrum[i] = i / 2 % 3 == 0 ? 0.5F : spectrum[i];
    for (const std::size_t kept : {std::size_t{1}, shape.bins() / 5, shape.bins() / 3, shape.bins() / 2}) {
      check_fft(FftCase{shape, kept, 10, true}, spectrum);
      check_fft(FftCase{shape, kept, 10, true}, std::vector<float>(spectrum.size(), 0.25F));
      check_fft(FftCase{shape, kept, 10, true}, std::vector<float>(spectrum.size(), 0.0F));
    }
  }
}

TEST_F(GpuFftKernels, PacksTheHostsBytesForDegenerateSpectra) {
  const format::FftShape shape{3000, 1};
  for (const float value : {0.0F, -0.0F, 1e-40F, 0x1p-101F, 1e30F, INFINITY, NAN, -NAN}) {
    for (const std::uint32_t bits : {7u, 32u}) {
      for (const std::size_t kept : {std::size_t{0}, shape.bins() / 4, shape.bins()}) {
        auto spectrum = gradient_like(2 * shape.bins());
        spectrum[700] = value;
        spectrum[1401] = value;
        for (const bool to_peak : {false, true}) {
          check_fft(FftCase{shape, kept, bits, to_peak}, spectrum);
          check_fft(FftCase{shape, kept, bits, to_peak}, std::vector<float>(spectrum.size(), value));
        }
      }
    }
  }
}

/// The CPU refuses a damaged payload. A GPU cannot throw, so it answers with NaN, for the same payloads.
TEST_F(GpuFftKernels, DamagedPayloadsAreNaNWhereTheHostRefuses) {
  const format::FftShape shape{260, 5};
  for (const std::size_t kept : {std::size_t{0}, shape.bins() / 3, shape.bins()}) {
    const FftCase test{shape, kept, 10, true};
    const auto good = test.pack(gradient_like(2 * shape.bins()));
    int refused = 0;
    int taken = 0;
    const auto check = [&](const std::vector<std::byte>& damaged, const std::string& what) {
      const auto sum = unpack_on_gpu(test, {good, damaged});
      try {
        expect_same(sum, test.unpack({good, damaged}), what);
        ++taken;
      } catch (const Error& error) {
        ASSERT_EQ(error.fault(), Fault::data);
        for (std::size_t i = 0; i < sum.size(); i += 2) ASSERT_TRUE(std::isnan(sum[i])) << what << " bin " << i / 2;
        ++refused;
      }
    };
    for (std::size_t flip = 0; flip < good.size() * 8; flip += flip < 320 ? 1 : 37) {
      auto damaged = good;
      damaged[flip / 8] ^= static_cast<std::byte>(1U << flip % 8);
      check(damaged, fmt::format("kept {} flip {}", kept, flip));
    }
    for (std::size_t length = sizeof(format::FftHeader); length < good.size(); length += 4) {
      check({good.begin(), good.begin() + static_cast<std::ptrdiff_t>(length)},
            fmt::format("kept {} cut to {}", kept, length));
    }
    EXPECT_GT(refused, 100);
    EXPECT_GT(taken, 20);
  }
}

/// Transforms of several rows against sums in double, at powers of two, primes and other lengths, and back again.
TEST_F(GpuFftKernels, TransformsThereAndBack) {
  for (const auto& [length, batch] :
       {std::pair<std::size_t, std::size_t>{4, 1}, {7, 3}, {1009, 1}, {4096, 5}, {60, 1000}}) {
    const cuda::Stream stream;
    const auto queue = stream.queue();
    const std::size_t bins = length / 2 + 1;
    const cuda::RealTransforms transforms{length, batch};
    const auto x = gradient_like(length * batch);
    const Guarded real{queue, bytes_of(x)};
    const Guarded spectrum{queue, 8 * bins * batch};
    const Guarded back{queue, 4 * length * batch};
    const Guarded work{queue, transforms.work_bytes() + 256};
    transforms.forward(queue, real.as<float>().data(), spectrum.as<float>().data(), work.bytes().data());
    const auto found = spectrum.download_floats();
    for (const std::size_t row : {std::size_t{0}, batch - 1}) {
      for (const std::size_t k : {std::size_t{0}, std::size_t{1}, bins / 2, bins - 1}) {
        double re = 0.0;
        double im = 0.0;
        double norm = 0.0;
        for (std::size_t i = 0; i < length; ++i) {
          const double value = static_cast<double>(x[row * length + i]);
          const double angle =
              -2.0 * std::numbers::pi * static_cast<double>(k * i % length) / static_cast<double>(length);
          re += value * std::cos(angle);
          im += value * std::sin(angle);
          norm += value * value;
        }
        const double tolerance = 1e-5 * std::sqrt(norm);
        ASSERT_NEAR(static_cast<double>(found[2 * (row * bins + k)]), re, tolerance)
            << length << " x " << batch << " bin " << k;
        ASSERT_NEAR(static_cast<double>(found[2 * (row * bins + k) + 1]), im, tolerance)
            << length << " x " << batch << " bin " << k;
      }
    }
    transforms.inverse(queue, spectrum.as<float>().data(), back.as<float>().data(), work.bytes().data());
    const auto again = back.download_floats();
    for (std::size_t i = 0; i < x.size(); ++i)
      ASSERT_NEAR(again[i] / static_cast<float>(length), x[i], 1e-7F) << length << " x " << batch;
  }
}

class GpuFftGroups : public NeedsGpu<testing::TestWithParam<std::string>> {};

/// Groups of one chunk, of two (the last group has one), and of one element less than five chunks, which makes four.
/// Payloads need not be equal, because cuFFT may round differently for another number of rows.
TEST_P(GpuFftGroups, ArePartsOfTheWhole) {
  const CodecSpec spec = parse_codec(GetParam());
  for (const std::size_t n : {std::size_t{64 * 5}, std::size_t{64 * 5 + 1}, std::size_t{64 * 7 + 33}}) {
    CodecRun host{GetParam(), n};
    CudaRun whole{GetParam(), n};
    const auto x = gradient_like(n);
    const auto expected = host.decode(whole.encode(x));
    const auto payload = host.encode(x, {});
    const auto y = host.decode(payload);
    float largest = 0.0F;
    for (const float value : y) largest = std::max(largest, std::abs(value));
    for (const std::size_t group : {std::size_t{1}, std::size_t{128}, std::size_t{64 * 4 + 63}}) {
      const auto codec = cuda::make_fft(spec.params, group);
      const Footprint footprint = codec->plan(n);
      ASSERT_EQ(footprint.payload_bytes, whole.footprint().payload_bytes);
      for (const std::size_t shift : {0, 4}) {
        const std::string what = std::to_string(n) + " by " + std::to_string(group) + " shift " + std::to_string(shift);
        const auto queue = whole.queue();
        const Guarded gradient{queue, bytes_of(x), shift};
        const Guarded written{queue, footprint.payload_bytes};
        const Guarded scratch{queue, footprint.scratch_bytes};
        codec->encode(queue, gradient.as<float>(), {}, written.bytes(), scratch.bytes());
        EXPECT_LE(nmse(expected, host.decode(written.download())), 1e-6) << what;
        static_cast<void>(scratch.download());

        const Guarded source{queue, std::span<const std::byte>{payload}};
        const Guarded out{queue, bytes_of(x), shift};
        codec->decode_add(queue, source.bytes(), -0.5F, out.as<float>(), scratch.bytes());
        const auto sum = out.download_floats();
        static_cast<void>(scratch.download());
        for (std::size_t i = 0; i < n; ++i)
          ASSERT_NEAR(sum[i], x[i] - 0.5F * y[i], 2e-5F * largest) << what << " " << i;
      }
    }
  }
}

class GpuLargeFft : public NeedsGpu<testing::Test> {};

/// So many elements that there are several groups, and so many bins that the selection starts from a sample.
TEST_F(GpuLargeFft, IsTheHosts) {
  const std::size_t n = 144 * 65536 + 777;
  CodecRun host{"fft", n};
  CudaRun gpu{"fft", n};
  const auto x = gradient_like(n);
  const auto payload = gpu.encode(x);
  const auto y = host.decode(payload);
  EXPECT_LE(nmse(host.decode(host.encode(x, {})), y), 1e-6);
  const auto z = gpu.decode(payload);
  float largest = 0.0F;
  for (const float value : y) largest = std::max(largest, std::abs(value));
  for (std::size_t i = 0; i < n; ++i) ASSERT_NEAR(z[i], y[i], 2e-5F * largest) << i;
}

INSTANTIATE_TEST_SUITE_P(Variants, GpuFftGroups,
                         testing::Values("fft:chunk=64", "fft:chunk=64,select=chunk,bits=12",
                                         "fft:chunk=64,precision=fp16,theta=0"),
                         [](const auto& info) { return test_name(info.param); });

class GpuFftCalibration : public NeedsGpu<testing::TestWithParam<std::string>> {};

/// Steps that are learnt from, then a gradient that grows a little, one that has grown so much that calibration starts
/// over, zeros, and numbers that are not finite.
TEST_P(GpuFftCalibration, DecidesAsTheHost) {
  for (const std::size_t n : {std::size_t{3}, std::size_t{5000}, std::size_t{70'001}}) {
    CodecRun host{GetParam(), n};
    CudaRun gpu{GetParam(), n};
    const auto on_host = host.codec().make_encoder(n, 1, host.queue());
    const auto encoder = gpu.codec().make_encoder(n, 1, gpu.queue());
    ASSERT_EQ(encoder == nullptr, n < format::kFftSmallest);
    if (encoder == nullptr) continue;
    for (const float factor : {1.0F, 0.9F, 1.1F, 1.0F, 0.0F, 16.0F, 17.0F, NAN, 16.0F, 1.0F}) {
      auto x = gradient_like(n, static_cast<std::uint32_t>(n));
      for (auto& value : x) value *= factor;
      on_host->encode(host.queue(), {x.data(), n}, {}, {}, host.payload(), host.scratch());
      const std::vector<std::byte> expected{host.payload().data(), host.payload().data() + host.payload().size()};
      const Guarded gradient{gpu.queue(), bytes_of(x)};
      encoder->encode(gpu.queue(), gradient.as<float>(), {}, {}, gpu.payload().bytes(), gpu.scratch().bytes());
      const auto payload = gpu.payload().download();
      format::FftHeader actual;
      format::FftHeader wanted;
      std::memcpy(&actual, payload.data(), sizeof actual);
      std::memcpy(&wanted, expected.data(), sizeof wanted);
      ASSERT_EQ(actual.bytes, wanted.bytes) << factor;
      ASSERT_EQ(actual.mantissa, wanted.mantissa) << factor;
      ASSERT_EQ(actual.pbase, wanted.pbase) << factor;
      ASSERT_EQ(std::isnan(actual.scale), std::isnan(wanted.scale)) << factor;
      if (!std::isnan(wanted.scale)) ASSERT_NEAR(actual.scale, wanted.scale, 1e-5F * wanted.scale) << factor;
      EXPECT_EQ(encoder->note(), on_host->note()) << factor;
      if (std::isnan(factor)) continue;
      const auto y = host.decode(expected);  // with whatever m the header says
      EXPECT_LE(nmse(y, gpu.decode(expected)), 1e-9) << factor;
      EXPECT_LE(nmse(y, host.decode(payload)), 1e-3) << factor;
    }
    encoder->reset(gpu.queue());
    on_host->reset({});
    EXPECT_EQ(encoder->note(), on_host->note());
  }
}

INSTANTIATE_TEST_SUITE_P(Variants, GpuFftCalibration,
                         testing::Values("fft:range=calibrated,calibrate=2",
                                         "fft:range=calibrated,calibrate=1,mantissa=5,chunk=1024",
                                         "fft:range=calibrated,calibrate=3,bits=8,select=chunk,chunk=2000"),
                         [](const auto& info) { return test_name(info.param); });

}  // namespace
}  // namespace gradtool::test
