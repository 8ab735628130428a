#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/law/iwp.hpp"
#include "kernels/law/philox.hpp"
#include "lib/core/view.hpp"

/// Importance-weighted pruning on the GPU: the masks and sums of lib/reduce/importance_mask.hpp and lib/reduce/iwp.cpp,
/// bit for bit. Thresholds live on the device. Everything is enqueued.
namespace gradtool::cuda {

/// Sums in double in the order of lib/reduce/ops.hpp's moments(): of so many parts, to be added one after the other.
struct PartialMoments {
  static constexpr std::size_t kParts = 32;
  double sum[kParts], squares[kParts];
};
void partial_moments(Queue<Space::cuda> queue, View<const float, Space::cuda> view, PartialMoments* out);

/// *factor := law::clip_factor of the norm.
void clip_factor(Queue<Space::cuda> queue, const PartialMoments* moments, double most, float* factor);

/// u := mu u + factor g; a += u. Without momentum u is null; without clipping factor is.
void accumulate(Queue<Space::cuda> queue, const float* g, const float* factor, float mu, float* u, float* a,
                std::size_t n);

/// A tensor, and where its threshold stands on this rank; cleared to zero bytes but for k at the start.
struct IwpLayer {
  double k = 0.0;
  float threshold = 0.0f;  ///< of target_density
  float used = 0.0f;       ///< what this step's mask takes
  float floor = 0.0f;
  std::uint32_t marked = 0;
};

/// layer->floor from the sums of the layer's weights.
void layer_floor(Queue<Space::cuda> queue, const PartialMoments* moments, double eps, std::size_t elements,
                 IwpLayer* layer);
/// out := importances of n elements; `weight` null: their magnitudes.
void importances(Queue<Space::cuda> queue, const float* held, const float* weight, const IwpLayer* layer, float* out,
                 std::size_t n);

/// layer->used := the threshold that was kept; or the number with the pattern *quantile, which is kept with `keep`; or,
/// with `all`, -1, likewise; or what a policy makes of the sums of importances.
void use_kept(Queue<Space::cuda> queue, IwpLayer* layer);
void use_quantile(Queue<Space::cuda> queue, const std::uint32_t* quantile, bool all, bool keep, IwpLayer* layer);
void use_policy(Queue<Space::cuda> queue, const law::IwpPolicy& policy, const PartialMoments* moments,
                std::size_t elements, IwpLayer* layer);

/// words |= the important of elements [first, first + count); `all` are the importances of the whole vector.
void mark_important(Queue<Space::cuda> queue, const float* all, std::size_t first, std::size_t count, float bernoulli,
                    const law::DrawKey& key, IwpLayer* layer, std::uint32_t* words);

/// Moves the layer's threshold by how many were marked, unless `still`, and counts from 0 again. *positive := whether
/// the threshold that is kept is above 0.
void steer(Queue<Space::cuda> queue, const law::IwpPolicy& policy, std::size_t elements, bool still, IwpLayer* layer,
           std::uint64_t* positive);

/// What precedes a mask on the wire; in front of its positions in memory lies a SparseHeader, whose size counts itself.
struct MaskHeader {
  std::uint64_t bytes = 0;  ///< of the positions behind it
  std::uint32_t count = 0;
  std::uint32_t code = 0;
};
void header_of_mask(Queue<Space::cuda> queue, const std::byte* slot, MaskHeader* header);
void header_of_slot(Queue<Space::cuda> queue, const MaskHeader* header, std::byte* slot);

/// words |= bits of what is not 0 in `numbers`, which become 0.
void mark_non_zero(Queue<Space::cuda> queue, float* numbers, std::size_t n, std::uint32_t* words);

}  // namespace gradtool::cuda
