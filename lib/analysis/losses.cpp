#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <memory>
#include <vector>

#include "lib/analysis/analysis.hpp"

// Measures the loss of a gradient some of whose packets are lost (DLCP, Wang et al. 2020), and the size of gradients
// beside the weights that they change (importance-weighted pruning, Cheng and Xu 2019).

namespace gradtool {
namespace {

constexpr std::size_t kLossSteps = 16;
constexpr std::size_t kPacket = 360;  ///< float32 values in a packet of 1440 bytes
constexpr std::array<double, 6> kLost{0.01, 0.03, 0.05, 0.10, 0.20, 0.30};
constexpr std::size_t kTen = 3;
static_assert(kLost[kTen] == 0.10);
constexpr std::array kDropOrders{"smallest", "random", "largest"};
constexpr std::array<double, 3> kLossQuantiles{0.50, 0.90, 0.99};
constexpr std::array<double, 3> kThresholds{0.001, 0.01, 0.1};

/// |g / w| of one step: sums over gradients of n times a quantile or a share, n the elements that have a ratio.
struct Importance {
  double weight = 0;
  std::array<double, kLossQuantiles.size()> quantiles{};
  std::array<double, kThresholds.size()> above{};
  Importance& operator+=(const Importance& other) {
    weight += other.weight;
    for (std::size_t i = 0; i < quantiles.size(); ++i) quantiles[i] += other.quantiles[i];
    for (std::size_t i = 0; i < above.size(); ++i) above[i] += other.above[i];
    return *this;
  }
};

struct LossSums {
  double energy = 0;
  std::array<std::array<double, kLost.size()>, kDropOrders.size()> lost{};  ///< energy that goes with the packets
  std::map<std::size_t, Importance> importance;                             ///< by step

  LossSums& operator+=(const LossSums& other) {
    energy += other.energy;
    for (std::size_t o = 0; o < lost.size(); ++o) {
      for (std::size_t i = 0; i < kLost.size(); ++i) lost[o][i] += other.lost[o][i];
    }
    for (const auto& [step, theirs] : other.importance) importance[step] += theirs;
    return *this;
  }
  [[nodiscard]] Importance all_importance() const {
    Importance sum;
    for (const auto& [step, importance_there] : importance) sum += importance_there;
    return sum;
  }
};

class LossesOfGradient final : public Summing<LossSums> {
 public:
  explicit LossesOfGradient(bool studied) : studied_{studied} {}

  void observe(const Slice& slice) override {
    if (!check_finite(slice.gradient) || !studied_) return;
    add_packets(slice.gradient);
    if (!slice.weight.empty()) add_importance(slice);
  }
  void close() override { ratios_ = {}; }

 private:
  /// The last packet may be shorter. Of a tensor in few packets a share of one is lost: sums over tensors and steps are
  /// then what that share of all packets would be on average.
  void add_packets(std::span<const float> values) {
    std::vector<double> packets;
    packets.reserve(values.size() / kPacket + 1);
    double energy = 0;
    for (std::size_t first = 0; first < values.size(); first += kPacket) {
      double sum = 0;
      for (const float x : values.subspan(first, std::min(kPacket, values.size() - first)))
        sum += static_cast<double>(x) * static_cast<double>(x);
      packets.push_back(sum);
      energy += sum;
    }
    std::sort(packets.begin(), packets.end());
    sums_.energy += energy;
    const auto count = static_cast<double>(packets.size());
    double below = 0, above = 0;
    std::size_t taken = 0;
    for (std::size_t i = 0; i < kLost.size(); ++i) {
      const double lost = kLost[i] * count;
      const auto whole = static_cast<std::size_t>(lost);
      for (; taken < whole; ++taken) below += packets[taken], above += packets[packets.size() - 1 - taken];
      const double part = lost - static_cast<double>(whole);
      sums_.lost[0][i] += below + part * packets[whole];
      sums_.lost[1][i] += kLost[i] * energy;
      sums_.lost[2][i] += above + part * packets[packets.size() - 1 - whole];
    }
  }

  /// Elements whose gradient and weight are both 0 have no ratio; a weight of 0 makes it infinite.
  void add_importance(const Slice& slice) {
    ratios_.clear();
    for (std::size_t i = 0; i < slice.gradient.size(); ++i) {
      const double g = std::fabs(static_cast<double>(slice.gradient[i])),
                   w = std::fabs(static_cast<double>(slice.weight[i]));
      if (g == 0 && w == 0) continue;
      ratios_.push_back(w == 0 ? std::numeric_limits<double>::infinity() : g / w);
    }
    if (ratios_.empty()) return;
    Importance& sums = sums_.importance[slice.step];
    const auto n = static_cast<double>(ratios_.size());
    sums.weight += n;
    auto first = ratios_.begin();
    for (std::size_t q = 0; q < kLossQuantiles.size(); ++q) {
      const auto at =
          ratios_.begin() + static_cast<std::ptrdiff_t>(std::max(1.0, std::ceil(kLossQuantiles[q] * n))) - 1;
      std::nth_element(first, at, ratios_.end());
      first = at;
      sums.quantiles[q] += *at * n;
    }
    for (std::size_t i = 0; i < kThresholds.size(); ++i) {
      sums.above[i] += static_cast<double>(
          std::count_if(ratios_.begin(), ratios_.end(), [&](double ratio) { return ratio > kThresholds[i]; }));
    }
  }

  bool studied_;
  std::vector<double> ratios_;
};

constexpr std::array kQuantileNames{"importance_q50", "importance_q90", "importance_q99"};
constexpr std::array kThresholdNames{"above_0_001", "above_0_01", "above_0_1"};

std::vector<Column> importance_columns() {
  std::vector<Column> columns;
  for (std::size_t q = 0; q < kLossQuantiles.size(); ++q) {
    columns.push_back(
        {kQuantileNames[q], fmt::format("{:.0f} % quantile of |gradient / weight| over the elements that are not 0 in "
                                        "both, mean over workers; empty where the file has no weights",
                                        100 * kLossQuantiles[q])});
  }
  for (std::size_t i = 0; i < kThresholds.size(); ++i) {
    columns.push_back(
        {kThresholdNames[i],
         fmt::format("share of them with a ratio above {}, what importance-weighted pruning sends at that threshold",
                     kThresholds[i])});
  }
  return columns;
}

class LossAnalysis final : public SummingAnalysis<LossSums> {
 public:
  explicit LossAnalysis(Scope studied)
      : SummingAnalysis{std::move(studied), Unit::slices},
        steps_{evenly_spaced(kLossSteps, scope().steps())},
        table_{make_table("losses", columns(leading_columns()))},
        packets_{make_long_table(
            "packets", {{"lost", "share of the packets that is lost, of 360 float32 values (1440 bytes) each"},
                        {"which", "smallest (by norm), random (expected value) or largest"},
                        {"nmse", "energy that is lost with them, as a share"}})},
        importance_{make_long_table("importance", with_step())} {}

  [[nodiscard]] std::size_t bytes_per_element() const override { return sizeof(double); }
  [[nodiscard]] bool needs_weight(std::size_t tensor) const override { return scope().tensors.at(tensor).has_weight; }
  [[nodiscard]] std::unique_ptr<Accumulator> start(const Part& part) override {
    return std::make_unique<LossesOfGradient>(std::binary_search(steps_.begin(), steps_.end(), part.first_step));
  }

 private:
  static std::vector<Column> with_step() {
    std::vector<Column> columns{{"step", "position of the captured step, from 0"},
                                {"iteration", "training iteration of that step"}};
    const auto more = importance_columns();
    columns.insert(columns.end(), more.begin(), more.end());
    return columns;
  }
  static std::vector<Column> columns(std::vector<Column> columns) {
    columns.push_back({"studied_steps", "captured steps that were looked at: all, or 16 evenly spaced ones"});
    for (const char* order : {"smallest", "largest"}) {
      columns.push_back(
          {fmt::format("lost_{}_10", order), fmt::format("share of the energy in the tenth of a gradient's packets "
                                                         "that have the {} norms; of random packets it is 0.1",
                                                         order)});
    }
    const auto more = importance_columns();
    columns.insert(columns.end(), more.begin(), more.end());
    return columns;
  }

  static void add_importance(std::vector<Cell>& row, const Importance& importance) {
    for (const double quantile : importance.quantiles) row.push_back(ratio_cell(quantile, importance.weight));
    for (const double above : importance.above) row.push_back(ratio_cell(above, importance.weight));
  }

  void add_rows(const TensorInfo* tensor, const LossSums& sums) override {
    auto row = leading_cells(tensor, "ok", "");
    append(row, static_cast<std::int64_t>(steps_.size()), ratio_cell(sums.lost[0][kTen], sums.energy),
           ratio_cell(sums.lost[2][kTen], sums.energy));
    add_importance(row, sums.all_importance());
    table_.add(std::move(row));
    const auto begin = long_cells(tensor);
    for (std::size_t i = 0; sums.energy > 0 && i < kLost.size(); ++i) {
      for (std::size_t o = 0; o < kDropOrders.size(); ++o) {
        auto cells = begin;
        append(cells, kLost[i], kDropOrders[o], sums.lost[o][i] / sums.energy);
        packets_.add(std::move(cells));
      }
    }
    for (const auto& [step, importance] : sums.importance) {
      auto cells = begin;
      const std::size_t position = scope().first_step + step;
      append(cells, static_cast<std::int64_t>(position), iteration_at(position));
      add_importance(cells, importance);
      importance_.add(std::move(cells));
    }
  }

  std::vector<std::size_t> steps_;  ///< those that are looked at
  Table &table_, &packets_, &importance_;
};

}  // namespace

std::unique_ptr<Analysis> make_losses(Scope scope) {
  return std::make_unique<LossAnalysis>(std::move(scope));
}

}  // namespace gradtool
