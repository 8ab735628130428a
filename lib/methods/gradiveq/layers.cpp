#include "lib/methods/gradiveq/layers.hpp"

#include <algorithm>

#include "lib/core/task_pool.hpp"

namespace gradtool::gradiveq {
namespace {

constexpr std::size_t kStrip = 256;  // filters whose taps stay in the first-level cache while they are read in turn

/// Fewer filters than this are not worth a thread of their own.
std::size_t least_filters(const TapRange& range) {
  return range.taps == 1 ? std::size_t{1} << 15 : 4096;
}

/// body(x, y) for all elements of a range: their places behind the tensor's start in the gradient and in the row.
template <class Body>
void for_taps(const TapRange& range, std::size_t first, std::size_t last, const Body& body) {
  for (; first < last; first += kStrip) {
    const std::size_t end = std::min(last, first + kStrip);
    for (std::size_t tap = range.first_tap; tap < range.last_tap; ++tap) {
      const std::size_t row = range.row_first + (tap - range.first_tap) * range.filters;
      for (std::size_t i = first; i < end; ++i) body(i * range.taps + tap, row + i);
    }
  }
}

/// body(first, i, coordinate, count) for runs of elements of one tap in slice part.first + i: where the run starts
/// behind the layer's start in the gradient, its first coordinate in the slice, and its length.
template <class Body>
void for_runs(const Layer& layer, const SlicePart& part, const Body& body) {
  for (std::size_t from = part.from; from < part.to;) {
    const std::size_t tap = from / layer.filters;
    const std::size_t filter = from - tap * layer.filters;
    const std::size_t count = std::min(part.to - from, layer.filters - filter);
    for (std::size_t i = 0; i < part.count; ++i)
      body(filter * layer.taps + (part.first + i) * layer.slice_taps + tap, i, from, count);
    from += count;
  }
}

}  // namespace

std::size_t slice_taps(const Params& params, std::size_t filters, std::size_t taps) {
  if (!params.is("slice", "auto")) return std::min(taps, static_cast<std::size_t>(params.integer("slice")));
  constexpr std::size_t kWanted = 768;
  for (std::size_t c = 1; c < taps; ++c) {
    if (taps % c == 0 && c * filters >= kWanted) return c;
  }
  return taps;
}

std::vector<Layer> layers_of(const Layout& layout, const Params& params) {
  const auto most = static_cast<std::size_t>(params.integer("max_slice"));
  std::vector<Layer> layers;
  std::size_t sliced = 0;
  for (std::size_t t = 0; t < layout.tensors.size(); ++t) {
    const TensorShape& tensor = layout.tensors[t];
    if (tensor.kind != "conv" || tensor.shape.size() < 2 || tensor.elements == 0) continue;
    Layer layer{.tensor = t, .first = tensor.first};
    layer.filters = static_cast<std::size_t>(tensor.shape[0] * tensor.shape[1]);
    layer.taps = tensor.elements / layer.filters;
    layer.slice_taps = slice_taps(params, layer.filters, layer.taps);
    layer.slices = layer.taps / layer.slice_taps;
    if (layer.coordinates() > most || layer.coordinates() < 2) continue;
    layer.sliced_first = sliced;
    sliced += layer.sliced();
    layers.push_back(layer);
  }
  return layers;
}

std::vector<TapRange> slice_ranges(std::span<const Layer> layers) {
  std::vector<TapRange> ranges;
  for (const Layer& layer : layers) ranges.push_back(layer.slice_range(layer.sliced_first));
  return ranges;
}

void gather_taps(Queue<Space::host> queue, const TapRange& range, const float* gradient, float* row) {
  const float* tensor = gradient + range.first;
  if (range.count() == 0) return;
  parallel_for(queue, range.filters, 16, least_filters(range), [&](std::size_t first, std::size_t last) {
    if (range.taps == 1) {
      std::copy(tensor + first, tensor + last, row + range.row_first + first);
    } else {
      for_taps(range, first, last, [&](std::size_t x, std::size_t y) { row[y] = tensor[x]; });
    }
  });
}

void scatter_taps(Queue<Space::host> queue, const TapRange& range, const float* row, float factor, float* gradient) {
  float* tensor = gradient + range.first;
  if (range.count() == 0) return;
  parallel_for(queue, range.filters, 16, least_filters(range), [&](std::size_t first, std::size_t last) {
    if (range.taps == 1) {
      const float* from = row + range.row_first;
      for (std::size_t i = first; i < last; ++i) tensor[i] = from[i] * factor;
    } else {
      for_taps(range, first, last, [&](std::size_t x, std::size_t y) { tensor[x] = row[y] * factor; });
    }
  });
}

void gather_slices(const Layer& layer, const SlicePart& part, const float* gradient, const float* means,
                   std::size_t mean_stride, float* out, std::size_t stride) {
  for_runs(layer, part, [&](std::size_t first, std::size_t i, std::size_t coordinate, std::size_t count) {
    const float* x = gradient + layer.first + first;
    const float* mean = means + (part.first + i) * mean_stride + coordinate;
    float* row = out + i * stride + (coordinate - part.from);
    for (std::size_t f = 0; f < count; ++f) row[f] = x[f * layer.taps] - mean[f];
  });
}

void scatter_slices(const Layer& layer, const SlicePart& part, const float* in, std::size_t stride, const float* means,
                    std::size_t mean_stride, float* gradient) {
  for_runs(layer, part, [&](std::size_t first, std::size_t i, std::size_t coordinate, std::size_t count) {
    float* x = gradient + layer.first + first;
    const float* mean = means + (part.first + i) * mean_stride + coordinate;
    const float* row = in + i * stride + (coordinate - part.from);
    for (std::size_t f = 0; f < count; ++f) x[f * layer.taps] = row[f] + mean[f];
  });
}

Message::Message(std::span<const Layer> layers, std::size_t n) : coefficients_first_(layers.size(), 0) {
  std::size_t end = 0;  // of the part before
  for (std::size_t l = 0; l < layers.size(); ++l) {
    const Layer& layer = layers[l];
    if (layer.first > end) parts_.push_back({.first = end, .count = layer.first - end});
    const std::size_t elements = layer.filters * layer.taps;
    parts_.push_back({.first = layer.first, .count = elements, .layer = &layer, .index = l});
    end = layer.first + elements;
  }
  if (end < n) parts_.push_back({.first = end, .count = n - end});
  ranges_.reserve(parts_.size());
}

std::vector<TapRange> Message::every_range() const {
  std::vector<TapRange> ranges;
  for (const Part& part : parts_) {
    ranges.push_back({.first = part.first, .filters = part.count});
    if (part.layer != nullptr) ranges.push_back(part.layer->rest_range(0));
  }
  return ranges;
}

void Message::leave_slices() {
  ranges_.clear();
  floats_ = 0;
  for (const Part& part : parts_) {
    if (part.layer == nullptr) {
      send_whole(part);
    } else {
      send_rest(*part.layer);
    }
  }
}

void Message::compress(std::span<const std::uint64_t> components) {
  ranges_.clear();
  floats_ = 0;
  for (const Part& part : parts_) {
    if (part.layer == nullptr || components[part.index] == 0) {
      send_whole(part);
    } else {
      coefficients_first_[part.index] = floats_;
      floats_ += part.layer->slices * components[part.index];
      send_rest(*part.layer);
    }
  }
}

void Message::send_whole(const Part& part) {
  ranges_.push_back({.first = part.first, .filters = part.count, .row_first = floats_});
  floats_ += part.count;
}

void Message::send_rest(const Layer& layer) {
  if (layer.rest() > 0) ranges_.push_back(layer.rest_range(floats_));
  floats_ += layer.rest();
}

}  // namespace gradtool::gradiveq
