// PowerSGD: its parameters, which tensors it compresses, and the steps of its reducer on the CPU.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "lib/codecs/registry.hpp"
#include "lib/core/task_pool.hpp"
#include "lib/methods/powersgd/format.hpp"
#include "lib/methods/powersgd/reducer.hpp"

namespace gradtool {

PowerSgdPlan::PowerSgdPlan(const Layout& layout, std::size_t rank, double least_rate) {
  for (const TensorShape& tensor : layout.tensors) {
    const std::size_t rows = tensor.rows();
    const std::size_t columns = tensor.columns();
    const std::size_t r = std::min({rank, rows, columns});
    const bool pays =
        r > 0 && static_cast<double>(rows * columns) >= least_rate * static_cast<double>(r * (rows + columns));
    if (tensor.is_matrix() && pays) {
      matrices.push_back({.first = tensor.first,
                          .rows = rows,
                          .columns = columns,
                          .rank = r,
                          .p_first = p_size,
                          .q_first = q_size,
                          .square_first = squares});
      p_size += r * rows;
      q_size += r * columns;
      squares += r * r;
      continue;
    }
    const bool continues = !uncompressed.empty() &&
                           uncompressed.back().first + uncompressed.back().count == tensor.first &&
                           uncompressed.back().message_first + uncompressed.back().count == p_size;
    if (continues)
      uncompressed.back().count += tensor.elements;
    else
      uncompressed.push_back({.first = tensor.first, .count = tensor.elements, .message_first = p_size});
    p_size += tensor.elements;
  }
}

namespace {

/// A column of Q starts a power iteration when it is neither zero nor not finite.
bool starts_iteration(HostView<const float> column) {
  double squares = 0.0;
  for (const float x : column.span()) squares += static_cast<double>(x) * static_cast<double>(x);
  return squares > 0.0 && std::isfinite(squares);
}

/// The steps of PowerSgdReducer on the CPU. Threads share matrices, tile by tile; the products of a matrix's tiles are
/// added in the order of the tiles, so the number of threads changes no bit.
class HostSteps {
 public:
  using State = PowerSgdState<Space::host>;

  HostSteps(const PowerSgdPlan& plan, Queue<Space::host> /*queue*/) : plan_{plan} {
    for (const LowRankMatrix& matrix : plan.matrices) cut(matrix);
  }

  struct Workspace {
    Workspace(const HostSteps& steps, Scratch<Space::host>& scratch)
        : p_sums{scratch.take<float>(steps.p_sums_)},
          q_sums{scratch.take<float>(steps.q_sums_)},
          columns{scratch.take<double>(steps.rows_)} {}
    HostView<float> p_sums, q_sums;  ///< products of all tiles
    HostView<double> columns;        ///< a column of P of every matrix, for orthonormalise
  };

  void first_product(const Workspace& work, Queue<Space::host> queue, const State& state, HostView<float> gradient,
                     const format::DrawKey& key, bool redraw_all) const {
    draw_columns(queue, state.q, key, redraw_all);
    for (const PowerSgdPlan::Uncompressed& part : plan_.uncompressed)
      std::memcpy(state.p.data() + part.message_first, gradient.data() + part.first, 4 * part.count);
    float* m = state.matrices(gradient);
    for_each_tile(queue, [&](const Tile& tile, const LowRankMatrix& matrix, std::size_t first) {
      host::project_rows(tile.shape, m + first, state.residual.empty() ? nullptr : gradient.data() + first, matrix.rank,
                         state.q.data() + matrix.q_first + tile.column, matrix.columns,
                         work.p_sums.data() + tile.p_sums_first);
    });
    for_each_matrix(queue, [&](const Cut& cut, const LowRankMatrix& matrix) {
      float* p = state.p.data() + matrix.p_first;
      std::fill_n(p, matrix.rank * matrix.rows, 0.0F);
      for (std::size_t t = cut.first_tile; t < cut.first_tile + cut.tiles; ++t) {
        const Tile& tile = tiles_[t];
        for (std::size_t j = 0; j < matrix.rank; ++j) {
          float* to = p + j * matrix.rows + tile.row;
          const float* from = work.p_sums.data() + tile.p_sums_first + j * tile.shape.rows;
          for (std::size_t i = 0; i < tile.shape.rows; ++i) to[i] += from[i];
        }
      }
    });
  }

  void second_product(const Workspace& work, Queue<Space::host> queue, const State& state,
                      HostView<float> gradient) const {
    for_each_matrix(queue, [&](const Cut& cut, const LowRankMatrix& matrix) {
      host::orthonormalise(state.p.data() + matrix.p_first, matrix.rows, matrix.rank,
                           work.columns.data() + cut.first_row);
    });
    const float* m = state.matrices(gradient);
    for_each_tile(queue, [&](const Tile& tile, const LowRankMatrix& matrix, std::size_t first) {
      host::project_columns(tile.shape, m + first, matrix.rank, state.p.data() + matrix.p_first + tile.row, matrix.rows,
                            work.q_sums.data() + tile.q_sums_first);
    });
    for_each_matrix(queue, [&](const Cut& cut, const LowRankMatrix& matrix) {
      float* q = state.q.data() + matrix.q_first;
      std::fill_n(q, matrix.rank * matrix.columns, 0.0F);
      for (std::size_t t = cut.first_tile; t < cut.first_tile + cut.tiles; ++t) {
        const Tile& tile = tiles_[t];
        for (std::size_t j = 0; j < matrix.rank; ++j) {
          float* to = q + j * matrix.columns + tile.column;
          const float* from = work.q_sums.data() + tile.q_sums_first + j * tile.shape.columns;
          for (std::size_t k = 0; k < tile.shape.columns; ++k) to[k] += from[k];
        }
      }
    });
  }

  void rebuild(Queue<Space::host> queue, const State& state, HostView<float> gradient, float share) const {
    scale(queue, state.q, share);
    for (const PowerSgdPlan::Uncompressed& part : plan_.uncompressed) {
      const auto sums = state.p.part(part.message_first, part.count);
      scale(queue, sums, share);
      std::memcpy(gradient.data() + part.first, sums.data(), 4 * part.count);
    }
    for_each_tile(queue, [&](const Tile& tile, const LowRankMatrix& matrix, std::size_t first) {
      host::rebuild_low_rank(tile.shape, matrix.rank, state.p.data() + matrix.p_first + tile.row, matrix.rows,
                             state.q.data() + matrix.q_first + tile.column, matrix.columns, gradient.data() + first,
                             state.residual.empty() ? nullptr : state.residual.data() + first);
    });
  }
  static void settle(Queue<Space::host> /*queue*/, const State& /*state*/) {}
  static void forget() {}

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
  /// What a matrix is cut into.
  struct Cut {
    std::size_t first_tile = 0;
    std::size_t tiles = 0;
    std::size_t first_row = 0;  ///< rows of all matrices before
  };

  void cut(const LowRankMatrix& matrix) {
    const std::size_t width = std::min(matrix.columns, kTileColumns);
    const std::size_t height = std::max<std::size_t>(kTileElements / width, 1);
    const std::size_t first_tile = tiles_.size();
    for (std::size_t row = 0; row < matrix.rows; row += height) {
      for (std::size_t column = 0; column < matrix.columns; column += width) {
        const host::MatrixTile shape{.rows = std::min(height, matrix.rows - row),
                                     .columns = std::min(width, matrix.columns - column),
                                     .stride = matrix.columns};
        tiles_.push_back({cuts_.size(), row, column, shape, p_sums_, q_sums_});
        p_sums_ += matrix.rank * shape.rows;
        q_sums_ += matrix.rank * shape.columns;
      }
    }
    cuts_.push_back({first_tile, tiles_.size() - first_tile, rows_});
    rows_ += matrix.rows;
  }

  /// Draws every rank's columns from the same key.
  void draw_columns(Queue<Space::host> queue, HostView<float> q, const format::DrawKey& key, bool redraw_all) const {
    for_each_matrix(queue, [&](const Cut& /*cut*/, const LowRankMatrix& matrix) {
      for (std::size_t j = 0; j < matrix.rank; ++j) {
        const std::size_t first = matrix.q_first + j * matrix.columns;
        const auto column = q.part(first, matrix.columns);
        if (!redraw_all && starts_iteration(column)) continue;
        for (std::size_t k = 0; k < matrix.columns; ++k) column[k] = format::normal(key, first + k);
      }
    });
  }

  /// body(tile, matrix, the tile's first element in the gradient), in parallel.
  template <class Body>
  void for_each_tile(Queue<Space::host> queue, const Body& body) const {
    parallel_parts(queue, tiles_.size(), tiles_.size(), 1, [&](std::size_t t, std::size_t, std::size_t) {
      const Tile& tile = tiles_[t];
      const LowRankMatrix& matrix = plan_.matrices[tile.matrix];
      body(tile, matrix, matrix.first + tile.row * matrix.columns + tile.column);
    });
  }
  /// body(cut, matrix), in parallel.
  template <class Body>
  void for_each_matrix(Queue<Space::host> queue, const Body& body) const {
    parallel_parts(queue, cuts_.size(), cuts_.size(), 1,
                   [&](std::size_t m, std::size_t, std::size_t) { body(cuts_[m], plan_.matrices[m]); });
  }

  const PowerSgdPlan& plan_;
  std::vector<Tile> tiles_;
  std::vector<Cut> cuts_;                ///< of every matrix
  std::size_t p_sums_ = 0, q_sums_ = 0;  ///< floats of the products of all tiles
  std::size_t rows_ = 0;                 ///< of all matrices
};

constexpr ParamInfo kParams[] = {
    {.name = "rank",
     .kind = ParamInfo::Kind::integer,
     .default_value = "2",
     .min = 1,
     .max = 256,
     .search = "1|2|4|8|16|32",
     .meaning = "columns of the factors P and Q, r"},
    {.name = "min_compression_rate",
     .default_value = "2",
     .min = 0.0,
     .max = 1e6,
     .meaning = "a matrix is sent as it is unless its factors have so many times fewer elements"},
    {.name = "warm_start",
     .kind = ParamInfo::Kind::choice,
     .default_value = "on",
     .choices = "on|off",
     .meaning = "whether a step begins with the Q of the last step, or with a random one"},
    {.name = "start_iteration",
     .kind = ParamInfo::Kind::integer,
     .default_value = "0",
     .min = 0,
     .max = 1e9,
     .meaning = "gradients of earlier training iterations are sent as they are; 0 because a replay does not train"}};

}  // namespace

extern constinit const CodecDescriptor powersgd_codec{
    .name = "powersgd",
    .summary = "low-rank factors from one power iteration a step, summed by the all-reduce, with error feedback",
    .reference = "Vogels et al., PowerSGD, NeurIPS 2019, arXiv 1905.13727",
    .description =
        "Every tensor of two or more dimensions is a matrix M, its first dimension by all others, of the gradient "
        "plus the residual. A step of training is one step of a power iteration: P = M Q is summed over the ranks and "
        "made orthonormal, Q = M^T P is summed, and the result is P Q^T; the residual keeps M - P Q^T, and Q starts "
        "the next step. One message carries all P, together with tensors of one dimension and matrices that would not "
        "shrink by min_compression_rate; a second one carries all Q. Decided here, where the paper is silent: "
        "Gram-Schmidt runs twice in float64, with an epsilon relative to the norm of the column, so that the result "
        "scales with the gradient; columns of Q that are zero or not finite are drawn anew, where the authors' code "
        "would stay at zero; start_iteration is 0, because it protects an optimiser, which a replay does not have. It "
        "pays on slow networks, since an all-reduce carries it whatever the number of ranks is; the price is three "
        "passes over the gradient and the latency of two messages. A gradient that is not finite stays in the "
        "residual.",
    .params = kParams,
    .aggregation = Aggregation::own,
    .error_feedback = true,
    .by_layout = true,
    .determinism = Determinism::run_to_run,
    .payload = "32 (sum over matrices of r (rows + columns) + other elements) bits",
    .make_host = nullptr,
    .make_host_reducer = [](const ReducerSetup<Space::host>& setup) -> std::unique_ptr<Reducer<Space::host>> {
      return std::make_unique<PowerSgdReducer<Space::host, HostSteps>>(setup);
    },
};

}  // namespace gradtool
