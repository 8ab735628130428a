#include "lib/methods/demo/cosine.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "kernels/float_bits.hpp"

namespace gradtool {

CosineBases::CosineBases(const TensorChunks& chunks) {
  std::array<bool, kSide + 1> used{};
  for (const TensorChunk& chunk : chunks.chunks()) used[chunk.rows] = used[chunk.columns] = true;
  std::uint32_t count = 0;
  for (std::size_t length = 1; length <= kSide; ++length) {
    if (!used[length]) continue;
    place_[length] = count++;
    const std::size_t at = rows_.size();
    rows_.resize(at + kSide * kSide, 0.0F);
    folded_.resize(folded_.size() + kHalf * kSide, 0.0F);
    const auto n = static_cast<double>(length);
    for (std::size_t k = 0; k < length; ++k) {
      for (std::size_t i = 0; i < length; ++i) {
        const double angle = std::numbers::pi * static_cast<double>((2 * i + 1) * k) / (2.0 * n);
        const auto entry = static_cast<float>(std::sqrt((k == 0 ? 1.0 : 2.0) / n) * std::cos(angle));
        rows_[at + k * kSide + i] = entry;
        if (i < (length + 1) / 2) folded_[at / 2 + i * kSide + k % 2 * kHalf + k / 2] = entry;
      }
    }
  }
}

namespace host {
namespace {

constexpr std::size_t kSide = CosineBases::kSide;
constexpr std::size_t kHalf = CosineBases::kHalf;

/// out[k] := sum over i of in[i] basis[k][i]. Even frequencies are the same from both ends and odd ones of opposite
/// signs, so that half of the products are enough.
[[gnu::always_inline]] inline void transform_row(const float* in, std::size_t length, const float* folded, float* out) {
  alignas(64) float sums[kSide] = {};
  for (std::size_t i = 0; i < (length + 1) / 2; ++i, folded += kSide) {
    const float other = 2 * i + 1 == length ? 0.0F : in[length - 1 - i];
    const float even = in[i] + other;
    const float odd = in[i] - other;
    for (std::size_t q = 0; q < kHalf; ++q) sums[q] += even * folded[q];
    for (std::size_t q = kHalf; q < kSide; ++q) sums[q] += odd * folded[q];
  }
  for (std::size_t q = 0; q < kHalf; ++q) {
    out[2 * q] = sums[q];
    out[2 * q + 1] = sums[kHalf + q];
  }
}

/// out[i] := sum over k of in[k] basis[k][i].
[[gnu::always_inline]] inline void inverse_row(const float* in, std::size_t length, const float* basis, float* out) {
  alignas(64) float sums[kSide] = {};
  for (std::size_t k = 0; k < length; ++k, basis += kSide) {
    const float value = in[k];
    if (value == 0.0F) continue;
    for (std::size_t i = 0; i < kSide; ++i) sums[i] += value * basis[i];
  }
  std::copy_n(sums, kSide, out);
}

/// Squares of 8 x 8 are turned at a time, so that both sides stay in few cache lines.
[[gnu::always_inline]] inline void transpose(const float* from, std::size_t rows, float* to) {
  constexpr std::size_t kTile = 8;
  for (std::size_t r = 0; r < rows; r += kTile) {
    for (std::size_t c = 0; c < kSide; c += kTile) {
      for (std::size_t i = 0; i < kTile; ++i) {
        for (std::size_t j = 0; j < kTile; ++j) to[(c + j) * kSide + r + i] = from[(r + i) * kSide + c + j];
      }
    }
  }
}

}  // namespace

GT_SIMD_CLONES void cosine_forward(const TensorChunk& chunk, const CosineBases& bases, const float* from,
                                   float* coefficients) {
  alignas(64) float across[kSide * kSide];
  alignas(64) float turned[kSide * kSide];
  alignas(64) float column[kSide];
  for (std::size_t row = 0; row < chunk.rows; ++row)
    transform_row(from + chunk.first + row * chunk.stride, chunk.columns, bases.folded(chunk.columns),
                  across + row * kSide);
  std::fill(across + chunk.rows * kSide, across + (chunk.rows + 7) / 8 * 8 * kSide, 0.0F);
  transpose(across, chunk.rows, turned);
  for (std::size_t v = 0; v < chunk.columns; ++v) {
    transform_row(turned + v * kSide, chunk.rows, bases.folded(chunk.rows), column);
    std::copy_n(column, chunk.rows, coefficients + v * chunk.rows);
  }
}

GT_SIMD_CLONES void cosine_inverse(const TensorChunk& chunk, const CosineBases& bases, const float* coefficients,
                                   float* block) {
  alignas(64) float down[kSide * kSide];  // the inverse along columns: a row for each horizontal frequency
  alignas(64) float turned[kSide * kSide];
  for (std::size_t v = 0; v < chunk.columns; ++v)
    inverse_row(coefficients + v * chunk.rows, chunk.rows, bases.of(chunk.rows), down + v * kSide);
  std::fill(down + chunk.columns * kSide, down + (chunk.columns + 7) / 8 * 8 * kSide, 0.0F);
  transpose(down, chunk.columns, turned);
  for (std::size_t i = 0; i < chunk.rows; ++i)
    inverse_row(turned + i * kSide, chunk.columns, bases.of(chunk.columns), block + i * kSide);
}

}  // namespace host
}  // namespace gradtool
