#include "lib/reduce/gradiveq_compressor.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstring>

#include "lib/core/task_pool.hpp"

namespace gradtool::gradiveq {
namespace {

using host::kBasisBlock;
using host::kTile;

constexpr std::size_t kTaskCoordinates = 8 * kTile;

std::size_t threads_of(Queue<Space::host> queue) {
  return queue.pool == nullptr ? 1 : static_cast<std::size_t>(queue.pool->threads());
}

std::size_t capacity(std::span<const Layer> layers, std::size_t samples, std::size_t fit_bytes, std::size_t threads) {
  const auto padded = Arena<Space::host>::padded_size;
  std::size_t bytes = threads * padded(fit_bytes);
  std::size_t sliced = 0;
  for (const Layer& layer : layers) {
    const std::size_t k = layer.coordinates();
    bytes += padded(4 * samples * k) + padded(4 * host::basis_size(k, std::min(samples - 1, k)));
    sliced += layer.sliced();
  }
  return bytes + padded(4 * sliced);
}

/// The slices that are multiplied together: up to four, of equal number.
template <class F>
void for_each_group(std::size_t slices, F&& body) {
  const std::size_t groups = (slices + host::kSlicesAtOnce - 1) / host::kSlicesAtOnce;
  for (std::size_t g = 0; g < groups; ++g) {
    const std::size_t m = slices * g / groups;
    body(m, slices * (g + 1) / groups - m);
  }
}

std::uint64_t mix(std::uint64_t hash, std::uint64_t word) {
  hash = (hash ^ word) * 0x9E3779B97F4A7C15ULL;
  return hash ^ (hash >> 29);
}
std::uint64_t mix(std::uint64_t hash, HostView<const float> values) {
  for (const float value : values.span()) {
    std::uint32_t bits = 0;
    std::memcpy(&bits, &value, sizeof bits);
    hash = mix(hash, bits);
  }
  return hash;
}

/// Adds to two sums of squares in float64: of the gradient, and of what is left of it without the mean.
void add_norms(const Layer& layer, const float* gradient, const float* centred, std::size_t m, std::size_t count,
               std::size_t from, std::size_t to, double* norms) {
  for (std::size_t i = 0; i < count; ++i) {
    for (std::size_t k = from; k < to; ++k) {
      const std::size_t tap = (m + i) * layer.slice_taps + k / layer.filters;
      const auto x = static_cast<double>(gradient[layer.first + k % layer.filters * layer.taps + tap]);
      const auto z = static_cast<double>(centred[i * kTile + k - from]);
      norms[0] += x * x;
      norms[1] += z * z;
    }
  }
}

}  // namespace

Compressor::Compressor(std::vector<Layer> layers, const Params& params, Queue<Space::host> queue)
    : layers_{std::move(layers)},
      samples_{static_cast<std::size_t>(params.integer("lt"))},
      lambda_{params.real("lambda")},
      min_ratio_{params.real("min_ratio")},
      shared_mean_{params.is("mean", "shared")},
      fit_{samples_},
      components_(layers_.size(), 0),
      digests_(layers_.size(), 0),
      arena_{capacity(layers_, samples_, fit_.scratch_bytes(), threads_of(queue))} {
  for (std::size_t l = 0; l < layers_.size(); ++l) {
    const Layer& layer = layers_[l];
    const std::size_t k = layer.coordinates();
    rows_.push_back(arena_.take<float>(samples_ * k));
    bases_.push_back(arena_.take<float>(host::basis_size(k, most_components(layer))));
    first_task_.push_back(tasks_.size());
    for (std::size_t from = 0; from < k; from += kTaskCoordinates) {
      tasks_.push_back({.layer = l, .from = from, .to = std::min(k, from + kTaskCoordinates), .sums_at = sums_});
      sums_ += layer.slices * most_components(layer);
    }
    sliced_ += layer.sliced();
  }
  first_task_.push_back(tasks_.size());
  means_ = arena_.take<float>(sliced_);
  for (std::size_t t = 0; t < threads_of(queue); ++t) fit_scratch_.push_back(arena_.take_bytes(fit_.scratch_bytes()));
}

std::size_t Compressor::most_components(const Layer& layer) const {
  return std::min(samples_ - 1, layer.coordinates());
}

std::size_t Compressor::scratch_bytes() const {
  return Arena<Space::host>::padded_size(4 * sums_) + Arena<Space::host>::padded_size(16 * tasks_.size());
}

HostView<float> Compressor::basis(std::size_t layer) const {
  return bases_[layer].first(host::basis_size(layers_[layer].coordinates(), components_[layer]));
}

void Compressor::sample(Queue<Space::host> queue, const float* slices, std::size_t index) {
  for (std::size_t l = 0; l < layers_.size(); ++l) {
    const std::size_t k = layers_[l].coordinates();
    std::memcpy(rows_[l].data() + index * k, slices + layers_[l].sliced_at, 4 * k);
  }
  float* sum = means_.data();
  parallel_for(queue, sliced_, 16, 1 << 14, [&](std::size_t first, std::size_t last) {
    if (index == 0) {
      std::memcpy(sum + first, slices + first, 4 * (last - first));
      return;
    }
    for (std::size_t i = first; i < last; ++i) sum[i] += slices[i];
  });
}

void Compressor::fit_layer(std::size_t index, HostView<std::byte> scratch) {
  const Layer& layer = layers_[index];
  const std::size_t k = layer.coordinates();
  const auto means = means_.part(layer.sliced_at, layer.sliced());
  bool finite = true;
  for (float& mean : means.span()) {
    mean /= static_cast<float>(samples_);
    finite = finite && std::isfinite(mean);
  }
  std::size_t d = finite ? fit_.fit(rows_[index].data(), k, lambda_, bases_[index].data(), scratch) : 0;
  if (static_cast<double>(k) < min_ratio_ * static_cast<double>(d)) d = 0;
  components_[index] = d;
}

void Compressor::fit(Queue<Space::host> queue) {
  std::atomic<std::size_t> next{0};
  parallel_parts(queue, fit_scratch_.size(), fit_scratch_.size(), 1, [&](std::size_t part, std::size_t, std::size_t) {
    for (std::size_t l = next++; l < layers_.size(); l = next++) fit_layer(l, fit_scratch_[part]);
  });
}

std::uint64_t Compressor::digest(Queue<Space::host> queue) {
  parallel_parts(queue, layers_.size(), layers_.size(), 1, [&](std::size_t l, std::size_t, std::size_t) {
    digests_[l] = mix(mix(mix(l, components_[l]), HostView<const float>{basis(l)}),
                      HostView<const float>{means_.part(layers_[l].sliced_at, layers_[l].sliced())});
  });
  std::uint64_t hash = 0;
  for (const auto one : digests_) hash = mix(hash, one);
  return hash;
}

void Compressor::project_task(const Task& task, const float* gradient, float* sums, double* norms) const {
  const Layer& layer = layers_[task.layer];
  const std::size_t d = components_[task.layer];
  std::fill_n(sums, layer.slices * d, 0.0F);
  alignas(64) std::array<float, host::kSlicesAtOnce * kTile> x;
  for (std::size_t from = task.from; from < task.to; from += kTile) {
    const std::size_t to = std::min(task.to, from + kTile);
    const std::size_t blocks = host::basis_blocks(to - from);
    for_each_group(layer.slices, [&](std::size_t m, std::size_t count) {
      gather_slices(layer, gradient, means_of(layer), mean_stride(layer), m, count, from, to, x.data(), kTile);
      for (std::size_t i = 0; i < count; ++i)
        std::fill(x.data() + i * kTile + (to - from), x.data() + i * kTile + blocks * kBasisBlock, 0.0F);
      host::project_tile(bases_[task.layer].data() + from * d, blocks, d, x.data(), count, sums + m * d, d);
      if (norms != nullptr) add_norms(layer, gradient, x.data(), m, count, from, to, norms);
    });
  }
}

void Compressor::project(Queue<Space::host> queue, const float* gradient, std::span<float* const> y,
                         HostView<std::byte> scratch, double* loss) const {
  auto* sums = reinterpret_cast<float*>(scratch.data());
  auto* norms = reinterpret_cast<double*>(scratch.data() + Arena<Space::host>::padded_size(4 * sums_));
  parallel_parts(queue, tasks_.size(), tasks_.size(), 1, [&](std::size_t t, std::size_t, std::size_t) {
    norms[2 * t] = norms[2 * t + 1] = 0.0;
    if (components_[tasks_[t].layer] > 0)
      project_task(tasks_[t], gradient, sums + tasks_[t].sums_at, loss == nullptr ? nullptr : norms + 2 * t);
  });
  parallel_parts(queue, layers_.size(), layers_.size(), 1, [&](std::size_t l, std::size_t, std::size_t) {
    const std::size_t count = layers_[l].slices * components_[l];
    for (std::size_t i = 0; i < count; ++i) {
      double sum = 0.0;
      for (std::size_t t = first_task_[l]; t < first_task_[l + 1]; ++t)
        sum += static_cast<double>(sums[tasks_[t].sums_at + i]);
      y[l][i] = static_cast<float>(sum);
    }
  });
  if (loss == nullptr) return;
  double energy = 0.0;
  double left = 0.0;
  for (std::size_t t = 0; t < tasks_.size(); ++t) {
    energy += norms[2 * t];
    left += norms[2 * t + 1];
  }
  for (std::size_t l = 0; l < layers_.size(); ++l) {
    for (std::size_t i = 0; i < layers_[l].slices * components_[l]; ++i)
      left -= static_cast<double>(y[l][i]) * static_cast<double>(y[l][i]);
  }
  *loss = energy > 0.0 ? std::sqrt(std::max(left, 0.0) / energy) : 0.0;
}

void Compressor::rebuild_task(const Task& task, const float* y, float* gradient) const {
  const Layer& layer = layers_[task.layer];
  const std::size_t d = components_[task.layer];
  alignas(64) std::array<float, host::kSlicesAtOnce * kTile> x;
  for (std::size_t from = task.from; from < task.to; from += kTile) {
    const std::size_t to = std::min(task.to, from + kTile);
    for_each_group(layer.slices, [&](std::size_t m, std::size_t count) {
      host::rebuild_tile(bases_[task.layer].data() + from * d, host::basis_blocks(to - from), d, y + m * d, d, count,
                         x.data());
      scatter_slices(layer, x.data(), kTile, means_of(layer), mean_stride(layer), m, count, from, to, gradient);
    });
  }
}

void Compressor::rebuild(Queue<Space::host> queue, std::span<float* const> y, float* gradient) const {
  parallel_parts(queue, tasks_.size(), tasks_.size(), 1, [&](std::size_t t, std::size_t, std::size_t) {
    if (components_[tasks_[t].layer] > 0) rebuild_task(tasks_[t], y[tasks_[t].layer], gradient);
  });
}

}  // namespace gradtool::gradiveq
