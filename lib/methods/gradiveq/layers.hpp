#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "lib/codecs/layout.hpp"
#include "lib/codecs/params.hpp"
#include "lib/core/view.hpp"

/// How GradiVeQ (Yu et al., NeurIPS 2018, section 2) cuts convolution layers into slices, and where slices and
/// everything else lie in rows and messages.
namespace gradtool::gradiveq {

/// Taps [first_tap, last_tap) of a tensor of `filters` rows of `taps` elements, and where they lie in a row of floats
/// that holds them tap by tap: `filters` elements of one tap, then those of the next. A part of a gradient that moves
/// as it is has one tap.
struct TapRange {
  std::size_t first = 0;  ///< where the tensor starts in the gradient
  std::size_t filters = 0, taps = 1;
  std::size_t first_tap = 0, last_tap = 1;
  std::size_t row_first = 0;  ///< where first_tap starts in the row
  std::size_t mean_taps = 0;  ///< the means of the taps repeat after this many; 0: every tap has means of its own

  [[nodiscard]] std::size_t count() const { return (last_tap - first_tap) * filters; }
};

/// A convolution layer of shape (F, D, H, W) and its slices: whole spatial taps, `slice_taps` in each. The paper
/// flattens with the filter fastest, then depth, then width and height, so that a slice is consecutive. Any order
/// inside a slice gives the same reconstruction, because principal components commute with permutations of the
/// coordinates. The order here is (tap, filter, depth), for which F·D rows of taps are transposed once.
struct Layer {
  std::size_t tensor = 0;        ///< position in the layout
  std::size_t first = 0;         ///< where the tensor starts in the gradient
  std::size_t filters = 0;       ///< F·D
  std::size_t taps = 0;          ///< H·W
  std::size_t slice_taps = 0;    ///< taps of a slice, c
  std::size_t slices = 0;        ///< S = floor(taps / c)
  std::size_t sliced_first = 0;  ///< where the first slice starts in a row of all slices of all layers

  [[nodiscard]] std::size_t coordinates() const { return slice_taps * filters; }  ///< elements of a slice, K
  [[nodiscard]] std::size_t sliced() const { return slices * coordinates(); }     ///< elements of all slices
  [[nodiscard]] std::size_t rest() const { return taps * filters - sliced(); }    ///< elements behind the last slice
  /// The slices, and the elements behind them, in a row from `row_first` on.
  [[nodiscard]] TapRange slice_range(std::size_t row_first) const {
    return {.first = first, .filters = filters, .taps = taps, .last_tap = slices * slice_taps, .row_first = row_first};
  }
  [[nodiscard]] TapRange rest_range(std::size_t row_first) const {
    return {.first = first,
            .filters = filters,
            .taps = taps,
            .first_tap = slices * slice_taps,
            .last_tap = taps,
            .row_first = row_first};
  }
};

/// The taps of a slice by the parameter `slice`: the number asked for, at most `taps`; or with slice=auto the smallest
/// divisor of `taps` that gives a slice the 768 elements of the paper's example, `taps` where none does.
[[nodiscard]] std::size_t slice_taps(const Params& params, std::size_t filters, std::size_t taps);

/// The layers of a layout that may be compressed: convolutions of at least two dimensions whose slices have from 2 to
/// `max_slice` elements.
[[nodiscard]] std::vector<Layer> layers_of(const Layout& layout, const Params& params);

/// The slices of all layers, one behind the other in a row.
[[nodiscard]] std::vector<TapRange> slice_ranges(std::span<const Layer> layers);

/// Copies a range of taps from the gradient to its place in `row`.
void gather_taps(Queue<Space::host> queue, const TapRange& range, const float* gradient, float* row);
/// The way back, times `factor`.
void scatter_taps(Queue<Space::host> queue, const TapRange& range, const float* row, float factor, float* gradient);

/// Moves several ranges of taps between gradients and rows; for the GPU see gpu.hpp.
template <Space S>
class TapMoves;

template <>
class TapMoves<Space::host> {
 public:
  /// Takes memory for `ranges` and any choice of them.
  explicit TapMoves(std::span<const TapRange> ranges) { ranges_.reserve(ranges.size()); }
  /// The ranges that move from now on. Allocates nothing.
  void choose(Queue<Space::host> /*queue*/, std::span<const TapRange> ranges) {
    ranges_.assign(ranges.begin(), ranges.end());
  }
  void gather(Queue<Space::host> queue, const float* gradient, float* row) const {
    for (const auto& range : ranges_) gather_taps(queue, range, gradient, row);
  }
  void scatter(Queue<Space::host> queue, const float* row, float factor, float* gradient) const {
    for (const auto& range : ranges_) scatter_taps(queue, range, row, factor, gradient);
  }

 private:
  std::vector<TapRange> ranges_;
};

/// The coordinates [from, to) of the slices [first, first + count) of a layer.
struct SlicePart {
  std::size_t first, count;
  std::size_t from, to;
};
/// out[i * stride + k - from] := coordinate k of slice first + i, minus its mean. The means of slice m begin at
/// means + m * mean_stride.
void gather_slices(const Layer& layer, const SlicePart& part, const float* gradient, const float* means,
                   std::size_t mean_stride, float* out, std::size_t stride);
/// The way back, plus the mean.
void scatter_slices(const Layer& layer, const SlicePart& part, const float* in, std::size_t stride, const float* means,
                    std::size_t mean_stride, float* gradient);

/// The layout of a message between ranks, in the order of the gradient: the coefficients of layers that are compressed,
/// and all other elements as they are.
class Message {
 public:
  /// For a gradient of n elements. `layers` outlive the message.
  Message(std::span<const Layer> layers, std::size_t n);

  /// Every range that any message sends as it is.
  [[nodiscard]] std::vector<TapRange> every_range() const;
  /// Lays out the message of a sampling step that sends everything but the slices.
  void leave_slices();
  /// Lays out the message of a compressed step: components[l] coefficients for each slice of layer l, or the layer as
  /// it is where that is 0. Allocates nothing.
  void compress(std::span<const std::uint64_t> components);

  /// The ranges that the message sends uncompressed, and the number of all its floats.
  [[nodiscard]] std::span<const TapRange> ranges() const { return ranges_; }
  [[nodiscard]] std::size_t floats() const { return floats_; }
  /// The index of a layer's first coefficient.
  [[nodiscard]] std::size_t coefficients_first(std::size_t layer) const { return coefficients_first_[layer]; }

 private:
  /// Part of the gradient: one layer, or tensors that are never compressed.
  struct Part {
    std::size_t first = 0;
    std::size_t count = 0;
    const Layer* layer = nullptr;
    std::size_t index = 0;  ///< of the layer
  };
  void send_whole(const Part& part);
  void send_rest(const Layer& layer);

  std::vector<Part> parts_;
  std::vector<TapRange> ranges_;
  std::vector<std::size_t> coefficients_first_;
  std::size_t floats_ = 0;
};

}  // namespace gradtool::gradiveq
