// PowerSGD (Vogels et al., NeurIPS 2019): one step of a power iteration for each matrix and gradient, between ranks.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numbers>
#include <optional>
#include <vector>

#include "kernels/host/low_rank.hpp"
#include "lib/core/task_pool.hpp"
#include "lib/reduce/host_reducer.hpp"
#include "lib/reduce/ops.hpp"

namespace gradtool {
namespace {

using host::MatrixTile;

/// A tensor that is compressed: first dimension by all others.
struct Matrix {
  std::size_t first = 0;  ///< in the gradient
  std::size_t rows = 0;
  std::size_t columns = 0;
  std::size_t rank = 0;
  std::size_t p_at = 0;  ///< of its first factor in the first message
  std::size_t q_at = 0;  ///< of its second factor in the second message
  std::size_t first_tile = 0;
  std::size_t tiles = 0;
  std::size_t scratch_at = 0;  ///< doubles to orthonormalise in
};

/// The unit of work: some 2^18 elements of a matrix, whatever the number of threads. Products of tiles are added in the
/// order of the tiles.
struct Tile {
  std::size_t matrix = 0;
  std::size_t row = 0;
  std::size_t column = 0;
  std::size_t rows = 0;
  std::size_t columns = 0;
  std::size_t p_at = 0;  ///< of its products in the scratch
  std::size_t q_at = 0;
};
constexpr std::size_t kTileColumns = 1024;
constexpr std::size_t kTileElements = 1 << 18;

/// Element `index` of a standard normal row: Box-Muller on pairs of uniform draws.
float normal(const law::DrawKey& key, std::uint64_t index) {
  const law::Draws draws = law::draw4(key, index / 4);
  const std::size_t pair = index / 2 % 2 * 2;
  const double u = 1.0 - static_cast<double>(law::uniform(draws.bits[pair]));
  const double angle = 2.0 * std::numbers::pi * static_cast<double>(law::uniform(draws.bits[pair + 1]));
  return static_cast<float>(std::sqrt(-2.0 * std::log(u)) * (index % 2 == 0 ? std::cos(angle) : std::sin(angle)));
}

bool is_alive(HostView<const float> column) {
  double squares = 0.0;
  for (const float x : column.span()) squares += static_cast<double>(x) * static_cast<double>(x);
  return squares > 0.0 && std::isfinite(squares);
}

class PowerSgdReducer final : public HostReducer {
 public:
  explicit PowerSgdReducer(const ReducerSetup<Space::host>& setup)
      : HostReducer{setup.layout.elements, setup.ranks},
        start_{setup.spec.params.integer("start_iteration")},
        warm_{setup.spec.params.is("warm_start", "on")} {
    plan(setup.layout, static_cast<std::size_t>(setup.spec.params.integer("rank")),
         setup.spec.params.real("min_compression_rate"));
    const std::size_t held = setup.spec.error_feedback ? n_ : 0;
    state_.emplace(padded(4 * held) + padded(4 * q_size_));
    residual_ = state_->take<float>(held);
    q_ = state_->take<float>(q_size_);
    PowerSgdReducer::reset(setup.queue);
  }

  [[nodiscard]] std::size_t workspace_bytes() const override {
    return padded(4 * p_size_) + padded(4 * std::max(n_, std::max(p_size_, q_size_))) + padded(4 * p_sums_) +
           padded(4 * q_sums_) + padded(8 * scratch_) + 256;
  }

  void reduce(Communicator<Space::host>& comm, Queue<Space::host> queue, HostView<float> gradient,
              const SideInputs<Space::host>& /*side*/, const EncodeContext& context, HostView<std::byte> workspace,
              PhaseClock<Space::host>& clock) override {
    Carver<Space::host> carve{workspace};
    const auto message = take<float>(carve, p_size_);
    const auto segment = carve.take(4 * std::max(n_, std::max(p_size_, q_size_)));
    const auto p_sums = take<float>(carve, p_sums_);
    const auto q_sums = take<float>(carve, q_sums_);
    const auto scratch = take<double>(carve, scratch_);
    const float share = 1.0F / static_cast<float>(comm.size());
    const auto sum = [&](HostView<float> values) {
      in_phase(clock, Phase::communicate, queue, [&] {
        if (!values.empty()) comm.all_reduce_sum(queue, as_writable_bytes(values), Dtype::f32, segment);
      });
    };
    if (context.iteration < start_ || matrices_.empty()) {
      in_phase(clock, Phase::encode, queue, [] {});
      sum(gradient);
      in_phase(clock, Phase::decode, queue, [&] { scale(queue, gradient, share); });
      payload_bytes_ = 4 * n_;
      values_sent_ = n_;
      dense_steps_ += context.iteration < start_ ? 1 : 0;
      return;
    }
    in_phase(clock, Phase::encode, queue, [&] {
      revive(queue, context.key);
      first_product(queue, gradient, message, p_sums);
    });
    sum(message);
    in_phase(clock, Phase::encode, queue, [&] { second_product(queue, gradient, message, q_sums, scratch); });
    sum(q_);
    in_phase(clock, Phase::decode, queue, [&] { rebuild(queue, gradient, message, share); });
    payload_bytes_ = 4 * (p_size_ + q_size_);
    values_sent_ = p_size_ + q_size_;
    ++steps_;
  }

  void reset(Queue<Space::host> queue) override {
    fill_zero(queue, residual_);
    fill_zero(queue, q_);
    steps_ = dense_steps_ = 0;
  }
  [[nodiscard]] View<const float, Space::host> residual() const override { return residual_; }
  [[nodiscard]] std::string note() const override {
    if (dense_steps_ == 0) return {};
    return fmt::format("{} of {} steps compressed, the others before iteration {}", steps_, steps_ + dense_steps_,
                       start_);
  }
  [[nodiscard]] std::vector<Tally> tallies() const override {
    double factored = 0.0;
    for (const Matrix& matrix : matrices_) factored += static_cast<double>(matrix.rows * matrix.columns);
    return {{"elements in factors", factored, static_cast<double>(n_)}};
  }

 private:
  void plan(const Layout& layout, std::size_t rank, double least_rate) {
    for (const TensorShape& tensor : layout.tensors) {
      const std::size_t rows = tensor.rows();
      const std::size_t columns = tensor.columns();
      const std::size_t r = std::min({rank, rows, columns});
      const bool pays = static_cast<double>(rows * columns) >= least_rate * static_cast<double>(r * (rows + columns));
      if (!tensor.is_matrix() || !pays) {
        if (!raw_.empty() && raw_.back().first + raw_.back().count == tensor.first && raw_.back().after == p_size_)
          raw_.back().count += tensor.elements;
        else
          raw_.push_back({.first = tensor.first, .count = tensor.elements, .at = p_size_});
        p_size_ += tensor.elements;
        raw_.back().after = p_size_;
        continue;
      }
      Matrix matrix{.first = tensor.first,
                    .rows = rows,
                    .columns = columns,
                    .rank = r,
                    .p_at = p_size_,
                    .q_at = q_size_,
                    .first_tile = tiles_.size(),
                    .scratch_at = scratch_};
      const std::size_t width = std::min(columns, kTileColumns);
      const std::size_t height = std::max<std::size_t>(kTileElements / width, 1);
      for (std::size_t row = 0; row < rows; row += height) {
        for (std::size_t column = 0; column < columns; column += width) {
          Tile tile{.matrix = matrices_.size(),
                    .row = row,
                    .column = column,
                    .rows = std::min(height, rows - row),
                    .columns = std::min(width, columns - column),
                    .p_at = p_sums_,
                    .q_at = q_sums_};
          p_sums_ += r * tile.rows;
          q_sums_ += r * tile.columns;
          tiles_.push_back(tile);
        }
      }
      matrix.tiles = tiles_.size() - matrix.first_tile;
      p_size_ += r * rows;
      q_size_ += r * columns;
      scratch_ += rows;
      matrices_.push_back(matrix);
    }
  }

  /// Columns of Q that cannot start a power iteration, in the first step all of them, are drawn from a standard normal
  /// distribution, the same on every rank.
  void revive(Queue<Space::host> queue, const law::DrawKey& context) {
    const law::DrawKey key = law::shared_by_ranks(context);
    parallel_parts(queue, matrices_.size(), matrices_.size(), 1, [&](std::size_t m, std::size_t, std::size_t) {
      const Matrix& matrix = matrices_[m];
      for (std::size_t j = 0; j < matrix.rank; ++j) {
        const std::size_t at = matrix.q_at + j * matrix.columns;
        const auto column = q_.part(at, matrix.columns);
        if (warm_ && is_alive(column)) continue;
        for (std::size_t k = 0; k < matrix.columns; ++k) column[k] = normal(key, at + k);
      }
    });
  }

  template <class F>
  void for_each_tile(Queue<Space::host> queue, F&& body) const {
    parallel_parts(queue, tiles_.size(), tiles_.size(), 1, [&](std::size_t t, std::size_t, std::size_t) {
      const Tile& tile = tiles_[t];
      const Matrix& matrix = matrices_[tile.matrix];
      body(tile, matrix, MatrixTile{.rows = tile.rows, .columns = tile.columns, .stride = matrix.columns},
           matrix.first + tile.row * matrix.columns + tile.column);
    });
  }
  template <class F>
  void for_each_matrix(Queue<Space::host> queue, F&& body) const {
    parallel_parts(queue, matrices_.size(), matrices_.size(), 1,
                   [&](std::size_t m, std::size_t, std::size_t) { body(matrices_[m]); });
  }
  /// M: the gradient plus what was held back, in the residual; without error feedback the gradient itself.
  [[nodiscard]] float* held(HostView<float> gradient) const {
    return residual_.empty() ? gradient.data() : residual_.data();
  }

  /// M = gradient + e; P = M Q.
  void first_product(Queue<Space::host> queue, HostView<float> gradient, HostView<float> message,
                     HostView<float> sums) const {
    float* m = held(gradient);
    for (const Raw& raw : raw_) std::memcpy(message.data() + raw.at, gradient.data() + raw.first, 4 * raw.count);
    for_each_tile(queue, [&](const Tile& tile, const Matrix& matrix, const MatrixTile& shape, std::size_t at) {
      host::project_rows(shape, m + at, residual_.empty() ? nullptr : gradient.data() + at, matrix.rank,
                         q_.data() + matrix.q_at + tile.column, matrix.columns, sums.data() + tile.p_at);
    });
    for_each_matrix(queue, [&](const Matrix& matrix) {
      float* p = message.data() + matrix.p_at;
      std::fill_n(p, matrix.rank * matrix.rows, 0.0F);
      for (std::size_t t = matrix.first_tile; t < matrix.first_tile + matrix.tiles; ++t) {
        const Tile& tile = tiles_[t];
        for (std::size_t j = 0; j < matrix.rank; ++j) {
          float* to = p + j * matrix.rows + tile.row;
          const float* from = sums.data() + tile.p_at + j * tile.rows;
          for (std::size_t i = 0; i < tile.rows; ++i) to[i] += from[i];
        }
      }
    });
  }

  /// P orthonormal; Q = Mᵀ P.
  void second_product(Queue<Space::host> queue, HostView<float> gradient, HostView<float> message, HostView<float> sums,
                      HostView<double> scratch) {
    const float* m = held(gradient);
    for_each_matrix(queue, [&](const Matrix& matrix) {
      host::orthonormalise(message.data() + matrix.p_at, matrix.rows, matrix.rank, scratch.data() + matrix.scratch_at);
    });
    for_each_tile(queue, [&](const Tile& tile, const Matrix& matrix, const MatrixTile& shape, std::size_t at) {
      host::project_columns(shape, m + at, matrix.rank, message.data() + matrix.p_at + tile.row, matrix.rows,
                            sums.data() + tile.q_at);
    });
    for_each_matrix(queue, [&](const Matrix& matrix) {
      float* q = q_.data() + matrix.q_at;
      std::fill_n(q, matrix.rank * matrix.columns, 0.0F);
      for (std::size_t t = matrix.first_tile; t < matrix.first_tile + matrix.tiles; ++t) {
        const Tile& tile = tiles_[t];
        for (std::size_t j = 0; j < matrix.rank; ++j) {
          float* to = q + j * matrix.columns + tile.column;
          const float* from = sums.data() + tile.q_at + j * tile.columns;
          for (std::size_t k = 0; k < tile.columns; ++k) to[k] += from[k];
        }
      }
    });
  }

  /// The result P Qᵀ; e = M - P Qᵀ.
  void rebuild(Queue<Space::host> queue, HostView<float> gradient, HostView<float> message, float share) {
    scale(queue, q_, share);
    for (const Raw& raw : raw_) {
      const auto part = message.part(raw.at, raw.count);
      scale(queue, part, share);
      std::memcpy(gradient.data() + raw.first, part.data(), 4 * raw.count);
    }
    for_each_tile(queue, [&](const Tile& tile, const Matrix& matrix, const MatrixTile& shape, std::size_t at) {
      host::rebuild_low_rank(shape, matrix.rank, message.data() + matrix.p_at + tile.row, matrix.rows,
                             q_.data() + matrix.q_at + tile.column, matrix.columns, gradient.data() + at,
                             residual_.empty() ? nullptr : residual_.data() + at);
    });
  }

  /// Tensors that are sent as they are, one behind the other in gradient and message.
  struct Raw {
    std::size_t first = 0;
    std::size_t count = 0;
    std::size_t at = 0;     ///< in the first message
    std::size_t after = 0;  ///< where the message goes on
  };

  std::int64_t start_;
  bool warm_;
  std::vector<Matrix> matrices_;
  std::vector<Tile> tiles_;
  std::vector<Raw> raw_;
  std::size_t p_size_ = 0, q_size_ = 0;  ///< floats of the two messages
  std::size_t p_sums_ = 0, q_sums_ = 0, scratch_ = 0;
  std::optional<Arena<Space::host>> state_;
  HostView<float> residual_, q_;
  std::size_t steps_ = 0, dense_steps_ = 0;
};

}  // namespace

extern constinit const OwnReducer powersgd_reducer{
    .codec = "powersgd",
    .make_host = [](const ReducerSetup<Space::host>& setup) -> std::unique_ptr<Reducer<Space::host>> {
      return std::make_unique<PowerSgdReducer>(setup);
    },
};

}  // namespace gradtool
