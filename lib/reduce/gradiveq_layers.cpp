#include "lib/reduce/gradiveq_layers.hpp"

#include <algorithm>

#include "lib/core/task_pool.hpp"

namespace gradtool::gradiveq {
namespace {

constexpr std::size_t kStrip = 256;  // filters that stay in the first cache while taps are read one after the other

/// Filters that are worth a thread of their own.
std::size_t least_filters(const law::TapRange& range) {
  return range.taps == 1 ? std::size_t{1} << 15 : 4096;
}

/// body(slice, tap, first, last, column): the coordinates [from, to) of slices [m, m + count) as runs of filters
/// [first, last) of one tap; `column` is the run's first coordinate, counted from `from`.
template <class F>
void for_each_run(const Layer& layer, std::size_t m, std::size_t count, std::size_t from, std::size_t to, F&& body) {
  while (from < to) {
    const std::size_t tap = from / layer.filters;
    const std::size_t first = from - tap * layer.filters;
    const std::size_t here = std::min(to - from, layer.filters - first);
    for (std::size_t i = 0; i < count; ++i) body(i, (m + i) * layer.slice_taps + tap, first, first + here);
    from += here;
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
  std::size_t at = 0;
  for (std::size_t t = 0; t < layout.tensors.size(); ++t) {
    const TensorShape& tensor = layout.tensors[t];
    if (tensor.kind != "conv" || tensor.shape.size() < 2 || tensor.elements == 0) continue;
    Layer layer{.tensor = t, .first = tensor.first};
    layer.filters = static_cast<std::size_t>(tensor.shape[0] * tensor.shape[1]);
    layer.taps = tensor.elements / layer.filters;
    layer.slice_taps = slice_taps(params, layer.filters, layer.taps);
    layer.slices = layer.taps / layer.slice_taps;
    if (layer.coordinates() > most || layer.coordinates() < 2) continue;
    layer.sliced_at = at;
    at += layer.sliced();
    layers.push_back(layer);
  }
  return layers;
}

std::vector<law::TapRange> slice_ranges(std::span<const Layer> layers) {
  std::vector<law::TapRange> ranges;
  for (const Layer& layer : layers) ranges.push_back(layer.slice_range(layer.sliced_at));
  return ranges;
}

void gather_taps(Queue<Space::host> queue, const law::TapRange& range, const float* gradient, float* row) {
  const float* x = gradient + range.first;
  if (range.count() == 0) return;
  parallel_for(queue, range.filters, 16, least_filters(range), [&](std::size_t first, std::size_t last) {
    if (range.taps == 1) {
      std::copy(x + first, x + last, row + range.at + first);
      return;
    }
    for (; first < last; first += kStrip) {
      const std::size_t end = std::min(last, first + kStrip);
      for (std::size_t tap = range.first_tap; tap < range.last_tap; ++tap) {
        float* to = row + range.at + (tap - range.first_tap) * range.filters;
        for (std::size_t i = first; i < end; ++i) to[i] = x[i * range.taps + tap];
      }
    }
  });
}

void scatter_taps(Queue<Space::host> queue, const law::TapRange& range, const float* row, float factor,
                  float* gradient) {
  float* x = gradient + range.first;
  if (range.count() == 0) return;
  parallel_for(queue, range.filters, 16, least_filters(range), [&](std::size_t first, std::size_t last) {
    if (range.taps == 1) {
      const float* from = row + range.at;
      for (std::size_t i = first; i < last; ++i) x[i] = from[i] * factor;
      return;
    }
    for (; first < last; first += kStrip) {
      const std::size_t end = std::min(last, first + kStrip);
      for (std::size_t tap = range.first_tap; tap < range.last_tap; ++tap) {
        const float* from = row + range.at + (tap - range.first_tap) * range.filters;
        for (std::size_t i = first; i < end; ++i) x[i * range.taps + tap] = from[i] * factor;
      }
    }
  });
}

void gather_slices(const Layer& layer, const float* gradient, const float* means, std::size_t mean_stride,
                   std::size_t m, std::size_t count, std::size_t from, std::size_t to, float* out, std::size_t stride) {
  const float* x = gradient + layer.first;
  for_each_run(layer, m, count, from, to, [&](std::size_t i, std::size_t tap, std::size_t first, std::size_t last) {
    const std::size_t coordinate = (tap - (m + i) * layer.slice_taps) * layer.filters + first;
    const float* mean = means + (m + i) * mean_stride + coordinate;
    float* row = out + i * stride + (coordinate - from);
    for (std::size_t f = first; f < last; ++f) row[f - first] = x[f * layer.taps + tap] - mean[f - first];
  });
}

void scatter_slices(const Layer& layer, const float* in, std::size_t stride, const float* means,
                    std::size_t mean_stride, std::size_t m, std::size_t count, std::size_t from, std::size_t to,
                    float* gradient) {
  float* x = gradient + layer.first;
  for_each_run(layer, m, count, from, to, [&](std::size_t i, std::size_t tap, std::size_t first, std::size_t last) {
    const std::size_t coordinate = (tap - (m + i) * layer.slice_taps) * layer.filters + first;
    const float* mean = means + (m + i) * mean_stride + coordinate;
    const float* row = in + i * stride + (coordinate - from);
    for (std::size_t f = first; f < last; ++f) x[f * layer.taps + tap] = row[f - first] + mean[f - first];
  });
}

}  // namespace gradtool::gradiveq
