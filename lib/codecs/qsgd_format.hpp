#pragma once

#include <array>
#include <cmath>

#include "kernels/law/qsgd.hpp"
#include "lib/codecs/block_codec.hpp"

namespace gradtool {

/// QSGD as a block format: buckets are blocks, norms their scales.
template <std::uint32_t Bits>
struct QsgdFormat {
  using Scale = float;
  static constexpr std::size_t kBlock = 0;

  using Element = law::QsgdElement<Bits>;

  bool l2 = false;

  [[nodiscard, gnu::always_inline]] law::Scaled<Scale> scale(const float* x, std::size_t count) const {
    const float norm = law::Qsgd::stored_norm(l2 ? l2_norm(x, count) : detail::largest_of(x, count));
    return {norm, Element::kLaw.encode_factor(norm)};
  }
  [[nodiscard]] static float decode_factor(Scale norm) { return Element::kLaw.decode_factor(norm); }

  /// An element moves by less than one level. With the max norm a level is max|x|/s of its bucket.
  [[nodiscard]] ErrorBound bound(std::size_t in_bucket) const {
    const double level = 1.0 / static_cast<double>(Element::kLaw.levels);
    const auto count = static_cast<double>(in_bucket);
    return {.nmse = count * level * level * (1.0 + 1e-5),
            .of_largest = level * (l2 ? std::sqrt(count) : 1.0) * (1.0 + 1e-6),
            .absolute = 0x1p-100};
  }

 private:
  /// In the order that kernels/law/qsgd.hpp states.
  [[nodiscard, gnu::always_inline]] static float l2_norm(const float* x, std::size_t count) {
    std::array<float, law::kNormLanes> lane{};
    std::size_t i = 0;
    for (; i + law::kNormLanes <= count; i += law::kNormLanes) {
      for (std::size_t j = 0; j < law::kNormLanes; ++j) lane[j] += x[i + j] * x[i + j];
    }
    for (std::size_t j = 0; i + j < count; ++j) lane[j] += x[i + j] * x[i + j];
    for (std::size_t half = law::kNormLanes / 2; half > 0; half /= 2) {
      for (std::size_t j = 0; j < half; ++j) lane[j] += lane[j + half];
    }
    return std::sqrt(lane[0]);
  }
};

}  // namespace gradtool
