#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "lib/codecs/layout.hpp"
#include "lib/codecs/params.hpp"
#include "lib/core/arena.hpp"
#include "lib/core/scratch.hpp"
#include "lib/core/state.hpp"
#include "lib/methods/gradiveq/basis.hpp"
#include "lib/methods/gradiveq/layers.hpp"

/// A compressor holds one rank's knowledge about all layers: samples of the first slice of each, the means of every
/// slice, and the bases fitted to them. All memory that lasts is taken on construction.
///
/// Everything is in terms of the mean over ranks: y_n = Uᵀ (g_n - mu), mean of y_n = Uᵀ (mean of g_n - mu). The paper's
/// eqs. 3-5 say the same in terms of sums over N ranks with mu / N.
namespace gradtool::gradiveq {

/// The part that the compressors of both processors share.
class CompressorBase {
 public:
  [[nodiscard]] std::span<const Layer> layers() const { return layers_; }
  /// Elements of all slices of all layers.
  [[nodiscard]] std::size_t sliced() const { return sliced_; }
  /// Number of components d of a layer, and of all layers; 0 where it is sent as it is in this cycle.
  [[nodiscard]] std::size_t components(std::size_t layer) const { return components_[layer]; }
  [[nodiscard]] std::span<const std::uint64_t> components() const { return components_; }

 protected:
  CompressorBase(std::vector<Layer> layers, const Params& params)
      : layers_{std::move(layers)},
        samples_{static_cast<std::size_t>(params.integer("lt"))},
        lambda_{params.real("lambda")},
        min_ratio_{params.real("min_ratio")},
        shared_mean_{params.is("mean", "shared")},
        components_(layers_.size(), 0) {
    for (const Layer& layer : layers_) sliced_ += layer.sliced();
  }
  [[nodiscard]] std::size_t most_components(const Layer& layer) const {
    return std::min(samples_ - 1, layer.coordinates());
  }

  std::vector<Layer> layers_;
  std::size_t samples_;  ///< L_t
  double lambda_;
  double min_ratio_;
  bool shared_mean_;
  std::size_t sliced_ = 0;
  std::vector<std::uint64_t> components_;
};

/// GradiVeqReducer (reducer.hpp) says what it calls; the GPU's lies in gradiveq.cu.
template <Space S>
class Compressor;

template <>
class Compressor<Space::host> : public CompressorBase {
 public:
  using Queue = gradtool::Queue<Space::host>;

  Compressor(std::vector<Layer> layers, const Params& params, Queue queue);

  [[nodiscard]] std::size_t scratch_bytes() const { return planned<Workspace>(*this); }

  void sample(Queue queue, const float* slices, std::size_t index);
  void fit(Queue queue, HostView<std::byte> scratch);
  [[nodiscard]] std::uint64_t digest(Queue queue);
  /// See Reducer::visit_state.
  void visit_state(StateVisitor& visitor) {
    visitor.values("components", components_);
    for (const auto& rows : state_.rows) visitor.values("samples", rows);
    for (const auto& basis : state_.bases) visitor.values("basis", basis);
    visitor.values("means", state_.means);
  }
  template <class Broadcast>
  void share(Queue /*queue*/, HostView<std::byte> /*scratch*/, const Broadcast& broadcast) {
    broadcast(as_writable_bytes(HostView<std::uint64_t>{components_.data(), components_.size()}));
    for (std::size_t l = 0; l < layers_.size(); ++l) broadcast(as_writable_bytes(basis(l)));
    broadcast(as_writable_bytes(state_.means));
  }
  void project(Queue queue, const float* gradient, std::span<float* const> y, float* /*slices*/,
               HostView<std::byte> scratch, HostView<float> vote, double worst) const {
    double loss = 0.0;
    project(queue, gradient, y, scratch, vote.empty() ? nullptr : &loss);
    if (!vote.empty()) vote[0] = loss > worst ? 1.0F : 0.0F;
  }
  /// Projects and stores the loss in place of the vote, unless `loss` is null: ||g - (U y + mu)|| / ||g|| over the
  /// slices of all layers that have components (eq. 7, normalised), from ||g - mu||² - ||y||².
  void project(Queue queue, const float* gradient, std::span<float* const> y, HostView<std::byte> scratch,
               double* loss) const;
  void rebuild(Queue queue, std::span<float* const> y, float share, float* slices, HostView<std::byte> scratch,
               float* gradient) const;

 private:
  /// A range of coordinates of one layer. Work is cut into tasks in the same way for any number of threads.
  struct Task {
    std::size_t layer = 0;
    std::size_t from = 0;
    std::size_t to = 0;
    std::size_t sums_first = 0;  ///< where its partial coefficients start in Workspace::sums
  };
  struct State {
    State(const Compressor& compressor, std::size_t threads, Scratch<Space::host> scratch);
    std::vector<HostView<float>> rows;      ///< of each layer, the samples of its first slice
    std::vector<HostView<float>> bases;     ///< of each layer
    HostView<float> means;                  ///< of all slices; while samples are taken, their sums
    std::vector<HostView<std::byte>> fits;  ///< what each thread fits in
  };
  struct Workspace {
    Workspace(const Compressor& compressor, Scratch<Space::host> scratch)
        : sums{scratch.take<float>(compressor.sums_)}, norms{scratch.take<double>(2 * compressor.tasks_.size())} {}
    HostView<float> sums;    ///< coefficients over the coordinates of each task
    HostView<double> norms;  ///< of each task, ||g||² and ||g - mu||²
  };

  [[nodiscard]] HostView<float> basis(std::size_t layer) const {
    return state_.bases[layer].first(basis_size(layers_[layer].coordinates(), components_[layer]));
  }
  [[nodiscard]] const float* means_of(const Layer& layer) const { return state_.means.data() + layer.sliced_first; }
  [[nodiscard]] std::size_t mean_stride(const Layer& layer) const { return shared_mean_ ? 0 : layer.coordinates(); }
  void fit_layer(std::size_t index, HostView<std::byte> scratch);
  void project_task(const Task& task, const float* gradient, float* sums, double* norms) const;
  void rebuild_task(const Task& task, const float* y, float* gradient) const;

  BasisFit fit_;
  std::vector<Task> tasks_;
  std::vector<std::size_t> first_task_;  ///< of each layer, and the number of all tasks
  std::size_t sums_ = 0;                 ///< partial coefficients of all tasks
  std::vector<std::uint64_t> digests_;
  Arena<Space::host> arena_;
  State state_;
};

}  // namespace gradtool::gradiveq
