#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <memory>
#include <numbers>
#include <numeric>
#include <random>
#include <span>
#include <vector>

#include "kernels/eigen.hpp"
#include "lib/analysis/analysis.hpp"
#include "lib/analysis/slices.hpp"

// Measures how well a method of low rank such as PowerSGD (Vogels et al. 2019) can approximate the mean gradient over
// the workers, taken as a matrix of its first axis against all others.

namespace gradtool {
namespace {

constexpr std::size_t kMostPairs = 4;      ///< of consecutive captured steps that are looked at
constexpr std::size_t kMostShort = 256;    ///< rows or columns of the shorter side that are looked at
constexpr std::size_t kMostFilters = 128;  ///< rows whose correlations are looked at
constexpr std::array<std::size_t, 6> kRanks{1, 2, 4, 8, 16, 32};
constexpr std::array<std::size_t, 4> kSubspaces{1, 2, 4, 8};

struct MatrixShape {
  std::size_t rows = 0, columns = 0;
  /// False for vectors and for matrices with one row or column, which have no rank to reduce.
  [[nodiscard]] bool any() const { return rows > 1 && columns > 1; }
};

MatrixShape shape_of(const TensorInfo& tensor) {
  if (tensor.shape.size() < 2 || tensor.shape.front() < 1) return {};
  const auto rows = static_cast<std::size_t>(tensor.shape.front());
  return {rows, static_cast<std::size_t>(tensor.elements) / rows};
}

/// Steps s and s + 1 of a window for up to kMostPairs evenly spaced s; all steps where there are no more. `windows` has
/// the window of each step.
std::vector<std::size_t> studied_steps(const std::vector<std::size_t>& windows) {
  std::vector<std::size_t> pairs;  // by their first steps
  for (std::size_t s = 0; s + 1 < windows.size(); ++s) {
    if (windows[s] == windows[s + 1]) pairs.push_back(s);
  }
  if (pairs.empty()) return evenly_spaced(1, windows.size());
  std::vector<std::size_t> chosen;
  for (const std::size_t pair : evenly_spaced(kMostPairs, pairs.size())) {
    const std::size_t s = pairs[pair];
    if (chosen.empty() || chosen.back() < s) chosen.push_back(s);
    chosen.push_back(s + 1);
  }
  return chosen;
}

/// The strongest directions of one gradient: up to 8 unit vectors along the shorter side, one behind the other.
using Directions = std::vector<double>;

struct LowRankSums {
  std::size_t steps = 0;
  double vectors = 0;  ///< energy of tensors that are no matrices, which are sent whole
  double energy = 0, effective_rank = 0, components_90 = 0, components_99 = 0;
  std::array<double, kRanks.size()> kept{};
  std::array<double, kSubspaces.size()> drawn{};  ///< energy that one power iteration keeps
  std::vector<double> spectrum;  ///< of each singular value the sum over steps of its share of the energy
  double filter_pearson = 0, filter_absolute = 0;
  std::size_t filter_steps = 0;
  std::array<double, kSubspaces.size()> overlap{}, angle{};  ///< sums over pairs of steps
  std::array<std::size_t, kSubspaces.size()> pairs{};
  std::map<std::size_t, Directions> directions;  ///< by step, until the next one has been compared
  std::size_t side = 0;                          ///< length of a direction

  LowRankSums& operator+=(const LowRankSums& other);
  void compare(const Directions& a, const Directions& b, std::size_t length);
};

/// Compares the spans of the r strongest directions of two steps. The singular values of A^T B are the cosines of the
/// principal angles (Bjorck and Golub 1973).
void LowRankSums::compare(const Directions& a, const Directions& b, std::size_t length) {
  for (std::size_t i = 0; i < kSubspaces.size(); ++i) {
    const std::size_t r = kSubspaces[i];
    if (a.size() < r * length || b.size() < r * length || r >= length) continue;
    std::vector<double> product(r * r), squares(r * r), values(r);
    for (std::size_t j = 0; j < r; ++j) {
      for (std::size_t k = 0; k < r; ++k) product[j * r + k] = dot(&a[j * length], &b[k * length], length);
    }
    add_gram({product.data(), r, r, r}, squares);
    host::lapack_eigenvalues(squares, values, false);
    double sum = 0;
    for (const double value : values) sum += std::clamp(value, 0.0, 1.0);
    overlap[i] += sum / static_cast<double>(r);
    angle[i] += std::acos(std::sqrt(std::clamp(values.front(), 0.0, 1.0))) * 180 / std::numbers::pi;
    ++pairs[i];
  }
}

LowRankSums& LowRankSums::operator+=(const LowRankSums& other) {
  steps += other.steps;
  vectors += other.vectors;
  energy += other.energy, effective_rank += other.effective_rank;
  components_90 += other.components_90, components_99 += other.components_99;
  for (std::size_t i = 0; i < kRanks.size(); ++i) kept[i] += other.kept[i];
  spectrum.resize(std::max(spectrum.size(), other.spectrum.size()));
  for (std::size_t k = 0; k < other.spectrum.size(); ++k) spectrum[k] += other.spectrum[k];
  filter_pearson += other.filter_pearson, filter_absolute += other.filter_absolute, filter_steps += other.filter_steps;
  for (std::size_t i = 0; i < kSubspaces.size(); ++i) {
    drawn[i] += other.drawn[i];
    overlap[i] += other.overlap[i], angle[i] += other.angle[i], pairs[i] += other.pairs[i];
  }
  for (const auto& [step, theirs] : other.directions) {
    const auto before = directions.find(step - 1);
    if (step > 0 && before != directions.end()) compare(before->second, theirs, other.side);
    directions.clear();
    directions[step] = theirs;
  }
  side = std::max(side, other.side);
  return *this;
}

/// The energy that a matrix with these squared singular values keeps where it is projected on the span of its products
/// with r random vectors: a step of PowerSGD that begins with a random Q. A Gaussian matrix has the same distribution
/// in every orthonormal basis, so the singular values say all. The mean over 8 draws, the same in every run.
double drawn_energy(std::span<const double> squares, std::size_t rank) {
  constexpr int kDraws = 8;
  if (rank >= squares.size()) return std::accumulate(squares.begin(), squares.end(), 0.0);
  const std::size_t n = squares.size();
  double energy = 0;
  for (int draw = 0; draw < kDraws; ++draw) {
    std::mt19937_64 engine{static_cast<std::uint64_t>(draw) + 1};
    const auto uniform = [&] { return (static_cast<double>(engine() >> 11) + 0.5) * 0x1p-53; };
    std::vector<double> basis;
    basis.reserve(n * rank);
    for (std::size_t column = 0; column < rank; ++column) {
      std::vector<double> vector(n);
      for (std::size_t i = 0; i < n; ++i) {
        // Box and Muller: the standard library's normal distribution is not the same everywhere.
        const double length = std::sqrt(-2 * std::log(uniform()));
        vector[i] = std::sqrt(squares[i]) * length * std::cos(2 * std::numbers::pi * uniform());
      }
      // Gram and Schmidt, twice: the second time takes off what rounding of nearly parallel vectors has left.
      for (int pass = 0; pass < 2; ++pass) {
        for (std::size_t before = 0; before < column; ++before) {
          const double along = dot(&basis[before * n], vector.data(), n);
          for (std::size_t i = 0; i < n; ++i) vector[i] -= along * basis[before * n + i];
        }
      }
      const double length = std::sqrt(dot(vector.data(), vector.data(), n));
      for (double& x : vector) x = length > 0 ? x / length : 0;
      for (std::size_t i = 0; i < n; ++i) energy += vector[i] * vector[i] * squares[i] / kDraws;
      basis.insert(basis.end(), vector.begin(), vector.end());
    }
  }
  return energy;
}

/// One step of one tensor.
class MatrixOfStep final : public Summing<LowRankSums> {
 public:
  /// `window` of the step: between two windows a place stays free, so that their steps are no neighbours.
  MatrixOfStep(const MatrixShape& shape, std::size_t workers, std::size_t window, bool studied)
      : shape_{shape}, workers_{workers}, window_{window}, studied_{studied} {}

  void observe(const Slice& slice) override {
    if (!check_finite(slice.gradient) || !studied_) return;
    if (slice.worker == 0) mean_.assign(slice.gradient.size(), 0.0F);
    for (std::size_t i = 0; i < mean_.size(); ++i) mean_[i] += slice.gradient[i];
    if (slice.worker + 1 < workers_) return;
    const auto share = 1 / static_cast<float>(workers_);
    for (float& x : mean_) x *= share;
    if (!shape_.any()) {
      for (const float x : mean_) sums_.vectors += static_cast<double>(x) * static_cast<double>(x);
      return;
    }
    add_ranks(slice.step + window_);
    add_filters();
  }
  void close() override { mean_ = {}; }

 private:
  [[nodiscard]] double at(std::size_t row, std::size_t column) const {
    return static_cast<double>(mean_[row * shape_.columns + column]);
  }

  /// From the Gram matrix of the shorter side, whose eigenvalues are the squares of the singular values.
  void add_ranks(std::size_t step) {
    const bool by_rows = shape_.rows <= shape_.columns;
    const std::size_t across = by_rows ? shape_.columns : shape_.rows;
    const auto chosen = evenly_spaced(kMostShort, by_rows ? shape_.rows : shape_.columns);
    const std::size_t side = chosen.size();
    constexpr std::size_t kChunk = 1024;
    std::vector<double> gram(side * side), values(side), chunk(side * std::min(kChunk, across));
    for (std::size_t first = 0; first < across; first += kChunk) {
      const std::size_t count = std::min(kChunk, across - first);
      for (std::size_t i = 0; i < side; ++i) {
        for (std::size_t j = 0; j < count; ++j)
          chunk[i * count + j] = by_rows ? at(chosen[i], first + j) : at(first + j, chosen[i]);
      }
      add_gram({chunk.data(), side, count, count}, gram);
    }
    double energy = 0;
    for (std::size_t i = 0; i < side; ++i) energy += gram[i * side + i];
    if (!(energy > 0)) return;
    host::lapack_eigenvalues(gram, values, true);  // now the directions
    std::reverse(values.begin(), values.end());
    for (double& value : values) value = std::max(value, 0.0);
    ++sums_.steps;
    // Only a sample of a long side was looked at, but the matrix counts with all its energy among all tensors.
    double whole = 0;
    for (const float x : mean_) whole += static_cast<double>(x) * static_cast<double>(x);
    const double weight = whole / energy;
    sums_.energy += whole;
    sums_.spectrum.resize(side);
    double sum = 0, entropy = 0;
    std::size_t for_90 = 0, for_99 = 0;
    for (std::size_t k = 0; k < side; ++k) {
      if (sum < 0.90 * energy) ++for_90;
      if (sum < 0.99 * energy) ++for_99;
      sum += values[k];
      sums_.spectrum[k] += values[k] / energy;
      if (values[k] > 0) entropy -= values[k] / energy * std::log(values[k] / energy);
      for (std::size_t i = 0; i < kRanks.size(); ++i) sums_.kept[i] += k < kRanks[i] ? values[k] * weight : 0;
    }
    for (std::size_t i = 0; i < kSubspaces.size(); ++i) sums_.drawn[i] += weight * drawn_energy(values, kSubspaces[i]);
    sums_.effective_rank += std::exp(entropy);
    sums_.components_90 += static_cast<double>(for_90);
    sums_.components_99 += static_cast<double>(for_99);
    sums_.side = side;
    Directions& directions = sums_.directions[step];
    for (std::size_t k = 0; k < std::min(kSubspaces.back(), side) && values[k] > 1e-12 * values[0]; ++k) {
      const auto vector = gram.begin() + static_cast<std::ptrdiff_t>((side - 1 - k) * side);
      directions.insert(directions.end(), vector, vector + static_cast<std::ptrdiff_t>(side));
    }
  }

  /// Pearson's coefficients between rows: filters of a convolution, outputs of a linear layer.
  void add_filters() {
    const auto chosen = evenly_spaced(kMostFilters, shape_.rows);
    const std::size_t n = shape_.columns, count = chosen.size();
    std::vector<double> rows(count * n), gram(count * count);
    for (std::size_t i = 0; i < count; ++i) {
      double mean = 0;
      for (std::size_t j = 0; j < n; ++j) mean += at(chosen[i], j) / static_cast<double>(n);
      for (std::size_t j = 0; j < n; ++j) rows[i * n + j] = at(chosen[i], j) - mean;
    }
    add_gram({rows.data(), count, n, n}, gram);
    double sum = 0, absolute = 0, pairs = 0;
    for (std::size_t a = 0; a < count; ++a) {
      for (std::size_t b = 0; b < a; ++b) {
        const double scale = std::sqrt(gram[a * count + a]) * std::sqrt(gram[b * count + b]);
        if (!(scale > 0)) continue;
        const double pearson = std::clamp(gram[a * count + b] / scale, -1.0, 1.0);
        sum += pearson;
        absolute += std::fabs(pearson);
        ++pairs;
      }
    }
    if (pairs == 0) return;
    sums_.filter_pearson += sum / pairs;
    sums_.filter_absolute += absolute / pairs;
    ++sums_.filter_steps;
  }

  MatrixShape shape_;
  std::size_t workers_, window_;
  bool studied_;
  std::vector<float> mean_;
};

std::vector<Column> low_rank_columns(std::vector<Column> columns) {
  columns.insert(
      columns.end(),
      {{"rows", "of the tensor as a matrix: its first axis; empty for a vector"},
       {"columns", "all other axes"},
       {"studied_steps", "captured steps that were looked at: up to 4 pairs of consecutive ones"},
       {"effective_rank", "exp of the entropy of the shares of the squared singular values, mean over steps"},
       {"components_90_percent", "singular values that hold 90 % of the energy, mean over steps"},
       {"components_99_percent", "the same of 99 %"}});
  for (const std::size_t rank : kRanks) {
    columns.push_back(
        {fmt::format("rank_{}_share", rank), fmt::format("share of the energy of the mean gradient in its first {} "
                                                         "singular value{}; of `all`, vectors count as kept",
                                                         rank, rank == 1 ? "" : "s")});
  }
  for (const std::size_t rank : kSubspaces) {
    columns.push_back(
        {fmt::format("power_{}_share", rank), fmt::format("the same of one power iteration with {} random vector{}, "
                                                          "mean of 8 draws: a step of PowerSGD without a warm start",
                                                          rank, rank == 1 ? "" : "s")});
  }
  columns.insert(columns.end(), {{"filter_pearson_mean",
                                  "Pearson correlation of two rows (filters, outputs), mean over the pairs of at most "
                                  "128 evenly spaced ones, averaged over steps"},
                                 {"filter_pearson_absolute", "the same of its magnitude"}});
  return columns;
}

class LowRankAnalysis final : public SummingAnalysis<LowRankSums> {
 public:
  explicit LowRankAnalysis(Scope studied)
      : SummingAnalysis{std::move(studied), Unit::slices},
        windows_{scope().windows()},
        steps_{studied_steps(windows_)},
        table_{make_table("low_rank", low_rank_columns(leading_columns()))},
        subspaces_{make_long_table(
            "subspaces", {{"rank", "r: number of singular directions along the shorter side, the strongest ones"},
                          {"energy_share", "share of the energy in them"},
                          {"overlap",
                           "share of the r directions that the next captured step's span has too: mean squared cosine "
                           "of the principal angles; chance is r over the shorter side"},
                          {"largest_angle", "largest principal angle between the two spans, in degrees"}})},
        spectra_{make_long_table(
            "singular_values", {{"component", "position of the singular value, from 1, the largest first"},
                                {"energy_share",
                                 "its square over the sum of all squares, mean over steps; of a matrix with more than "
                                 "256 rows and columns, those of 256 evenly spaced ones of its shorter side"},
                                {"cumulative_share", "the same of this and all larger ones"}})} {}

  [[nodiscard]] std::size_t bytes_per_element() const override { return sizeof(float); }
  [[nodiscard]] std::unique_ptr<Accumulator> start(const Part& part) override {
    return std::make_unique<MatrixOfStep>(shape_of(scope().tensors.at(part.tensor)), scope().workers,
                                          windows_[part.first_step],
                                          std::binary_search(steps_.begin(), steps_.end(), part.first_step));
  }

 private:
  void add(std::size_t tensor, const Accumulator& whole) override {
    SummingAnalysis::add(tensor, whole);
    all_.directions.clear();
    all_.spectrum.clear();  // matrices of different sizes have no common one
  }
  void add_rows(const TensorInfo* tensor, const LowRankSums& sums) override {
    const MatrixShape shape = tensor != nullptr ? shape_of(*tensor) : MatrixShape{};
    const bool matrix = tensor == nullptr || shape.any();
    auto row = leading_cells(tensor, "ok", matrix ? "" : "not a matrix");
    const auto integer = [](std::size_t value) { return Cell{static_cast<std::int64_t>(value)}; };
    const auto mean = [&](double sum) { return ratio_cell(sum, static_cast<double>(sums.steps)); };
    append(row, shape.any() ? integer(shape.rows) : Cell{}, shape.any() ? integer(shape.columns) : Cell{},
           integer(steps_.size()));
    // Ranks of matrices of different sizes have no meaningful mean.
    for (const double sum : {sums.effective_rank, sums.components_90, sums.components_99})
      row.push_back(tensor != nullptr ? mean(sum) : Cell{});
    const double whole = tensor != nullptr ? 0 : sums.vectors;
    for (const double kept : sums.kept) row.push_back(ratio_cell(kept + whole, sums.energy + whole));
    for (const double kept : sums.drawn) row.push_back(ratio_cell(kept + whole, sums.energy + whole));
    for (const double sum : {sums.filter_pearson, sums.filter_absolute})
      row.push_back(ratio_cell(sum, static_cast<double>(sums.filter_steps)));
    table_.add(std::move(row));
    double cumulative = 0;
    for (std::size_t k = 0; k < sums.spectrum.size(); ++k) {
      const double share = sums.spectrum[k] / static_cast<double>(sums.steps);
      cumulative += share;
      auto cells = long_cells(tensor);
      append(cells, integer(k + 1), share, cumulative);
      spectra_.add(std::move(cells));
    }
    for (std::size_t i = 0; sums.steps > 0 && i < kSubspaces.size(); ++i) {
      if (sums.pairs[i] == 0) continue;
      auto cells = long_cells(tensor);
      cells.push_back(integer(kSubspaces[i]));
      const auto rank = std::find(kRanks.begin(), kRanks.end(), kSubspaces[i]) - kRanks.begin();
      append(cells, ratio_cell(sums.kept[static_cast<std::size_t>(rank)], sums.energy),
             sums.overlap[i] / static_cast<double>(sums.pairs[i]), sums.angle[i] / static_cast<double>(sums.pairs[i]));
      subspaces_.add(std::move(cells));
    }
  }

  std::vector<std::size_t> windows_;  ///< of each step
  std::vector<std::size_t> steps_;    ///< those that are looked at
  Table &table_, &subspaces_, &spectra_;
};

}  // namespace

std::unique_ptr<Analysis> make_low_rank(Scope scope) {
  return std::make_unique<LowRankAnalysis>(std::move(scope));
}

}  // namespace gradtool
