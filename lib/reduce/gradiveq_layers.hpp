#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "kernels/law/tap_range.hpp"
#include "lib/codecs/layout.hpp"
#include "lib/codecs/params.hpp"
#include "lib/core/view.hpp"

namespace gradtool::gradiveq {

/// A convolution layer of shape (F, D, H, W) cut into slices (Yu et al., section 2): whole spatial taps, `slice_taps`
/// of them in each. The paper flattens with the filter fastest, then depth, then width and height, so that a slice is
/// consecutive. Any order inside a slice gives the same reconstruction, because principal components commute with
/// permutations of the coordinates; here it is (tap, filter, depth), to which F·D rows of taps transpose in one pass.
struct Layer {
  std::size_t tensor = 0;      ///< position in the layout
  std::size_t first = 0;       ///< where the tensor starts in the gradient
  std::size_t filters = 0;     ///< F·D
  std::size_t taps = 0;        ///< H·W
  std::size_t slice_taps = 0;  ///< c
  std::size_t slices = 0;      ///< S = floor(taps / c)
  std::size_t sliced_at = 0;   ///< where its first slice starts in a row of all slices of all layers

  [[nodiscard]] std::size_t coordinates() const { return slice_taps * filters; }  ///< K
  [[nodiscard]] std::size_t sliced() const { return slices * coordinates(); }     ///< elements in slices
  [[nodiscard]] std::size_t rest() const { return taps * filters - sliced(); }    ///< elements that are left over
  /// Its slices and what is left over, tap by tap from `at` on.
  [[nodiscard]] law::TapRange slice_range(std::size_t at) const {
    return {.first = first, .filters = filters, .taps = taps, .last_tap = slices * slice_taps, .at = at};
  }
  [[nodiscard]] law::TapRange rest_range(std::size_t at) const {
    return {
        .first = first, .filters = filters, .taps = taps, .first_tap = slices * slice_taps, .last_tap = taps, .at = at};
  }
};

/// The taps of a slice: the number asked for (at most all of them), or for slice=auto the smallest divisor of the taps
/// that gives a slice the 768 elements of the paper's example, all taps where none does.
[[nodiscard]] std::size_t slice_taps(const Params& params, std::size_t filters, std::size_t taps);

/// The layers of a layout that may be compressed: convolutions of at least two dimensions whose slices have at most
/// `max_slice` elements.
[[nodiscard]] std::vector<Layer> layers_of(const Layout& layout, const Params& params);

/// The slices of all layers, one behind the other.
[[nodiscard]] std::vector<law::TapRange> slice_ranges(std::span<const Layer> layers);

/// A range of taps from the gradient to where it lies in `row`.
void gather_taps(Queue<Space::host> queue, const law::TapRange& range, const float* gradient, float* row);
/// The way back, times `factor`.
void scatter_taps(Queue<Space::host> queue, const law::TapRange& range, const float* row, float factor,
                  float* gradient);

/// Several ranges, as cuda::TapMoves (kernels/cuda/tap_moves.hpp) moves them on a GPU.
class TapMoves {
 public:
  explicit TapMoves(std::span<const law::TapRange> ranges) { ranges_.reserve(ranges.size()); }
  void choose(Queue<Space::host> /*queue*/, std::span<const law::TapRange> ranges) {
    ranges_.assign(ranges.begin(), ranges.end());
  }
  void gather(Queue<Space::host> queue, const float* gradient, float* row) const {
    for (const auto& range : ranges_) gather_taps(queue, range, gradient, row);
  }
  void scatter(Queue<Space::host> queue, const float* row, float factor, float* gradient) const {
    for (const auto& range : ranges_) scatter_taps(queue, range, row, factor, gradient);
  }

 private:
  std::vector<law::TapRange> ranges_;
};

/// Coordinates [from, to) of slices [m, m + count): out[i * stride + k - from], minus the mean of the slice.
void gather_slices(const Layer& layer, const float* gradient, const float* means, std::size_t mean_stride,
                   std::size_t m, std::size_t count, std::size_t from, std::size_t to, float* out, std::size_t stride);
/// The way back, plus the mean.
void scatter_slices(const Layer& layer, const float* in, std::size_t stride, const float* means,
                    std::size_t mean_stride, std::size_t m, std::size_t count, std::size_t from, std::size_t to,
                    float* gradient);

}  // namespace gradtool::gradiveq
