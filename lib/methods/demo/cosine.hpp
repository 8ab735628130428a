#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "lib/codecs/tensor_chunks.hpp"

/// The orthonormal discrete cosine transform (DCT-II, and back) of chunks, in both directions of the rectangle.
///
/// It is made of products with the basis, as in DeMo's own code: for lengths of at most 64 that takes a third of the
/// time of FFTW's REDFT10, which uses no vector instructions and allocates while it runs, and the sums have an order
/// that a GPU keeps, so that spectra are the same bits on every processor.
///
/// Coefficient (u, v) of a chunk, of vertical frequency u and horizontal frequency v, lies at v * rows + u.
namespace gradtool {

/// The bases of all lengths that the chunks of a layout have.
class CosineBases {
 public:
  static constexpr std::size_t kSide = TensorChunk::kSide;
  static constexpr std::size_t kHalf = kSide / 2;

  explicit CosineBases(const TensorChunks& chunks);

  /// Entry k * 64 + i is that of frequency k at element i; zeros behind the length.
  [[nodiscard]] const float* of(std::size_t length) const { return rows_.data() + place_[length] * kSide * kSide; }
  /// The basis in the order of `forward`: row i < 32 has the even frequencies at element i, then the odd ones.
  [[nodiscard]] const float* folded(std::size_t length) const {
    return folded_.data() + place_[length] * kHalf * kSide;
  }
  /// The place of each length's basis in `all`, which holds all bases one behind the other.
  [[nodiscard]] std::vector<std::uint32_t> places() const { return {place_.begin(), place_.end()}; }
  [[nodiscard]] const std::vector<float>& all() const { return rows_; }
  [[nodiscard]] const std::vector<float>& all_folded() const { return folded_; }

 private:
  std::array<std::uint32_t, kSide + 1> place_{};
  std::vector<float> rows_, folded_;
};

namespace host {

/// coefficients := the transform of the chunk whose elements begin at `from`, the first of the unit.
void cosine_forward(const TensorChunk& chunk, const CosineBases& bases, const float* from, float* coefficients);
/// block := the inverse transform: element (row, column) at row * 64 + column. Frequencies that are 0 take no time.
void cosine_inverse(const TensorChunk& chunk, const CosineBases& bases, const float* coefficients, float* block);

}  // namespace host
}  // namespace gradtool
