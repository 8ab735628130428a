#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/law/chunk_sums.hpp"
#include "kernels/law/iwp.hpp"
#include "kernels/law/philox.hpp"
#include "lib/core/view.hpp"

/// Importance-weighted pruning on the GPU: the masks and sums of lib/reduce/importance_mask.hpp and lib/reduce/iwp.cpp,
/// bit for bit. Thresholds live on the device. Everything is enqueued.
namespace gradtool::cuda {

/// Doubles that the sums of n numbers' chunks take, and as many for their squares behind them: the law of
/// lib/reduce/ops.hpp's moments().
[[nodiscard]] inline std::size_t moment_sums(std::size_t n) {
  return 2 * law::sum_cut(n).count;
}
void moments_of_chunks(Queue<Space::cuda> queue, View<const float, Space::cuda> view, double* sums);

/// *factor := law::clip_factor of the norm of n numbers with these sums.
void clip_factor(Queue<Space::cuda> queue, const double* sums, std::size_t n, double most, float* factor);

/// u := mu u + factor g; a += u. Without momentum u is null; without clipping factor is.
void accumulate(Queue<Space::cuda> queue, const float* g, const float* factor, float mu, float* u, float* a,
                std::size_t n);

/// A tensor, and where its threshold stands on this rank.
struct IwpLayer {
  std::uint64_t first = 0, elements = 0;  ///< no elements: it has no mask
  std::uint64_t chunk = 0;                ///< chunks of the layers in front of it, as law::sum_cut makes them
  double k = 0.0;
  float threshold = 0.0f;  ///< of target_density
  float used = 0.0f;       ///< what this step's mask takes
  float floor = 0.0f;
  std::uint32_t marked = 0;
};

/// What masks are made from: all layers at a time, because most of them are small.
struct IwpLayers {
  IwpLayer* layers = nullptr;  ///< on the device
  std::size_t count = 0;
  std::size_t largest = 0;  ///< elements of the largest
  const float* held = nullptr;
  const float* weight = nullptr;  ///< null: an importance is the magnitude of what is held
};

/// Each layer's floor, from its weights, and `used` := the threshold that was kept, or that of Kind::fixed. `sums`
/// has room for the moment_sums of every layer.
void prepare_layers(Queue<Space::cuda> queue, const IwpLayers& layers, const law::IwpPolicy& policy, double eps,
                    double* sums);

/// out := the importances of layer l, of n elements.
void importances(Queue<Space::cuda> queue, const IwpLayers& layers, std::size_t l, std::size_t n, float* out);
/// The importances of every layer, from out[its first] on.
void importances_of_layers(Queue<Space::cuda> queue, const IwpLayers& layers, float* out);
/// used := the number with the pattern *quantile, or -1 with `quantile` null; it is the threshold from now on with
/// `keep`.
void use_quantile(Queue<Space::cuda> queue, const std::uint32_t* quantile, bool keep, IwpLayer* layer);
/// used := what a policy makes of the sums of a layer's importances, for every layer; they are those of
/// importances_of_layers. `sums`: as for prepare_layers.
void use_policy(Queue<Space::cuda> queue, const IwpLayers& layers, const law::IwpPolicy& policy,
                const float* importances, double* sums);

/// words := the important elements of all layers. They are 0 before.
void mark_important(Queue<Space::cuda> queue, const IwpLayers& layers, float bernoulli, const law::DrawKey& key,
                    std::uint32_t* words);

/// Moves the layers' thresholds by how many were marked, unless `still`, and counts from 0 again. positive[l] :=
/// whether the threshold that is kept is above 0.
void steer(Queue<Space::cuda> queue, const IwpLayers& layers, const law::IwpPolicy& policy, bool still,
           std::uint64_t* positive);

/// What precedes a mask on the wire; in front of its positions in memory lies a SparseHeader, whose size counts itself.
struct MaskHeader {
  std::uint64_t bytes = 0;  ///< of the positions behind it
  std::uint32_t count = 0;
  std::uint32_t code = 0;
};
void header_of_mask(Queue<Space::cuda> queue, const std::byte* slot, MaskHeader* header);
void header_of_slot(Queue<Space::cuda> queue, const MaskHeader* header, std::byte* slot);

}  // namespace gradtool::cuda
