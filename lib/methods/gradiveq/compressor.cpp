#include "lib/methods/gradiveq/compressor.hpp"

#include <array>
#include <atomic>
#include <cmath>
#include <cstring>

#include "kernels/vector.hpp"
#include "lib/core/task_pool.hpp"

namespace gradtool::gradiveq {
namespace {

constexpr std::size_t kTaskCoordinates = 8 * kTile;

std::size_t threads_of(Queue<Space::host> queue) {
  return queue.pool == nullptr ? 1 : static_cast<std::size_t>(queue.pool->threads());
}

/// body(first, count) for slices that are multiplied together: groups of up to kSlicesAtOnce, as equal as possible.
template <class Body>
void for_slice_groups(std::size_t slices, const Body& body) {
  const std::size_t groups = (slices + kSlicesAtOnce - 1) / kSlicesAtOnce;
  for (std::size_t g = 0; g < groups; ++g) {
    const std::size_t first = slices * g / groups;
    body(first, slices * (g + 1) / groups - first);
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

/// norms[0] += the sum of squares of the gradient, norms[1] += that of `centred`, slices of kTile floats without their
/// means. In float64.
void add_norms(const Layer& layer, const SlicePart& part, const float* gradient, const float* centred, double* norms) {
  for (std::size_t i = 0; i < part.count; ++i) {
    for (std::size_t k = part.from; k < part.to; ++k) {
      const std::size_t tap = (part.first + i) * layer.slice_taps + k / layer.filters;
      const auto x = static_cast<double>(gradient[layer.first + k % layer.filters * layer.taps + tap]);
      const auto z = static_cast<double>(centred[i * kTile + k - part.from]);
      norms[0] += x * x;
      norms[1] += z * z;
    }
  }
}

}  // namespace

Compressor<Space::host>::State::State(const Compressor& compressor, std::size_t threads, Scratch<Space::host> scratch) {
  for (const Layer& layer : compressor.layers_) {
    rows.push_back(scratch.take<float>(compressor.samples_ * layer.coordinates()));
    bases.push_back(scratch.take<float>(basis_size(layer.coordinates(), compressor.most_components(layer))));
  }
  means = scratch.take<float>(compressor.sliced_);
  for (std::size_t t = 0; t < threads; ++t) fits.push_back(scratch.take_bytes(compressor.fit_.scratch_bytes()));
}

Compressor<Space::host>::Compressor(std::vector<Layer> layers, const Params& params, Queue queue)
    : CompressorBase{std::move(layers), params},
      fit_{samples_},
      digests_(layers_.size(), 0),
      arena_{planned<State>(*this, threads_of(queue))},
      state_{*this, threads_of(queue), Scratch<Space::host>{arena_.take_bytes(arena_.capacity())}} {
  for (std::size_t l = 0; l < layers_.size(); ++l) {
    const std::size_t k = layers_[l].coordinates();
    first_task_.push_back(tasks_.size());
    for (std::size_t from = 0; from < k; from += kTaskCoordinates) {
      tasks_.push_back({.layer = l, .from = from, .to = std::min(k, from + kTaskCoordinates), .sums_first = sums_});
      sums_ += layers_[l].slices * most_components(layers_[l]);
    }
  }
  first_task_.push_back(tasks_.size());
}

void Compressor<Space::host>::sample(Queue queue, const float* slices, std::size_t index) {
  for (std::size_t l = 0; l < layers_.size(); ++l) {
    const std::size_t k = layers_[l].coordinates();
    std::memcpy(state_.rows[l].data() + index * k, slices + layers_[l].sliced_first, 4 * k);
  }
  float* sum = state_.means.data();
  parallel_for(queue, sliced_, 16, 1 << 14, [&](std::size_t first, std::size_t last) {
    if (index == 0) {
      std::memcpy(sum + first, slices + first, 4 * (last - first));
      return;
    }
    for (std::size_t i = first; i < last; ++i) sum[i] += slices[i];
  });
}

void Compressor<Space::host>::fit_layer(std::size_t index, HostView<std::byte> scratch) {
  const Layer& layer = layers_[index];
  const std::size_t k = layer.coordinates();
  bool finite = true;
  for (float& mean : state_.means.part(layer.sliced_first, layer.sliced()).span()) {
    mean /= static_cast<float>(samples_);
    finite = finite && std::isfinite(mean);
  }
  std::size_t d = finite ? fit_.fit(state_.rows[index].data(), k, lambda_, state_.bases[index].data(), scratch) : 0;
  if (static_cast<double>(k) < min_ratio_ * static_cast<double>(d)) d = 0;
  components_[index] = d;
}

void Compressor<Space::host>::fit(Queue queue, HostView<std::byte> /*scratch*/) {
  std::atomic<std::size_t> next{0};
  const std::size_t threads = state_.fits.size();
  parallel_parts(queue, threads, threads, 1, [&](std::size_t thread, std::size_t, std::size_t) {
    for (std::size_t l = next++; l < layers_.size(); l = next++) fit_layer(l, state_.fits[thread]);
  });
}

std::uint64_t Compressor<Space::host>::digest(Queue queue) {
  parallel_parts(queue, layers_.size(), layers_.size(), 1, [&](std::size_t l, std::size_t, std::size_t) {
    digests_[l] = mix(mix(mix(l, components_[l]), HostView<const float>{basis(l)}),
                      HostView<const float>{state_.means.part(layers_[l].sliced_first, layers_[l].sliced())});
  });
  std::uint64_t hash = 0;
  for (const auto digest : digests_) hash = mix(hash, digest);
  return hash;
}

void Compressor<Space::host>::project_task(const Task& task, const float* gradient, float* sums, double* norms) const {
  const Layer& layer = layers_[task.layer];
  const std::size_t d = components_[task.layer];
  std::fill_n(sums, layer.slices * d, 0.0F);
  alignas(64) std::array<float, kSlicesAtOnce * kTile> x;
  for (std::size_t from = task.from; from < task.to; from += kTile) {
    const std::size_t to = std::min(task.to, from + kTile);
    const std::size_t blocks = basis_blocks(to - from);
    for_slice_groups(layer.slices, [&](std::size_t first, std::size_t count) {
      const SlicePart part{first, count, from, to};
      gather_slices(layer, part, gradient, means_of(layer), mean_stride(layer), x.data(), kTile);
      for (std::size_t i = 0; i < count; ++i)
        std::fill(x.data() + i * kTile + (to - from), x.data() + i * kTile + blocks * kBasisBlock, 0.0F);
      project_tile(state_.bases[task.layer].data() + from * d, blocks, d, x.data(), count, sums + first * d, d);
      if (norms != nullptr) add_norms(layer, part, gradient, x.data(), norms);
    });
  }
}

void Compressor<Space::host>::project(Queue queue, const float* gradient, std::span<float* const> y,
                                      HostView<std::byte> scratch, double* loss) const {
  const Workspace workspace{*this, Scratch<Space::host>{scratch}};
  float* sums = workspace.sums.data();
  double* norms = workspace.norms.data();
  parallel_parts(queue, tasks_.size(), tasks_.size(), 1, [&](std::size_t t, std::size_t, std::size_t) {
    norms[2 * t] = norms[2 * t + 1] = 0.0;
    if (components_[tasks_[t].layer] > 0)
      project_task(tasks_[t], gradient, sums + tasks_[t].sums_first, loss == nullptr ? nullptr : norms + 2 * t);
  });
  parallel_parts(queue, layers_.size(), layers_.size(), 1, [&](std::size_t l, std::size_t, std::size_t) {
    const std::size_t count = layers_[l].slices * components_[l];
    for (std::size_t i = 0; i < count; ++i) {
      double sum = 0.0;
      for (std::size_t t = first_task_[l]; t < first_task_[l + 1]; ++t)
        sum += static_cast<double>(sums[tasks_[t].sums_first + i]);
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

void Compressor<Space::host>::rebuild_task(const Task& task, const float* y, float* gradient) const {
  const Layer& layer = layers_[task.layer];
  const std::size_t d = components_[task.layer];
  alignas(64) std::array<float, kSlicesAtOnce * kTile> x;
  for (std::size_t from = task.from; from < task.to; from += kTile) {
    const std::size_t to = std::min(task.to, from + kTile);
    for_slice_groups(layer.slices, [&](std::size_t first, std::size_t count) {
      rebuild_tile(state_.bases[task.layer].data() + from * d, basis_blocks(to - from), d, y + first * d, d, count,
                   x.data());
      scatter_slices(layer, {first, count, from, to}, x.data(), kTile, means_of(layer), mean_stride(layer), gradient);
    });
  }
}

void Compressor<Space::host>::rebuild(Queue queue, std::span<float* const> y, float share, float* /*slices*/,
                                      HostView<std::byte> /*scratch*/, float* gradient) const {
  for (std::size_t l = 0; l < y.size(); ++l) {
    if (components_[l] > 0) scale(queue, {y[l], layers_[l].slices * components_[l]}, share);
  }
  parallel_parts(queue, tasks_.size(), tasks_.size(), 1, [&](std::size_t t, std::size_t, std::size_t) {
    if (components_[tasks_[t].layer] > 0) rebuild_task(tasks_[t], y[tasks_[t].layer], gradient);
  });
}

}  // namespace gradtool::gradiveq
