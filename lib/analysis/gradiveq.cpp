#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <memory>
#include <vector>

#include "lib/analysis/analysis.hpp"
#include "lib/analysis/principal.hpp"
#include "lib/analysis/slices.hpp"

// The figures of GradiVeQ (Yu et al. 2018): how many components a loss lambda takes, and what a basis is still good for
// in later steps and in other slices.

namespace gradtool {
namespace {

constexpr std::size_t kMostSlices = 8;       ///< of a tensor that are compared
constexpr std::size_t kMostElements = 4096;  ///< of a slice that are looked at
constexpr std::array<double, 6> kLambdas{0.1, 0.05, 0.02, 0.01, 0.005, 0.001};
constexpr std::array<std::size_t, 8> kComponents{1, 2, 4, 8, 16, 32, 48, 64};
constexpr double kKept = 0.99;  ///< share of the window's variance that a basis holds

/// Squared error and squared norm, over steps, slices and tensors.
struct Loss {
  double error = 0, energy = 0;
  Loss& operator+=(const Loss& other) {
    error += other.error, energy += other.energy;
    return *this;
  }
  [[nodiscard]] Cell nmse() const { return ratio_cell(error, energy); }
};

/// Sums over the slices of one tensor or of all.
struct BasisSums {
  std::size_t slices = 0;
  double elements = 0;           ///< looked at
  double whole_elements = 0;     ///< sum of K
  double window_components = 0;  ///< sum of d of the windows' bases
  std::array<double, kLambdas.size()> components{};
  /// By age: 0 in the window that the basis was learned on, else steps after it. [0: own basis, 1: another slice's]
  std::array<std::vector<Loss>, 2> by_age;
  std::array<Loss, kComponents.size()> window_curve{}, later_curve{};
  std::array<bool, kComponents.size()> reached{};  ///< whether some slice had so many components

  BasisSums& operator+=(const BasisSums& other) {
    slices += other.slices, elements += other.elements, whole_elements += other.whole_elements,
        window_components += other.window_components;
    for (std::size_t i = 0; i < components.size(); ++i) components[i] += other.components[i];
    for (std::size_t b = 0; b < 2; ++b) {
      by_age[b].resize(std::max(by_age[b].size(), other.by_age[b].size()));
      for (std::size_t age = 0; age < other.by_age[b].size(); ++age) by_age[b][age] += other.by_age[b][age];
    }
    for (std::size_t i = 0; i < kComponents.size(); ++i) {
      window_curve[i] += other.window_curve[i], later_curve[i] += other.later_curve[i];
      reached[i] = reached[i] || other.reached[i];
    }
    return *this;
  }
  [[nodiscard]] Loss later(std::size_t basis) const {
    Loss sum;
    for (std::size_t age = 1; age < by_age[basis].size(); ++age) sum += by_age[basis][age];
    return sum;
  }
};

/// The slices that are compared: evenly spaced ones of those that are whole.
std::vector<std::size_t> compared_slices(const Slicing& slicing) {
  const std::size_t last = slicing.slices() - 1;
  const bool short_last = slicing.elements_of(last) < slicing.slice_elements();
  return evenly_spaced(kMostSlices, short_last ? last : last + 1);
}

/// Keeps the compared slices of the samples, the mean gradients over the workers at the first M steps.
class SliceValues final : public Accumulator {
 public:
  using Samples = std::vector<std::vector<float>>;  ///< [M][elements seen]

  SliceValues(const Slicing& slicing, std::size_t workers, std::size_t samples, const Part& part)
      : workers_{workers}, samples_{samples}, mean_(part.count) {
    for (const std::size_t slice : compared_slices(slicing)) {
      const auto columns = slicing.columns(slice, part.first, part.count);
      std::vector<std::size_t> own;
      for (std::uint64_t c = 0; c < columns.count && columns.before + c < kMostElements; ++c)
        own.push_back(static_cast<std::size_t>(columns.offset(c)));
      positions_.push_back(std::move(own));
      slices_.emplace_back(samples);
    }
  }

  void observe(const Slice& slice) override {
    if (!check_finite(slice.gradient) || slice.step >= samples_) return;
    for (std::size_t i = 0; i < mean_.size(); ++i) {
      const double value = static_cast<double>(slice.gradient[i]);
      mean_[i] = slice.worker == 0 ? value : mean_[i] + value;
    }
    if (slice.worker + 1 < workers_) return;
    for (std::size_t s = 0; s < slices_.size(); ++s) {
      auto& values = slices_[s][slice.step];
      values.reserve(positions_[s].size());
      for (const std::size_t i : positions_[s])
        values.push_back(static_cast<float>(mean_[i] / static_cast<double>(workers_)));
    }
  }
  void close() override { mean_ = {}, positions_ = {}; }
  void merge(const Accumulator& other) override {
    const auto& theirs = dynamic_cast<const SliceValues&>(other);
    non_finite_ += theirs.non_finite_;
    if (non_finite_ > 0) return;
    for (std::size_t s = 0; s < slices_.size(); ++s) {
      for (std::size_t m = 0; m < samples_; ++m) {
        const auto& more = theirs.slices_[s][m];
        slices_[s][m].insert(slices_[s][m].end(), more.begin(), more.end());
      }
    }
  }
  [[nodiscard]] const std::vector<Samples>& slices() const { return slices_; }

 private:
  std::size_t workers_, samples_;
  std::vector<double> mean_;                         ///< sum over the workers so far
  std::vector<std::vector<std::size_t>> positions_;  ///< of each slice's elements in this part
  std::vector<Samples> slices_;
};

/// The samples of one slice less the mean of those in the window, and the basis that the window gives.
class SliceBasis {
 public:
  SliceBasis(const SliceValues::Samples& samples, std::size_t window)
      : count_{samples.size()}, window_{window}, elements_{samples.front().size()}, values_(count_ * elements_) {
    std::vector<double> mean(elements_);
    for (std::size_t t = 0; t < window_; ++t) {
      for (std::size_t i = 0; i < elements_; ++i)
        mean[i] += static_cast<double>(samples[t][i]) / static_cast<double>(window_);
    }
    for (std::size_t t = 0; t < count_; ++t) {
      double norm = 0;
      for (std::size_t i = 0; i < elements_; ++i) {
        const double x = static_cast<double>(samples[t][i]);
        values_[t * elements_ + i] = x - mean[i];
        norm += x * x;
      }
      norms_.push_back(norm);
    }
    vectors_.resize(window_ * window_);
    add_gram({values_.data(), window_, elements_, elements_}, vectors_);
    double trace = 0, energy = 0;
    for (std::size_t t = 0; t < window_; ++t) trace += vectors_[t * window_ + t], energy += norms_[t];
    eigenvalues_.resize(window_);
    if (trace <= 1e-25 * energy) return;  // equal samples, but for rounding
    host::lapack_eigenvalues(vectors_, eigenvalues_, true);
    const double largest = eigenvalues_.back();
    const double total = kept_total(largest);
    double kept = 0;
    for (std::size_t j = window_; j-- > 0 && eigenvalues_[j] > kRelativeZero * largest;) {
      if (kept < kKept * total) ++components_;
      kept += eigenvalues_[j];
      ++rank_;
    }
  }

  [[nodiscard]] std::size_t elements() const { return elements_; }
  [[nodiscard]] std::size_t components() const { return components_; }  ///< that hold kKept of the window's variance
  [[nodiscard]] std::size_t rank() const { return rank_; }
  [[nodiscard]] double norm(std::size_t sample) const { return norms_[sample]; }
  /// Squared norm of a sample less the window's mean.
  [[nodiscard]] double centred_norm(std::size_t sample) const { return dot(row(sample), row(sample), elements_); }

  /// Squared coordinates of a sample of another slice (less its own mean) along this basis' components, strongest
  /// first.
  [[nodiscard]] std::vector<double> along(const SliceBasis& other, std::size_t sample) const {
    std::vector<double> inner(window_), squares(rank_);
    for (std::size_t t = 0; t < window_; ++t) inner[t] = dot(row(t), other.row(sample), elements_);
    for (std::size_t j = 0; j < rank_; ++j) {
      // u = X^T v / sqrt(lambda), so <x, u> = sum over t of <x, x_t> v[t] / sqrt(lambda).
      const std::size_t at = window_ - 1 - j;
      const double product = dot(inner.data(), &vectors_[at * window_], window_);
      squares[j] = product * product / eigenvalues_[at];
    }
    return squares;
  }

 private:
  [[nodiscard]] const double* row(std::size_t sample) const { return values_.data() + sample * elements_; }
  [[nodiscard]] double kept_total(double largest) const {
    double total = 0;
    for (const double value : eigenvalues_) total += value > kRelativeZero * largest ? value : 0;
    return total;
  }

  std::size_t count_, window_, elements_, components_ = 0, rank_ = 0;
  std::vector<double> values_;                 ///< [samples][elements]
  std::vector<double> norms_;                  ///< of the samples themselves
  std::vector<double> vectors_, eigenvalues_;  ///< of the window's Gram matrix; ascending
};

void add_lambdas(BasisSums& sums, const SliceValues::Samples& samples) {
  const std::size_t m = samples.size(), n = samples.front().size();
  std::vector<double> rows(m * n), mean(n), norms(m), gram(m * m);
  for (const auto& sample : samples) {
    for (std::size_t i = 0; i < n; ++i) mean[i] += static_cast<double>(sample[i]) / static_cast<double>(m);
  }
  for (std::size_t t = 0; t < m; ++t) {
    for (std::size_t i = 0; i < n; ++i) {
      const double x = static_cast<double>(samples[t][i]);
      rows[t * n + i] = x - mean[i];
      norms[t] += x * x;
    }
  }
  add_gram({rows.data(), m, n, n}, gram);
  const auto principal = principal_components(gram, norms, n);
  for (std::size_t i = 0; i < kLambdas.size(); ++i)
    sums.components[i] += static_cast<double>(principal.components_for(1 - kLambdas[i]));
}

/// Sums over the compared slices of one tensor; empty with fewer than 4 samples.
BasisSums sums_of(const std::vector<SliceValues::Samples>& slices, std::size_t samples) {
  BasisSums sums;
  if (samples < 4) return sums;
  const std::size_t window = samples / 2;
  for (const auto& slice : slices) add_lambdas(sums, slice);
  for (auto& ages : sums.by_age) ages.resize(samples - window + 1);
  // Two bases are held at a time: with 128 samples one takes 4 MB.
  auto next = std::make_unique<SliceBasis>(slices.front(), window);
  for (std::size_t s = 0; s < slices.size(); ++s) {
    const auto held = std::move(next);
    next = std::make_unique<SliceBasis>(slices[(s + 1) % slices.size()], window);
    const SliceBasis &own = *held, &other = *next;
    ++sums.slices;
    sums.elements += static_cast<double>(own.elements());
    sums.window_components += static_cast<double>(own.components());
    for (std::size_t t = 0; t < samples; ++t) {
      const std::size_t age = t < window ? 0 : t - window + 1;
      const double whole = own.centred_norm(t), energy = own.norm(t);
      const auto along = own.along(own, t);
      const auto error = [&](const std::vector<double>& squares, std::size_t count) {
        double left = whole;
        for (std::size_t j = 0; j < std::min(count, squares.size()); ++j) left -= squares[j];
        return std::max(left, 0.0);
      };
      sums.by_age[0][age] += {error(along, own.components()), energy};
      for (std::size_t i = 0; i < kComponents.size(); ++i) {
        if (kComponents[i] > own.rank()) continue;
        sums.reached[i] = true;
        (age == 0 ? sums.window_curve : sums.later_curve)[i] += {error(along, kComponents[i]), energy};
      }
      // Another slice's basis with as many components as the own one has, so that both send as much.
      if (slices.size() > 1) sums.by_age[1][age] += {error(other.along(own, t), own.components()), energy};
    }
  }
  return sums;
}

class BasisAnalysis final : public Analysis {
 public:
  BasisAnalysis(Scope studied, std::size_t samples, std::size_t taps)
      : Analysis{std::move(studied), Unit::elements},
        samples_{std::min(samples, scope().steps())},
        taps_{taps},
        table_{make_table("gradiveq", columns(leading_columns()))},
        lambdas_{
            make_long_table("gradiveq_lambda",
                            {{"lambda", "share of the variance over the samples that may be lost"},
                             {"components", "d: components that this takes, mean over slices"},
                             {"ratio", "sum of K over sum of d: the compression, of samples that the basis knows"}})},
        losses_{make_long_table("gradiveq_loss",
                                {{"basis", "own, or other: that of the next compared slice, with as many components"},
                                 {"age", "captured steps since the basis was learned; 0: the steps it was learned on"},
                                 {"nmse", "squared error of the projection over squared norm"}})},
        curve_{make_long_table("gradiveq_curve",
                               {{"components", "components that are kept"},
                                {"kept", "the same as a share of the elements of a slice"},
                                {"window_share", "share of the energy kept in the steps that the basis was learned on"},
                                {"later_share", "the same in the steps after them"}})} {}

  [[nodiscard]] std::size_t bytes_per_element() const override {
    return sizeof(double) + sizeof(std::size_t) + sizeof(float) * samples_;
  }
  [[nodiscard]] std::unique_ptr<Accumulator> start(const Part& part) override {
    return std::make_unique<SliceValues>(Slicing{scope().tensors.at(part.tensor), taps_}, scope().workers, samples_,
                                         part);
  }
  void add(std::size_t tensor, const Accumulator& whole) override {
    auto sums = sums_of(dynamic_cast<const SliceValues&>(whole).slices(), samples_);
    const Slicing slicing{scope().tensors.at(tensor), taps_};
    sums.whole_elements = static_cast<double>(sums.slices) * static_cast<double>(slicing.slice_elements());
    add_rows(&scope().tensors.at(tensor), sums);
    all_ += sums;
  }
  void add_all() override { add_rows(nullptr, all_); }

 private:
  static std::vector<Column> columns(std::vector<Column> columns) {
    columns.insert(
        columns.end(),
        {{"basis_samples",
          "captured steps: on the first half a basis is learned, the others test it; empty with fewer than 4"},
         {"compared_slices", "whole slices that were looked at: all, or 8 evenly spaced ones"},
         {"compared_elements", "elements of a slice that were looked at: all, or the first 4096; mean over slices"},
         {"basis_components", "d: components that hold 99 % of the first half's variance, mean over slices"},
         {"own_nmse", "what they lose of the second half: squared error over squared norm"},
         {"next_nmse", "the same of the first step after the basis was learned"},
         {"other_nmse",
          "what as many components of another slice's basis lose of the second half; empty with one slice"}});
    return columns;
  }

  void add_rows(const TensorInfo* tensor, const BasisSums& sums) {
    auto row = leading_cells(tensor, "ok", sums.slices > 0 ? "" : "fewer than 4 steps: no basis to test");
    if (sums.slices == 0) {
      row.resize(table_.columns().size());
      table_.add(std::move(row));
      return;
    }
    const auto slices = static_cast<double>(sums.slices);
    append(row, static_cast<std::int64_t>(samples_), static_cast<std::int64_t>(sums.slices), sums.elements / slices,
           sums.window_components / slices, sums.later(0).nmse(), sums.by_age[0][1].nmse(), sums.later(1).nmse());
    table_.add(std::move(row));

    const auto begin = long_cells(tensor);
    const auto add = [&](Table& table, std::initializer_list<Cell> cells) {
      std::vector<Cell> all = begin;
      all.insert(all.end(), cells);
      table.add(std::move(all));
    };
    for (std::size_t i = 0; i < kLambdas.size(); ++i) {
      add(lambdas_, {kLambdas[i], sums.components[i] / slices, ratio_cell(sums.whole_elements, sums.components[i])});
    }
    for (std::size_t b = 0; b < 2; ++b) {
      for (std::size_t age = 0; age < sums.by_age[b].size(); ++age) {
        const Loss& loss = sums.by_age[b][age];
        if (loss.energy > 0) add(losses_, {b == 0 ? "own" : "other", static_cast<std::int64_t>(age), loss.nmse()});
      }
    }
    for (std::size_t i = 0; i < kComponents.size(); ++i) {
      if (!sums.reached[i]) continue;
      const auto kept = [](const Loss& loss) { return loss.energy > 0 ? Cell{1 - loss.error / loss.energy} : Cell{}; };
      add(curve_, {static_cast<std::int64_t>(kComponents[i]),
                   static_cast<double>(kComponents[i]) * slices / sums.whole_elements, kept(sums.window_curve[i]),
                   kept(sums.later_curve[i])});
    }
  }

  std::size_t samples_, taps_;
  Table &table_, &lambdas_, &losses_, &curve_;
  BasisSums all_;
};

}  // namespace

std::unique_ptr<Analysis> make_gradiveq(Scope scope, std::size_t samples, std::size_t taps) {
  return std::make_unique<BasisAnalysis>(std::move(scope), samples, taps);
}

}  // namespace gradtool
