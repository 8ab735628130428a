// GradiVeQ on a GPU: projections by cuBLAS, and one launch for all layers for everything else.
#include <cuda_runtime.h>

#include <algorithm>

#include "kernels/cuda/block_sums.hpp"
#include "kernels/cuda/launch.hpp"
#include "kernels/cuda/unit_launch.hpp"
#include "kernels/cuda/warp.hpp"
#include "kernels/vector.hpp"
#include "lib/methods/gradiveq/gpu.hpp"
#include "lib/methods/gradiveq/reducer.hpp"

namespace gradtool {
namespace gradiveq {
namespace {

using cuda::kThreads;

/// Each block adds up one unit, because the coefficients of a layer are few.
struct SumSquares {
  double* sums;

  [[nodiscard]] static std::size_t blocks(std::size_t /*n*/) { return 1; }
  __device__ void run(const cuda::Unit& unit, std::uint32_t index, const cuda::Place& /*place*/) const {
    const auto* x = static_cast<const float*>(unit.to);
    double sum = 0.0;
    for (std::size_t i = threadIdx.x; i < unit.n; i += kThreads) {
      const double value = static_cast<double>(x[i]);
      sum += value * value;
    }
    sum = cuda::block_sum(sum);
    if (threadIdx.x == 0) sums[index] = sum;
  }
};

/// One block; see vote_on_loss.
__global__ void vote_kernel(const double* norms, std::size_t tiles, const double* kept, std::size_t layers,
                            double worst, float* vote) {
  double energy = 0.0;
  double left = 0.0;
  double in_coefficients = 0.0;
  for (std::size_t k = threadIdx.x; k < tiles; k += kThreads) {
    energy += norms[2 * k];
    left += norms[2 * k + 1];
  }
  for (std::size_t k = threadIdx.x; k < layers; k += kThreads) in_coefficients += kept[k];
  energy = cuda::block_sum(energy);
  left = cuda::block_sum(left) - cuda::block_sum(in_coefficients);
  const double loss = energy > 0.0 ? sqrt((left > 0.0 ? left : 0.0) / energy) : 0.0;
  if (threadIdx.x == 0) *vote = loss > worst ? 1.0f : 0.0f;
}

/// *sum += a hash of the bits of each float and of its place, counted from `from`. The order does not matter.
__global__ void digest_kernel(const float* values, std::size_t count, std::uint64_t from, unsigned long long* sum) {
  std::uint64_t mine = 0;
  for (std::size_t i = cuda::thread_in_grid(); i < count; i += cuda::threads_in_grid()) {
    std::uint64_t word = (from + i) * 0x9E3779B97F4A7C15ull ^ __float_as_uint(values[i]);
    word = (word ^ (word >> 30)) * 0xBF58476D1CE4E5B9ull;
    word = (word ^ (word >> 27)) * 0x94D049BB133111EBull;
    mine += word ^ (word >> 31);
  }
  if (mine != 0) atomicAdd(sum, static_cast<unsigned long long>(mine));
}

/// The first slices of all layers: where they lie in a row of all slices, and in a row of first slices.
std::vector<TapRange> first_slices(std::span<const Layer> layers) {
  std::vector<TapRange> ranges;
  std::size_t row_first = 0;
  for (const Layer& layer : layers) {
    ranges.push_back({.first = layer.sliced_first, .filters = layer.coordinates(), .row_first = row_first});
    row_first += layer.coordinates();
  }
  return ranges;
}

}  // namespace

void sum_squares(Queue<Space::cuda> queue, std::span<const cuda::Unit> units, double* sums) {
  cuda::launch_units(queue, "sum squares", SumSquares{sums}, units);
}

void vote_on_loss(Queue<Space::cuda> queue, const double* norms, std::size_t tiles, const double* kept,
                  std::size_t layers, double worst, float* vote) {
  cuda::launch(queue, "vote", vote_kernel, 1, norms, tiles, kept, layers, worst, vote);
}

template <>
class Compressor<Space::cuda> : public CompressorBase {
 public:
  using Queue = gradtool::Queue<Space::cuda>;
  using Bytes = View<std::byte, Space::cuda>;

  Compressor(std::vector<Layer> layers, const Params& params, Queue queue)
      : CompressorBase{std::move(layers), params},
        fit_{layers_, params},
        blas_{cuda::Blas::of_this_thread()},
        arena_{planned<State>(*this)},
        state_{*this, Scratch<Space::cuda>{arena_.take_bytes(arena_.capacity())}},
        first_slices_{first_slices(layers_)},
        ranges_{slice_ranges(layers_)},
        slices_{ranges_} {
    first_slices_.choose(queue, first_slices(layers_));
    coefficients_.reserve(layers_.size());
    products_.reserve(layers_.size());
  }

  [[nodiscard]] std::size_t scratch_bytes() const {
    return std::max({planned<Workspace>(*this), fit_.scratch_bytes(), 8 * layers_.size()});
  }

  void sample(Queue queue, const float* slices, std::size_t index) {
    first_slices_.gather(queue, slices, state_.rows.data() + index * state_.row);
    const View<const float, Space::cuda> all{slices, sliced_};
    if (index == 0) {
      cuda::copy_elements(queue, state_.means, all);
    } else {
      add(queue, all, state_.means);
    }
  }

  void fit(Queue queue, Bytes scratch) {
    std::size_t first = 0;  // of the layer in a row of first slices
    for (std::size_t l = 0; l < layers_.size(); ++l) {
      const std::size_t k = layers_[l].coordinates();
      const auto means = state_.means.part(layers_[l].sliced_first, layers_[l].sliced());
      components_[l] =
          fit_.fit(queue, means, {state_.rows.data() + first, k, state_.row}, state_.bases[l].data(), scratch);
      first += k;
    }
    choose_layers(queue, scratch);
  }

  [[nodiscard]] std::uint64_t digest(Queue queue) {
    cuda::fill(queue, as_writable_bytes(state_.digest), 0);
    std::uint64_t from = 0;
    const auto add_digest = [&](View<const float, Space::cuda> values) {
      if (!values.empty()) {
        cuda::launch(queue, "digest", digest_kernel, cuda::blocks_for(values.size(), 16 * kThreads, 1024),
                     values.data(), values.size(), from, reinterpret_cast<unsigned long long*>(state_.digest.data()));
      }
      from += values.size();
    };
    for (std::size_t l = 0; l < layers_.size(); ++l) {
      from += components_[l] + 1;  // so that the same bits in other shapes make another digest
      add_digest(basis(l));
    }
    add_digest(state_.means);
    std::uint64_t digest = 0;
    read_back(queue, as_bytes(state_.digest), &digest);
    return digest;
  }

  template <class Broadcast>
  void share(Queue queue, Bytes scratch, const Broadcast& broadcast) {
    const auto counts = scratch.first(8 * components_.size());
    const HostView<std::byte> components{reinterpret_cast<std::byte*>(components_.data()), counts.size()};
    cuda::copy(queue, counts, HostView<const std::byte>{components});
    broadcast(counts);
    read_back(queue, counts, components.data());
    for (std::size_t l = 0; l < layers_.size(); ++l) broadcast(as_writable_bytes(basis(l)));
    broadcast(as_writable_bytes(state_.means));
    choose_layers(queue, scratch);
  }

  void project(Queue queue, const float* gradient, std::span<float* const> y, float* slices, Bytes scratch,
               View<float, Space::cuda> vote, double worst) {
    const Workspace workspace{*this, Scratch<Space::cuda>{scratch}};
    if (vote.empty()) {
      slices_.gather(queue, gradient, slices);
    } else {
      slices_.gather_centred(queue, gradient, state_.means.data(), slices, workspace.norms.data());
    }
    coefficients_.clear();
    products_.clear();
    for (std::size_t l = 0; l < layers_.size(); ++l) {
      const Layer& layer = layers_[l];
      const std::size_t d = components_[l];
      const std::size_t k = layer.coordinates();
      if (d == 0) continue;
      products_.push_back(
          {d, layer.slices, k, {state_.bases[l].data(), k, true}, {slices + layer.sliced_first, k}, y[l], d});
      coefficients_.push_back({.from = state_.offsets[l].data(), .to = y[l], .n = layer.slices * d});
    }
    blas_->multiply(queue, workspace.blas, 1.0F, products_);
    if (vote.empty()) return cuda::subtract(queue, coefficients_);
    sum_squares(queue, coefficients_, workspace.kept.data());
    vote_on_loss(queue, workspace.norms.data(), slices_.tiles(), workspace.kept.data(), coefficients_.size(), worst,
                 vote.data());
  }

  void rebuild(Queue queue, std::span<float* const> y, float share, float* slices, Bytes scratch, float* gradient) {
    const Workspace workspace{*this, Scratch<Space::cuda>{scratch}};
    products_.clear();
    for (std::size_t l = 0; l < layers_.size(); ++l) {
      const Layer& layer = layers_[l];
      const std::size_t d = components_[l];
      const std::size_t k = layer.coordinates();
      if (d == 0) continue;
      products_.push_back({k, layer.slices, d, {state_.bases[l].data(), k}, {y[l], d}, slices + layer.sliced_first, k});
    }
    blas_->multiply(queue, workspace.blas, share, products_);
    slices_.scatter_centred(queue, slices, state_.means.data(), gradient);
  }

 private:
  struct State {
    State(const Compressor& compressor, Scratch<Space::cuda> scratch) {
      for (const Layer& layer : compressor.layers_) {
        const std::size_t most = compressor.most_components(layer);
        bases.push_back(scratch.take<float>(layer.coordinates() * most));
        offsets.push_back(scratch.take<float>(layer.slices * most));
        row += layer.coordinates();
      }
      rows = scratch.take<float>(compressor.samples_ * row);
      means = scratch.take<float>(compressor.sliced_);
      digest = scratch.take<std::uint64_t>(1);
    }
    std::vector<View<float, Space::cuda>> bases;    ///< U of each layer, component after component
    std::vector<View<float, Space::cuda>> offsets;  ///< Uᵀ mu of each slice of each layer
    std::size_t row = 0;                            ///< elements of the first slices of all layers
    View<float, Space::cuda> rows;                  ///< the samples: rows of all first slices
    View<float, Space::cuda> means;                 ///< of all slices; while samples are taken, their sums
    View<std::uint64_t, Space::cuda> digest;
    std::size_t bytes = 0;
  };
  struct Workspace {
    Workspace(const Compressor& compressor, Scratch<Space::cuda> scratch)
        : blas{scratch.take_bytes(compressor.blas_->work_bytes(compressor.layers_.size()))},
          norms{scratch.take<double>(2 * compressor.slices_.most_tiles())},
          kept{scratch.take<double>(compressor.layers_.size())} {}
    Bytes blas;
    View<double, Space::cuda> norms;  ///< as in TapMoves::gather_centred
    View<double, Space::cuda> kept;   ///< sum of squares of each layer's coefficients
  };

  [[nodiscard]] View<float, Space::cuda> basis(std::size_t layer) const {
    return state_.bases[layer].first(layers_[layer].coordinates() * components_[layer]);
  }

  /// Prepares the steps for the layers that have components. Where no vote is taken, Uᵀ (g - mu) is computed as
  /// Uᵀ g - Uᵀ mu, so that gathering slices need not read their means: here Uᵀ mu is made.
  void choose_layers(Queue queue, Bytes scratch) {
    const Workspace workspace{*this, Scratch<Space::cuda>{scratch}};
    ranges_.clear();
    products_.clear();
    for (std::size_t l = 0; l < layers_.size(); ++l) {
      const std::size_t k = layers_[l].coordinates();
      const std::size_t d = components_[l];
      if (d == 0) continue;
      products_.push_back({d,
                           shared_mean_ ? 1 : layers_[l].slices,
                           k,
                           {state_.bases[l].data(), k, true},
                           {state_.means.data() + layers_[l].sliced_first, k},
                           state_.offsets[l].data(),
                           d});
    }
    blas_->multiply(queue, workspace.blas, 1.0F, products_);
    for (std::size_t l = 0; l < layers_.size(); ++l) {
      const std::size_t d = components_[l];
      const std::size_t slices = layers_[l].slices;
      if (d == 0) continue;
      if (shared_mean_) {  // Each copy doubles the number of slices that have the shared offset.
        for (std::size_t m = 1; m < slices; m *= 2) {
          const auto more = state_.offsets[l].part(m * d, std::min(m, slices - m) * d);
          cuda::copy_elements(queue, more, View<const float, Space::cuda>{state_.offsets[l].first(more.size())});
        }
      }
      ranges_.push_back(layers_[l].slice_range(layers_[l].sliced_first));
      ranges_.back().mean_taps = shared_mean_ ? layers_[l].slice_taps : 0;
    }
    slices_.choose(queue, ranges_);
  }

  CudaBasisFit fit_;
  std::shared_ptr<cuda::Blas> blas_;
  Arena<Space::cuda> arena_;
  State state_;
  TapMoves<Space::cuda> first_slices_;    ///< from a row of all slices to a row of first slices
  std::vector<TapRange> ranges_;          ///< the slices of layers that have components
  TapMoves<Space::cuda> slices_;          ///< moves them
  std::vector<cuda::Unit> coefficients_;  ///< those of each of these layers, and their offsets
  std::vector<cuda::Product> products_;   ///< the layers' of a step
};

}  // namespace gradiveq

namespace {}  // namespace

extern constinit const GpuFactories gradiveq_gpu{.reducer =
                                                     make_method_reducer<Space::cuda, GradiVeqReducer<Space::cuda>>};

}  // namespace gradtool
