#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/host/slice_basis.hpp"
#include "lib/core/arena.hpp"
#include "lib/reduce/gradiveq_layers.hpp"

namespace gradtool::gradiveq {

/// What one rank knows of all layers of a unit: samples of the first slice of each, the means of every slice, and the
/// compressors fitted to them. All memory is taken on construction.
///
/// Everything is in terms of the mean over ranks: y_n = Uᵀ (g_n - mu), mean of y_n = Uᵀ (mean of g_n - mu). That is the
/// paper's eqs. 3-5, in terms of sums with mu / N, divided by N.
class Compressor {
 public:
  Compressor(std::vector<Layer> layers, const Params& params, Queue<Space::host> queue);

  [[nodiscard]] std::span<const Layer> layers() const { return layers_; }
  /// Elements of all slices of all layers.
  [[nodiscard]] std::size_t sliced() const { return sliced_; }
  /// d of a layer; 0 where it is sent as it is in this cycle.
  [[nodiscard]] std::size_t components(std::size_t layer) const { return components_[layer]; }
  [[nodiscard]] std::size_t scratch_bytes() const;

  /// Takes one aggregated gradient, given as all slices of all layers, as sample number `index` of a cycle.
  void sample(Queue<Space::host> queue, const float* slices, std::size_t index);
  /// Ends a cycle's samples: the bases and means that hold for its compressed steps.
  void fit(Queue<Space::host> queue);

  /// A digest of what `fit` made.
  [[nodiscard]] std::uint64_t digest(Queue<Space::host> queue);
  /// What ranks must hold alike, for a broadcast: number of components, then bases and means.
  [[nodiscard]] std::span<std::uint64_t> components() { return components_; }
  [[nodiscard]] HostView<float> basis(std::size_t layer) const;
  [[nodiscard]] HostView<float> means() const { return means_; }

  /// y[layer]: S·d coefficients, slice by slice, of every layer that has components. With `loss`, also the relative
  /// error ||g - (U y + mu)|| / ||g|| over these layers (eq. 7 normalised), by ||g - mu||² - ||y||².
  void project(Queue<Space::host> queue, const float* gradient, std::span<float* const> y, HostView<std::byte> scratch,
               double* loss) const;
  /// gradient := U y + mu in the slices of these layers.
  void rebuild(Queue<Space::host> queue, std::span<float* const> y, float* gradient) const;

 private:
  /// A range of coordinates of one layer: the unit of work, whatever the number of threads.
  struct Task {
    std::size_t layer = 0;
    std::size_t from = 0;
    std::size_t to = 0;
    std::size_t sums_at = 0;  ///< its coefficients in the scratch
  };
  [[nodiscard]] const float* means_of(const Layer& layer) const { return means_.data() + layer.sliced_at; }
  [[nodiscard]] std::size_t mean_stride(const Layer& layer) const { return shared_mean_ ? 0 : layer.coordinates(); }
  [[nodiscard]] std::size_t most_components(const Layer& layer) const;
  void fit_layer(std::size_t index, HostView<std::byte> scratch);
  void project_task(const Task& task, const float* gradient, float* sums, double* norms) const;
  void rebuild_task(const Task& task, const float* y, float* gradient) const;

  std::vector<Layer> layers_;
  std::size_t samples_;  ///< L_t
  double lambda_;
  double min_ratio_;
  bool shared_mean_;
  std::size_t sliced_ = 0;
  host::BasisFit fit_;
  std::vector<Task> tasks_;
  std::vector<std::size_t> first_task_;  ///< of every layer, and one more
  std::size_t sums_ = 0;                 ///< floats of all tasks
  std::vector<std::uint64_t> components_, digests_;
  Arena<Space::host> arena_;
  std::vector<HostView<float>> rows_, bases_;
  HostView<float> means_;  ///< during the samples: their sum
  std::vector<HostView<std::byte>> fit_scratch_;
};

}  // namespace gradtool::gradiveq
