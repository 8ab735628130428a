#pragma once

#include <cstddef>
#include <vector>

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
};

/// The taps of a slice: the number asked for (at most all of them), or for slice=auto the smallest divisor of the taps
/// that gives a slice the 768 elements of the paper's example, all taps where none does.
[[nodiscard]] std::size_t slice_taps(const Params& params, std::size_t filters, std::size_t taps);

/// The layers of a layout that may be compressed: convolutions of at least two dimensions whose slices have at most
/// `max_slice` elements.
[[nodiscard]] std::vector<Layer> layers_of(const Layout& layout, const Params& params);

/// Taps [first_tap, last_tap) of a layer, tap by tap, from its gradient (a tap's neighbours are F·D rows of taps).
void gather_taps(Queue<Space::host> queue, const Layer& layer, const float* gradient, std::size_t first_tap,
                 std::size_t last_tap, float* out);
/// The way back, times `factor`.
void scatter_taps(Queue<Space::host> queue, const Layer& layer, const float* in, std::size_t first_tap,
                  std::size_t last_tap, float factor, float* gradient);

/// Coordinates [from, to) of slices [m, m + count): out[i * stride + k - from], minus the mean of the slice.
void gather_slices(const Layer& layer, const float* gradient, const float* means, std::size_t mean_stride,
                   std::size_t m, std::size_t count, std::size_t from, std::size_t to, float* out, std::size_t stride);
/// The way back, plus the mean.
void scatter_slices(const Layer& layer, const float* in, std::size_t stride, const float* means,
                    std::size_t mean_stride, std::size_t m, std::size_t count, std::size_t from, std::size_t to,
                    float* gradient);

}  // namespace gradtool::gradiveq
