#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <span>
#include <string>
#include <vector>

#include "kernels/host/fft_pack.hpp"
#include "kernels/host/largest.hpp"
#include "kernels/law/half.hpp"
#include "lib/core/error.hpp"

namespace gradtool::test {

/// Equal bit for bit, but any NaN equals any other: a GPU has only one.
inline void expect_same(std::span<const float> is, std::span<const float> should, const std::string& what) {
  ASSERT_EQ(is.size(), should.size());
  for (std::size_t i = 0; i < is.size(); ++i) {
    if (std::isnan(is[i]) && std::isnan(should[i])) continue;
    ASSERT_EQ(law::bits_of(is[i]), law::bits_of(should[i]))
        << what << ": element " << i << " is " << is[i] << ", not " << should[i];
  }
}

/// The fft codec behind its transform, on the host: what schedules and kernels are compared with.
struct FftCase {
  law::FftShape shape;
  law::FftHeader header;
  law::RangeFloat format;
  float unit;
  bool scaled;

  FftCase(law::FftShape cut, std::size_t kept, std::uint32_t bits, bool stretch) : shape{cut}, scaled{stretch} {
    if (bits != 32) {
      const auto made = law::RangeFloat::make(bits, bits - 4, 1.0F, 1.0F, bits % 2 == 0);
      expects(made.valid, "no such format");
      format = made.format;
    }
    header.bins = static_cast<std::uint32_t>(shape.bins());
    header.kept = static_cast<std::uint32_t>(kept);
    header.bits = static_cast<std::uint16_t>(bits);
    header.mantissa = static_cast<std::uint16_t>(bits == 32 ? 0 : bits - 4);
    header.pbase = format.pbase;
    header.positives = format.positives;
    header.bytes = layout().bytes();
    unit = static_cast<float>(1.0 / std::sqrt(static_cast<double>(shape.length)));
  }
  [[nodiscard]] law::FftLayout layout() const { return {header.bins, header.kept, header.bits}; }
  [[nodiscard]] std::string name() const {
    return fmt::format("length {} chunks {} tail {} kept {} bits {} scaled {}", shape.length, shape.chunks, shape.tail,
                       header.kept, header.bits, scaled);
  }

  [[nodiscard]] std::vector<std::byte> pack(const std::vector<float>& spectrum) const {
    std::vector<float> copy(spectrum.size());
    std::vector<float> power(spectrum.size() / 2);
    host::keep_power(spectrum.data(), power.size(), 1.0F, copy.data(), power.data());
    std::vector<std::uint32_t> positions(std::max<std::size_t>(header.kept, 1));
    std::vector<float> values(2 * positions.size());
    std::vector<std::byte> selector(host::Largest::scratch_bytes(power.size()));
    std::vector<std::byte> payload(layout().bytes(), std::byte{0x3C});
    host::pack_spectrum(
        {}, {copy.data(), power.data(), positions.data(), values.data(), {selector.data(), selector.size()}}, header,
        format, unit, scaled, payload.data());
    return payload;
  }

  /// The sum that the host makes; throws what it throws.
  [[nodiscard]] std::vector<float> unpack(const std::vector<std::vector<std::byte>>& payloads) const {
    std::vector<float> spectrum(2 * shape.bins(), 0.0F);
    for (const auto& payload : payloads) {
      std::vector<std::uint32_t> offsets(shape.pieces());
      auto opened = host::open_spectrum({payload.data(), payload.size()}, header, shape, offsets);
      opened.format = format;
      for (std::size_t p = 0; p < shape.pieces(); ++p)
        host::unpack_add(opened, p, shape, spectrum.data() + 2 * shape.first_bin(p));
    }
    for (std::size_t p = 0; p < shape.pieces(); ++p) {
      spectrum[2 * shape.first_bin(p) + 1] = 0.0F;
      if (shape.piece_length(p) % 2 == 0) spectrum[2 * (shape.first_bin(p) + shape.piece_bins(p)) - 1] = 0.0F;
    }
    return spectrum;
  }
};

}  // namespace gradtool::test
