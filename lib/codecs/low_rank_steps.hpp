#pragma once

#include <functional>
#include <vector>

#include "kernels/draws.hpp"
#include "kernels/low_rank.hpp"
#include "lib/codecs/layout.hpp"
#include "lib/core/task_pool.hpp"

// Steps between the collectives of methods that spread a power iteration over ranks: PowerSGD, Dion and ARC-Top-K.
namespace gradtool {

/// Which tensors of a bucket a low-rank method compresses, and where everything lies in its two messages. The first
/// message holds the factors P and the tensors that are sent as they are, in the order of the tensors; the second one
/// holds the factors Q.
struct LowRankPlan {
  /// Neighbouring tensors that are sent as they are, one behind the other in the gradient and in the first message.
  struct Uncompressed {
    std::size_t first = 0;  ///< element of the gradient
    std::size_t count = 0;
    std::size_t message_first = 0;  ///< element of the first message
  };

  /// `rank_of` says how many columns the factors of a tensor have; 0 where it is sent as it is.
  LowRankPlan(const Layout& layout, const std::function<std::size_t(const TensorShape&)>& rank_of);

  std::vector<LowRankMatrix> matrices;
  std::vector<Uncompressed> uncompressed;
  std::size_t p_size = 0;   ///< floats of the first message
  std::size_t q_size = 0;   ///< floats of the second message
  std::size_t ranks = 0;    ///< sum of rank over the matrices
  std::size_t squares = 0;  ///< sum of rank² over the matrices
};

/// The state that a rank keeps from step to step.
template <Space S>
struct LowRankState {
  View<float, S> residual;  ///< empty without error feedback
  View<float, S> p;         ///< the first message: P of all matrices, and the tensors that are sent as they are
  View<float, S> q;         ///< the second message: Q of all matrices

  /// The memory of M after `first_product`: the residual if there is one, which has taken up the gradient, else the
  /// gradient.
  [[nodiscard]] View<float, S> matrices(View<float, S> gradient) const {
    return residual.empty() ? gradient : residual;
  }
};

/// The work on the CPU. CudaLowRankSteps has the same members:
///   Workspace{steps, scratch}    what the products work in
///   first_product                M = residual + gradient. Columns of Q that cannot start a power iteration (zero or
///   not
///                                finite), or all of them, are drawn anew. p := M Q and the tensors sent as they are
///   second_product               makes the columns of each P orthonormal; q := Mᵀ P
///   scatter                      the tensors sent as they are, times share, from the first message to `out`
///   rebuild                      gradient := P Qᵀ; residual := M - P lostᵀ. The subtraction may be left to the next
///                                first_product, so `lost` and P stay as they are until then
///   project                      p := M Q
///   product                      out := P Qᵀ
///   settle(queue, state)         makes up for a subtraction that was left
///   forget()                     there is no step before the next one
/// Threads share matrices, tile by tile; the products of a matrix's tiles are added in the order of the tiles, so the
/// number of threads changes no bit.
class HostLowRankSteps {
 public:
  using State = LowRankState<Space::host>;

  HostLowRankSteps(const LowRankPlan& plan, Queue<Space::host> queue);

  struct Workspace {
    Workspace(const HostLowRankSteps& steps, Scratch<Space::host>& scratch)
        : p_sums{scratch.take<float>(steps.p_sums_)},
          q_sums{scratch.take<float>(steps.q_sums_)},
          columns{scratch.take<double>(steps.rows_)} {}
    HostView<float> p_sums, q_sums;  ///< products of all tiles
    HostView<double> columns;        ///< a column of P of every matrix, for orthonormalise
  };

  void first_product(const Workspace& work, Queue<Space::host> queue, const State& state, HostView<float> gradient,
                     const format::DrawKey& key, bool redraw_all) const;
  void second_product(const Workspace& work, Queue<Space::host> queue, const State& state,
                      HostView<float> gradient) const;
  void scatter(Queue<Space::host> queue, HostView<const float> message, float share, HostView<float> out) const;
  void rebuild(Queue<Space::host> queue, const State& state, HostView<float> gradient,
               HostView<const float> lost) const;
  /// Adds `added` to m first, unless it is null.
  void project(const Workspace& work, Queue<Space::host> queue, HostView<float> m, HostView<const float> q,
               HostView<float> p, const float* added = nullptr) const;
  void product(Queue<Space::host> queue, HostView<const float> p, HostView<const float> q, HostView<float> out) const;
  static void settle(Queue<Space::host> /*queue*/, const State& /*state*/) {}
  static void forget() {}

 protected:
  /// body(matrix), in parallel.
  template <class Body>
  void for_each_matrix(Queue<Space::host> queue, const Body& body) const {
    parallel_parts(queue, plan_.matrices.size(), plan_.matrices.size(), 1,
                   [&](std::size_t m, std::size_t, std::size_t) { body(plan_.matrices[m]); });
  }
  /// The place of one of the plan's matrices in the plan.
  [[nodiscard]] std::size_t place_of(const LowRankMatrix& matrix) const {
    return static_cast<std::size_t>(&matrix - plan_.matrices.data());
  }

 private:
  static constexpr std::size_t kTileColumns = 1024;
  static constexpr std::size_t kTileElements = 1 << 18;

  /// The unit of parallel work: about kTileElements elements of a matrix, whatever the number of threads.
  struct Tile {
    std::size_t matrix = 0;  ///< its place in the plan
    std::size_t row = 0, column = 0;
    host::MatrixTile shape;
    std::size_t p_sums_first = 0, q_sums_first = 0;  ///< where its products lie in the workspace
  };
  /// The parts that a matrix is cut into.
  struct Cut {
    std::size_t first_tile = 0;
    std::size_t tiles = 0;
    std::size_t first_row = 0;  ///< rows of all matrices before
  };

  void cut(const LowRankMatrix& matrix);
  void draw_columns(Queue<Space::host> queue, HostView<float> q, const format::DrawKey& key, bool redraw_all) const;
  /// body(tile, matrix, the tile's first element in the gradient), in parallel.
  template <class Body>
  void for_each_tile(Queue<Space::host> queue, const Body& body) const;
  /// body(cut, matrix), in parallel.
  template <class Body>
  void for_each_cut(Queue<Space::host> queue, const Body& body) const;

  const LowRankPlan& plan_;
  std::vector<Tile> tiles_;
  std::vector<Cut> cuts_;                ///< of every matrix
  std::size_t p_sums_ = 0, q_sums_ = 0;  ///< floats of the products of all tiles
  std::size_t rows_ = 0;                 ///< of all matrices
};

}  // namespace gradtool
