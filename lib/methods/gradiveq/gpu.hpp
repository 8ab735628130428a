#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kernels/blas.hpp"
#include "kernels/cuda/runtime.hpp"
#include "kernels/cuda/units.hpp"
#include "kernels/eigen.hpp"
#include "lib/codecs/params.hpp"
#include "lib/core/scratch.hpp"
#include "lib/core/view.hpp"
#include "lib/methods/gradiveq/layers.hpp"

/// The parts of GradiVeQ on a GPU: moves of taps (taps.cu), the fit of a basis (basis.cu), and the vote on the loss
/// (gradiveq.cu). Everything is enqueued but what says so, and sums have a fixed order.
namespace gradtool::gradiveq {

/// The tile that one block of a kernel moves: `taps` taps of `filters` filters. `tap` counts from the range's first
/// tap.
struct TapTile {
  std::size_t filter;
  std::uint32_t range, filters;
  std::uint32_t tap, taps;
};

/// Moves the taps of many layers in one launch, because the layers of real networks are moved within microseconds, as
/// long as a launch takes. Tiles are transposed in shared memory, so that both sides are accessed in whole lines; each
/// element is read once and written once.
template <>
class TapMoves<Space::cuda> {
 public:
  using Queue = gradtool::Queue<Space::cuda>;

  /// Takes memory for `ranges` and any choice of them.
  explicit TapMoves(std::span<const TapRange> ranges);
  /// The ranges that move from now on. Waits for the queue until they are on the device, which the timed region pays
  /// once a cycle. Allocates nothing.
  void choose(Queue queue, std::span<const TapRange> ranges);

  /// Blocks of a launch, and the most that any choice of ranges has.
  [[nodiscard]] std::size_t tiles() const { return tiles_.size(); }
  [[nodiscard]] std::size_t most_tiles() const { return tile_table_.size() / sizeof(TapTile); }

  /// row := taps of the gradient.
  void gather(Queue queue, const float* gradient, float* row) const;
  /// row := taps of the gradient minus their means, which lie as the row does. norms := the sums of squares before and
  /// after, two doubles for each tile.
  void gather_centred(Queue queue, const float* gradient, const float* means, float* row, double* norms) const;
  /// Taps of the gradient := factor * row.
  void scatter(Queue queue, const float* row, float factor, float* gradient) const;
  /// Taps of the gradient := row + means.
  void scatter_centred(Queue queue, const float* row, const float* means, float* gradient) const;

 private:
  void cut(std::span<const TapRange> ranges);

  std::vector<TapRange> ranges_;
  std::vector<TapTile> tiles_;
  cuda::DeviceBuffer range_table_, tile_table_;
};

/// BasisFit on a GPU: Gram matrices by cuBLAS, their eigenvectors by cuSOLVER, both in float64. A basis is stored
/// component after component. How many components there are decides how long messages are, so fitting waits for the
/// GPU, up to four times a layer.
class CudaBasisFit {
 public:
  using Queue = gradtool::Queue<Space::cuda>;
  using Bytes = View<std::byte, Space::cuda>;

  CudaBasisFit(std::span<const Layer> layers, const Params& params);

  [[nodiscard]] std::size_t scratch_bytes() const { return longest_ == 0 ? 0 : planned<Workspace>(*this); }
  /// The slices of a layer that are samples: `coordinates` floats each, `stride` from sample to sample.
  struct Samples {
    const float* rows;
    std::size_t coordinates, stride;
  };

  /// `means`, the sums of a layer's slices over the samples, become means. Writes the basis and returns the number of
  /// components d, 0 where the layer is to be sent as it is.
  std::size_t fit(Queue queue, View<float, Space::cuda> means, const Samples& samples, float* basis, Bytes scratch);

 private:
  struct Workspace {
    Workspace(const CudaBasisFit& fit, Scratch<Space::cuda> scratch);
    Bytes blas;
    View<double, Space::cuda> gram;      ///< then its eigenvectors
    View<double, Space::cuda> weights;   ///< scaled eigenvectors of the components
    View<double, Space::cuda> values;    ///< eigenvalues, ascending
    View<double, Space::cuda> centred;   ///< some columns of the samples minus their means
    View<double, Space::cuda> product;   ///< the same columns of the components
    View<double, Space::cuda> energies;  ///< sums of squares of the samples by block
    View<double, Space::cuda> sums;      ///< variance and energy
    View<int, Space::cuda> flags;        ///< whether a mean is not finite; cuSOLVER's result
    Bytes eigen;
  };
  [[nodiscard]] std::size_t most_blocks() const;
  /// Makes the Gram matrix of the centred rows. Returns whether the rows have variance and finite means.
  bool fill_gram(Queue queue, const Samples& samples, const Workspace& workspace);
  std::size_t count_components(Queue queue, std::size_t coordinates, const Workspace& workspace);

  std::size_t samples_;  ///< L_t
  double lambda_;
  double min_ratio_;
  std::size_t longest_ = 0;  ///< most coordinates of a layer
  std::size_t width_ = 1;    ///< columns that are centred at a time
  std::shared_ptr<cuda::Blas> blas_;
  std::shared_ptr<cuda::DeviceEigen> eigen_;
  std::vector<double> values_;
};

/// sums[i] := sum of squares of the floats of the i-th unit's `to`, all in one launch. No unit is empty.
void sum_squares(Queue<Space::cuda> queue, std::span<const cuda::Unit> units, double* sums);

/// *vote := 1 where sqrt((|x|² - |y|²) / |g|²) is above `worst`, else 0 (eq. 7, normalised). `norms` are |g|² and |x|²
/// of `tiles` parts of gradients, before and after their means were subtracted; `kept` is |y|² of each layer.
void vote_on_loss(Queue<Space::cuda> queue, const double* norms, std::size_t tiles, const double* kept,
                  std::size_t layers, double worst, float* vote);

}  // namespace gradtool::gradiveq
