// The kernels of fft around its transform, where the codec alone cannot show that the bytes are the host's.
#include <cmath>
#include <numbers>
#include <tuple>
#include <utility>

#include "kernels/cuda/fft_pack.hpp"
#include "kernels/cuda/fft_transform.hpp"
#include "kernels/cuda/half_rows.hpp"
#include "kernels/host/half_round.hpp"
#include "kernels/host/largest.hpp"
#include "kernels/law/half_rows.hpp"
#include "tests/codecs/fft_case.hpp"
#include "tests/codecs/inputs.hpp"
#include "tests/gpu/cuda_run.hpp"

namespace gradtool::test {
namespace {

class GpuFftKernels : public NeedsGpu<testing::Test> {};

std::vector<std::byte> pack_on_gpu(const FftCase& test, const std::vector<float>& spectrum,
                                   const cuda::PieceShares* shares = nullptr) {
  const cuda::Stream stream;
  const auto queue = stream.queue();
  const std::size_t bins = test.header.bins;
  const Guarded input{queue, bytes_of(spectrum)};
  const Guarded kept{queue, 8 * std::size_t{test.header.kept}};
  const Guarded work{queue, cuda::pack_work_bytes(bins)};
  const Guarded payload{queue, test.layout().bytes()};
  cuda::pack_spectrum(queue, {input.as<float>().data(), kept.as<float>().data(), work.bytes()}, test.header,
                      law::RangeFormats::only(test.header.mantissa, test.format), test.unit, test.scaled, shares,
                      nullptr, payload.bytes().data());
  static_cast<void>(kept.download());
  static_cast<void>(work.download());
  return payload.download();
}

/// The host's payload when every piece keeps its own strongest bins.
std::vector<std::byte> pack_pieces(const FftCase& test, const cuda::PieceShares& by,
                                   const std::vector<float>& spectrum) {
  const std::size_t bins = test.header.bins;
  std::vector<float> same(2 * bins);
  std::vector<float> power(bins);
  host::keep_power(spectrum.data(), bins, 1.0F, same.data(), power.data());
  std::vector<std::uint32_t> positions(test.header.kept);
  std::size_t at = 0;
  for (std::size_t p = 0; p < by.shape.pieces(); ++p) {
    const std::size_t count = p < by.shape.chunks ? by.of_chunk : by.of_tail;
    const HostView<const float> own{power.data() + by.shape.first_bin(p), by.shape.piece_bins(p)};
    std::vector<std::byte> scratch(host::Largest::scratch_bytes(own.size()) + 64);
    const HostView<std::uint32_t> found{positions.data() + at, count};
    host::Largest{{}, own, {scratch.data(), scratch.size()}}.select(found, nullptr);
    for (auto& position : found.span()) position += static_cast<std::uint32_t>(by.shape.first_bin(p));
    at += count;
  }
  std::vector<float> values(2 * positions.size());
  const auto kept = host::take_bins({}, same.data(), bins, {positions.data(), positions.size()}, false, values.data());
  std::vector<std::byte> payload(test.layout().bytes());
  host::write_payload({}, kept, test.header, test.format,
                      host::scaling_of(kept.largest, test.unit, test.header.bits != 32, test.scaled), payload.data());
  return payload;
}

/// By `rows` rows of bins.
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
  const cuda::PackedSpectra of{views, test.header, law::RangeFormats::only(test.header.mantissa, test.format),
                               test.shape, work.bytes()};
  cuda::open_spectra(queue, of);
  std::vector<float> all;
  for (std::size_t row = 0; row < rows; ++row) {
    const std::size_t first = row * bins / rows;
    const std::size_t count = (row + 1) * bins / rows - first;
    const Guarded spectrum{queue, 8 * count};
    cuda::unpack_spectra(queue, of, first, count, spectrum.as<float>().data());
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
  for (const law::FftShape shape :
       {law::FftShape{4, 1}, law::FftShape{63, 1}, law::FftShape{2048, 1}, law::FftShape{256, 20},
        law::FftShape{4099, 3}, law::FftShape{256, 3, 100}, law::FftShape{65, 2, 64}, law::FftShape{65536, 7},
        law::FftShape{(1 << 21) + 1, 1}}) {
    const std::size_t bins = shape.bins();
    const auto spectrum = gradient_like(2 * bins);
    for (const std::size_t kept : {std::size_t{0}, std::size_t{1}, bins / 7, bins - 1, bins}) {
      for (const std::uint32_t bits : {4u, 9u, 10u, 16u, 32u})
        check_fft(FftCase{shape, kept, bits, bits % 2 == 0}, spectrum);
    }
  }
}

/// Pieces begin within words of the bitmap; many equal bins, and bins that are not finite.
TEST_F(GpuFftKernels, PiecesKeepTheHostsBins) {
  for (const auto& [shape, of_chunk, of_tail] :
       {std::tuple<law::FftShape, std::uint32_t, std::uint32_t>{{256, 5, 100}, 19, 8},
        {{1000, 3, 0}, 500, 0},
        {{64, 40, 4}, 1, 3},
        {{4098, 2, 63}, 1, 1}}) {
    const cuda::PieceShares by{shape, of_chunk, of_tail};
    const std::size_t kept = shape.chunks * of_chunk + of_tail;
    const FftCase test{shape, kept, 10, true};
    auto spectrum = gradient_like(2 * shape.bins());
    ASSERT_EQ(pack_on_gpu(test, spectrum, &by), pack_pieces(test, by, spectrum)) << test.name();
    for (std::size_t i = 0; i < spectrum.size(); ++i) spectrum[i] = i / 2 % 3 == 0 ? 0.5F : spectrum[i];
    ASSERT_EQ(pack_on_gpu(test, spectrum, &by), pack_pieces(test, by, spectrum)) << test.name();
    spectrum[shape.bins()] = NAN;
    ASSERT_EQ(pack_on_gpu(test, spectrum, &by), pack_pieces(test, by, spectrum)) << test.name();
    std::fill(spectrum.begin(), spectrum.end(), 0.0F);
    ASSERT_EQ(pack_on_gpu(test, spectrum, &by), pack_pieces(test, by, spectrum)) << test.name();
  }
}

/// Rows of several tiles, and short ones, of which neither starts where the other's 16 bytes do.
TEST_F(GpuFftKernels, RowsAreRoundedToHalfAsOnTheHost) {
  const cuda::Stream stream;
  constexpr std::size_t kRows = 12;
  for (const std::size_t length : {5000, 33, 1}) {
    const std::size_t given = kRows * length - length / 10;
    auto x = gradient_like(kRows * length);
    const float factors[6] = {1.0F, 0.0F, 1e-42F, 1e30F, 1e-20F, 3.0F};
    for (std::size_t i = 0; i < x.size(); ++i) x[i] *= factors[i / length % 6];
    if (length > 17) x[17] = INFINITY;
    for (const auto& [top, shift] : {std::pair{law::kHalfTopIn, 4U}, std::pair{law::kHalfTopOut, 0U}}) {
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
  const law::FftShape shape{65536, 9};
  auto spectrum = gradient_like(2 * shape.bins());
  for (std::size_t i = 0; i < spectrum.size(); ++i) spectrum[i] = i / 2 % 3 == 0 ? 0.5F : spectrum[i];
  for (const std::size_t kept : {std::size_t{1}, shape.bins() / 5, shape.bins() / 2}) {
    check_fft(FftCase{shape, kept, 10, true}, spectrum);
    check_fft(FftCase{shape, kept, 10, true}, std::vector<float>(spectrum.size(), 0.25F));
    check_fft(FftCase{shape, kept, 10, true}, std::vector<float>(spectrum.size(), 0.0F));
  }
}

TEST_F(GpuFftKernels, PacksTheHostsBytesForDegenerateSpectra) {
  const law::FftShape shape{3000, 1};
  for (const float value : {-0.0F, 1e-40F, 0x1p-101F, 1e30F, INFINITY, NAN, -NAN}) {
    for (const std::uint32_t bits : {7u, 32u}) {
      for (const std::size_t kept : {shape.bins() / 4, shape.bins()}) {
        auto spectrum = gradient_like(2 * shape.bins());
        spectrum[700] = value;
        spectrum[1401] = value;
        for (const bool scaled : {false, true}) {
          check_fft(FftCase{shape, kept, bits, scaled}, spectrum);
          check_fft(FftCase{shape, kept, bits, scaled}, std::vector<float>(spectrum.size(), value));
        }
      }
    }
  }
}

TEST_F(GpuFftKernels, DamagedPayloadsAreNaNWhereTheHostRefuses) {
  const FftCase test{{260, 5}, 200, 10, true};
  const auto good = test.pack(gradient_like(2 * test.shape.bins()));
  for (std::size_t flip = 0; flip < good.size() * 8; flip += flip < 300 ? 3 : 101) {
    auto damaged = good;
    damaged[flip / 8] ^= static_cast<std::byte>(1U << flip % 8);
    const auto sum = unpack_on_gpu(test, {good, damaged});
    try {
      expect_same(sum, test.unpack({good, damaged}), "flip " + std::to_string(flip));
    } catch (const Error&) {
      for (std::size_t i = 0; i < sum.size(); i += 2)
        ASSERT_TRUE(std::isnan(sum[i])) << "flip " << flip << " bin " << i / 2;
    }
  }
}

/// Against a transform in double, at lengths of every kind; rows behind one another, back again.
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

}  // namespace
}  // namespace gradtool::test
