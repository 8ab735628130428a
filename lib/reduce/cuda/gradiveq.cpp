// GradiVeQ on a GPU: projections by cuBLAS, one launch for what all layers need beside them.
#include "kernels/cuda/blas.hpp"
#include "kernels/cuda/runtime.hpp"
#include "kernels/cuda/slice_fit.hpp"
#include "kernels/cuda/slice_loss.hpp"
#include "kernels/cuda/tap_moves.hpp"
#include "kernels/cuda/vector.hpp"
#include "lib/reduce/cuda/gradiveq_fit.hpp"
#include "lib/reduce/cuda_reducers.hpp"
#include "lib/reduce/gradiveq_reducer.hpp"

namespace gradtool {
namespace {

using gradiveq::Layer;

/// The first slices of all layers, in a row of all slices, and one behind the other.
std::vector<law::TapRange> first_slices(std::span<const Layer> layers) {
  std::vector<law::TapRange> ranges;
  std::size_t at = 0;
  for (const Layer& layer : layers) {
    ranges.push_back({.first = layer.sliced_at, .filters = layer.coordinates(), .at = at});
    at += layer.coordinates();
  }
  return ranges;
}

/// As gradiveq::Compressor.
class CudaCompressor {
 public:
  using Queue = gradtool::Queue<Space::cuda>;
  using Bytes = View<std::byte, Space::cuda>;
  using Moves = cuda::TapMoves;

  CudaCompressor(std::vector<Layer> layers, const Params& params, Queue queue)
      : layers_{std::move(layers)},
        samples_{static_cast<std::size_t>(params.integer("lt"))},
        shared_mean_{params.is("mean", "shared")},
        fit_{layers_, params},
        blas_{cuda::Blas::of_this_thread()},
        components_(layers_.size(), 0),
        arena_{capacity()},
        sampled_{first_slices(layers_)},
        ranges_{gradiveq::slice_ranges(layers_)},
        slices_{ranges_} {
    for (const Layer& layer : layers_) {
      sliced_ += layer.sliced();
      row_ += layer.coordinates();
      offsets_.push_back(arena_.take<float>(layer.slices * most_components(layer)));
      bases_.push_back(arena_.take<float>(layer.coordinates() * most_components(layer)));
    }
    rows_ = arena_.take<float>(samples_ * row_);
    means_ = arena_.take<float>(sliced_);
    sampled_.choose(queue, first_slices(layers_));
    coefficients_.reserve(layers_.size());
  }

  [[nodiscard]] std::span<const Layer> layers() const { return layers_; }
  [[nodiscard]] std::size_t sliced() const { return sliced_; }
  [[nodiscard]] std::size_t components(std::size_t layer) const { return components_[layer]; }
  [[nodiscard]] std::span<const std::uint64_t> components() const { return components_; }

  [[nodiscard]] std::size_t scratch_bytes() const {
    const std::size_t norms = padded(16 * slices_.most_tiles()) + padded(8 * layers_.size());
    return std::max({padded(blas_->work_bytes()) + norms, fit_.scratch_bytes(), padded(8 * layers_.size())}) +
           padded(64);
  }

  void sample(Queue queue, const float* slices, std::size_t index) {
    sampled_.gather(queue, slices, rows_.data() + index * row_);
    const View<const float, Space::cuda> all{slices, sliced_};
    if (index == 0)
      cuda::copy_elements(queue, means_, all);
    else
      add(queue, all, means_);
  }

  void fit(Queue queue, Bytes scratch) {
    std::size_t at = 0;
    for (std::size_t l = 0; l < layers_.size(); ++l) {
      const std::size_t k = layers_[l].coordinates();
      const auto means = means_.part(layers_[l].sliced_at, layers_[l].sliced());
      components_[l] = fit_.fit(queue, means, {rows_.data() + at, k, row_}, bases_[l].data(), scratch);
      at += k;
    }
    choose_layers(queue, scratch);
  }

  /// A sum over words, each with its place: one launch for a layer, in any order.
  [[nodiscard]] std::uint64_t digest(Queue queue) {
    const auto sum = View<std::uint64_t, Space::cuda>{reinterpret_cast<std::uint64_t*>(digest_.bytes().data()), 1};
    cuda::fill(queue, as_writable_bytes(sum), 0);
    std::uint64_t at = 0;
    for (std::size_t l = 0; l < layers_.size(); ++l) {
      at += components_[l] + 1;  // so that equal bits of other shapes differ
      cuda::add_digest(queue, basis(l), at, sum.data());
      at += basis(l).size();
    }
    cuda::add_digest(queue, means_, at, sum.data());
    std::uint64_t digest = 0;
    read_back(queue, as_bytes(sum), &digest);
    return digest;
  }

  template <class F>
  void share(Queue queue, Bytes scratch, F&& broadcast) {
    const auto counts = scratch.first(8 * components_.size());
    const HostView<std::byte> here{reinterpret_cast<std::byte*>(components_.data()), counts.size()};
    cuda::copy(queue, counts, HostView<const std::byte>{here});
    broadcast(counts);
    read_back(queue, counts, here.data());
    for (std::size_t l = 0; l < layers_.size(); ++l) broadcast(as_writable_bytes(basis(l)));
    broadcast(as_writable_bytes(means_));
    choose_layers(queue, scratch);
  }

  void project(Queue queue, const float* gradient, std::span<float* const> y, float* slices, Bytes scratch,
               View<float, Space::cuda> vote, double worst) {
    Carver<Space::cuda> carve{scratch};
    const auto work = carve.take(blas_->work_bytes());
    double* norms = take<double>(carve, 2 * slices_.most_tiles()).data();
    double* kept = take<double>(carve, layers_.size()).data();
    if (vote.empty())
      slices_.gather(queue, gradient, slices);
    else
      slices_.gather_centred(queue, gradient, means_.data(), slices, norms);
    coefficients_.clear();
    for (std::size_t l = 0; l < layers_.size(); ++l) {
      const Layer& layer = layers_[l];
      const std::size_t d = components_[l];
      const std::size_t k = layer.coordinates();
      if (d == 0) continue;
      blas_->multiply(queue, work, d, layer.slices, k, 1.0F, {bases_[l].data(), k, true}, {slices + layer.sliced_at, k},
                      0.0F, y[l], d);
      coefficients_.push_back({.from = offsets_[l].data(), .to = y[l], .n = layer.slices * d});
    }
    if (vote.empty()) return cuda::subtract(queue, coefficients_);
    cuda::sum_squares(queue, coefficients_, kept);
    cuda::vote_on_loss(queue, norms, slices_.tiles(), kept, coefficients_.size(), worst, vote.data());
  }

  void rebuild(Queue queue, std::span<float* const> y, float share, float* slices, Bytes scratch,
               float* gradient) const {
    const auto work = scratch.first(blas_->work_bytes());
    for (std::size_t l = 0; l < layers_.size(); ++l) {
      const Layer& layer = layers_[l];
      const std::size_t d = components_[l];
      const std::size_t k = layer.coordinates();
      if (d == 0) continue;
      blas_->multiply(queue, work, k, layer.slices, d, share, {bases_[l].data(), k}, {y[l], d}, 0.0F,
                      slices + layer.sliced_at, k);
    }
    slices_.scatter_centred(queue, slices, means_.data(), gradient);
  }

 private:
  [[nodiscard]] std::size_t most_components(const Layer& layer) const {
    return std::min(samples_ - 1, layer.coordinates());
  }
  [[nodiscard]] View<float, Space::cuda> basis(std::size_t layer) const {
    return bases_[layer].first(layers_[layer].coordinates() * components_[layer]);
  }
  [[nodiscard]] std::size_t capacity() const {
    std::size_t bytes = 0;
    std::size_t sliced = 0;
    std::size_t row = 0;
    for (const Layer& layer : layers_) {
      bytes += padded(4 * layer.coordinates() * most_components(layer));
      bytes += padded(4 * layer.slices * most_components(layer));
      sliced += layer.sliced();
      row += layer.coordinates();
    }
    return bytes + padded(4 * sliced) + padded(4 * samples_ * row);
  }
  /// The slices of layers that have components, and what their coefficients are too large by where means are not taken
  /// off before the product: then gathering need not read them.
  void choose_layers(Queue queue, Bytes scratch) {
    const auto work = scratch.first(blas_->work_bytes());
    ranges_.clear();
    for (std::size_t l = 0; l < layers_.size(); ++l) {
      const std::size_t d = components_[l];
      const std::size_t k = layers_[l].coordinates();
      if (d == 0) continue;
      const float* means = means_.data() + layers_[l].sliced_at;
      const std::size_t slices = layers_[l].slices;
      blas_->multiply(queue, work, d, shared_mean_ ? 1 : slices, k, 1.0F, {bases_[l].data(), k, true}, {means, k}, 0.0F,
                      offsets_[l].data(), d);
      for (std::size_t m = 1; shared_mean_ && m < slices;
           m *= 2) {  // the same for every slice: twice as many at a time
        const auto more = offsets_[l].part(m * d, std::min(m, slices - m) * d);
        cuda::copy_elements(queue, more, View<const float, Space::cuda>{offsets_[l].first(more.size())});
      }
      ranges_.push_back(layers_[l].slice_range(layers_[l].sliced_at));
      ranges_.back().mean_taps = shared_mean_ ? layers_[l].slice_taps : 0;
    }
    slices_.choose(queue, ranges_);
  }

  std::vector<Layer> layers_;
  std::size_t samples_;  ///< L_t
  bool shared_mean_;
  std::size_t sliced_ = 0;
  std::size_t row_ = 0;  ///< elements of the first slices of all layers
  gradiveq::CudaBasisFit fit_;
  std::shared_ptr<cuda::Blas> blas_;
  std::vector<std::uint64_t> components_;
  Arena<Space::cuda> arena_;
  std::vector<View<float, Space::cuda>> bases_, offsets_;  ///< U, and the coefficients of the means
  View<float, Space::cuda> rows_;                          ///< the samples: first slices, sample by sample
  View<float, Space::cuda> means_;                         ///< during the samples: their sum
  cuda::TapMoves sampled_;
  std::vector<law::TapRange> ranges_;
  cuda::TapMoves slices_;  ///< of layers that have components
  std::vector<cuda::Unit> coefficients_;
  cuda::DeviceBuffer digest_{8};
};

}  // namespace

std::unique_ptr<Reducer<Space::cuda>> make_cuda_gradiveq(const ReducerSetup<Space::cuda>& setup) {
  return std::make_unique<GradiVeqReducer<Space::cuda, CudaCompressor>>(setup);
}

}  // namespace gradtool
