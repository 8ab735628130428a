#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <memory>
#include <vector>

#include "lib/analysis/analysis.hpp"
#include "lib/analysis/variance.hpp"

// How certain elements are: whether workers agree on signs, which elements stand out of their noise at once
// (variance-based compression, Tsuzuku et al. 2018), and how long the others wait until their sums do.

namespace gradtool {
namespace {

constexpr std::array<double, 8> kAlphaCurve{0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0};
/// Alphas for which waiting is simulated; they are few because each takes memory for every element.
constexpr std::array<double, 3> kWaitAlphas{1.0, 1.5, 2.0};
constexpr double kZeta = 0.999;  ///< decay of the variance of an element that waits, as in the paper

/// Counts of one alpha.
struct Waiting {
  double sends = 0, waited = 0;    ///< elements sent, over steps; steps that they had waited for
  double never = 0, elements = 0;  ///< elements that were never sent, of how many
  Waiting& operator+=(const Waiting& other) {
    sends += other.sends, waited += other.waited, never += other.never, elements += other.elements;
    return *this;
  }
};

struct CertaintySums {
  double signed_elements = 0;          ///< elements with a sign in some worker, over steps
  double unanimous = 0, majority = 0;  ///< all workers have the same sign; sum of |positive - negative| / W
  double tested = 0;                   ///< elements with a mean and a variance, over steps
  std::array<double, kAlphaCurve.size()> passed{};
  std::array<Waiting, kWaitAlphas.size()> waiting{};

  CertaintySums& operator+=(const CertaintySums& other) {
    signed_elements += other.signed_elements, unanimous += other.unanimous, majority += other.majority;
    tested += other.tested;
    for (std::size_t i = 0; i < passed.size(); ++i) passed[i] += other.passed[i];
    for (std::size_t i = 0; i < waiting.size(); ++i) waiting[i] += other.waiting[i];
    return *this;
  }
};

/// E|positive - negative| / W of W random signs.
double chance_majority(std::size_t workers) {
  const auto w = static_cast<double>(workers);
  double sum = 0;
  for (std::size_t k = 0; k <= workers; ++k) {
    const auto positive = static_cast<double>(k);
    const double log_share =
        std::lgamma(w + 1) - std::lgamma(positive + 1) - std::lgamma(w - positive + 1) - w * std::log(2.0);
    sum += std::exp(log_share) * std::fabs(2 * positive - w) / w;
  }
  return sum;
}

class CertaintyAccumulator final : public Summing<CertaintySums> {
 public:
  CertaintyAccumulator(const Scope& scope, const Part& part)
      : source_{source_of(scope, scope.tensors.at(part.tensor))},
        workers_{scope.workers},
        count_{part.count},
        positive_(part.count),
        negative_(part.count) {
    const std::size_t streams = source_ == VarianceSource::second_moment ? workers_ : 1;
    if (source_ != VarianceSource::none) waits_.resize(streams * kWaitAlphas.size(), std::vector<Wait>(part.count));
    if (source_ == VarianceSource::workers) sum_.resize(part.count), squares_.resize(part.count);
  }

  void observe(const Slice& slice) override {
    if (!check_finite(slice.gradient)) return;
    const auto values = slice.gradient;
    if (slice.worker == 0) {
      std::fill(positive_.begin(), positive_.end(), 0U), std::fill(negative_.begin(), negative_.end(), 0U);
    }
    for (std::size_t i = 0; i < values.size(); ++i) {
      positive_[i] += values[i] > 0 ? 1U : 0U;
      negative_[i] += values[i] < 0 ? 1U : 0U;
    }
    if (source_ == VarianceSource::second_moment) {
      for (std::size_t i = 0; i < values.size(); ++i) {
        const double moment = static_cast<double>(slice.second_moment[i]);
        // The samples of VGC: G, and v, the sum over micro-batches of their squared shares of G.
        if (std::isfinite(moment)) test(slice.worker, i, static_cast<double>(values[i]), moment);
      }
    } else if (source_ == VarianceSource::workers) {
      add_worker(slice);
    }
    if (slice.worker + 1 == workers_) add_signs();
  }

  void close() override {
    for (std::size_t w = 0; w < waits_.size(); ++w) {
      Waiting& sums = sums_.waiting[w % kWaitAlphas.size()];
      for (const Wait& wait : waits_[w]) sums.never += wait.sent ? 0 : 1;
      sums.elements += static_cast<double>(waits_[w].size());
    }
    waits_ = {}, positive_ = {}, negative_ = {}, sum_ = {}, squares_ = {};
  }

 private:
  /// An element that waits: the sums of its gradients and of their variances since it was sent last.
  struct Wait {
    double sum = 0, variance = 0;
    std::uint32_t steps = 0;
    bool sent = false;
  };

  /// m^2 > alpha s^2 / W of the mean m and the variance s^2 of the W workers is S^2 > alpha V of the sums S of their
  /// gradients and Q of the squares, V = (W Q - S^2) / (W - 1). Where one worker alone is not 0, which is common, both
  /// sides are exact, so that a tie is a tie.
  void add_worker(const Slice& slice) {
    for (std::size_t i = 0; i < count_; ++i) {
      const double value = static_cast<double>(slice.gradient[i]);
      sum_[i] = slice.worker == 0 ? value : sum_[i] + value;
      squares_[i] = slice.worker == 0 ? value * value : squares_[i] + value * value;
    }
    if (slice.worker + 1 < workers_) return;
    const auto w = static_cast<double>(workers_);
    for (std::size_t i = 0; i < count_; ++i)
      test(0, i, sum_[i], std::max(0.0, (w * squares_[i] - sum_[i] * sum_[i]) / (w - 1)));
  }

  void test(std::size_t stream, std::size_t i, double gradient, double variance) {
    ++sums_.tested;
    for (std::size_t a = 0; a < kAlphaCurve.size(); ++a)
      sums_.passed[a] += gradient * gradient > kAlphaCurve[a] * variance ? 1 : 0;
    for (std::size_t a = 0; a < kWaitAlphas.size(); ++a) {
      Wait& wait = waits_[stream * kWaitAlphas.size() + a][i];
      wait.sum += gradient;
      wait.variance += variance;
      ++wait.steps;
      if (wait.sum * wait.sum > kWaitAlphas[a] * wait.variance) {
        ++sums_.waiting[a].sends;
        sums_.waiting[a].waited += wait.steps;
        wait = {.sent = true};
      } else {
        wait.variance *= kZeta;
      }
    }
  }

  void add_signs() {
    for (std::size_t i = 0; i < count_; ++i) {
      const std::uint32_t positive = positive_[i], negative = negative_[i];
      if (positive + negative == 0) continue;
      ++sums_.signed_elements;
      sums_.unanimous += positive == workers_ || negative == workers_ ? 1 : 0;
      const std::uint32_t more = std::max(positive, negative) - std::min(positive, negative);
      sums_.majority += static_cast<double>(more) / static_cast<double>(workers_);
    }
  }

  VarianceSource source_;
  std::size_t workers_, count_;
  std::vector<std::uint32_t> positive_, negative_;  ///< workers with that sign, of each element
  std::vector<double> sum_, squares_;               ///< of the gradients, and of their squares, over the workers so far
  std::vector<std::vector<Wait>> waits_;            ///< [stream][alpha]
};

class CertaintyAnalysis final : public SummingAnalysis<CertaintySums> {
 public:
  explicit CertaintyAnalysis(Scope studied)
      : SummingAnalysis{std::move(studied), Unit::elements},
        table_{make_table("certainty", columns(leading_columns()))},
        alphas_{make_long_table(
            "unambiguous",
            {{"alpha", "threshold of variance-based compression"},
             {"pass_share", "share of the elements with squared gradient above alpha times its variance, in one step"},
             {"sent_share",
              "the same of elements whose gradients and variances are summed until they pass, as the method "
              "does (zeta = 0.999): the share that is sent in a step; empty where it was not simulated"},
             {"wait_steps", "captured steps for which an element that is sent was summed, mean"},
             {"never_share", "share of the elements that were not sent in any of the steps"}})} {}

  [[nodiscard]] std::size_t bytes_per_element() const override {
    // Each worker keeps its own waiting elements if there are second moments.
    const bool moments = scope().micro_batches >= 2;
    return 2 * sizeof(std::uint32_t) + 2 * sizeof(double) + (moments ? scope().workers : 1) * kWaitAlphas.size() * 24;
  }
  [[nodiscard]] bool needs_second_moment(std::size_t tensor) const override {
    return source_of(scope(), scope().tensors.at(tensor)) == VarianceSource::second_moment;
  }
  [[nodiscard]] std::unique_ptr<Accumulator> start(const Part& part) override {
    return std::make_unique<CertaintyAccumulator>(scope(), part);
  }

 private:
  static std::vector<Column> columns(std::vector<Column> columns) {
    columns.insert(columns.end(),
                   {{"sign_unanimous_share",
                     "share of the elements whose sign all workers have alike, of those that are not 0 in every "
                     "worker; empty with one worker"},
                    {"sign_majority", "mean over the same elements of |workers with + less workers with -| / W"},
                    {"chance_unanimous_share", "sign_unanimous_share of random signs: 2 / 2^W"},
                    {"chance_majority", "sign_majority of random signs"},
                    {"sent_share_1",
                     "share of the elements that variance-based compression at alpha = 1 sends in a step "
                     "(unambiguous.csv); empty without second moments and with one worker"},
                    {"wait_steps_1", "captured steps that they were summed for, mean"}});
    return columns;
  }

  void add_rows(const TensorInfo* tensor, const CertaintySums& sums) override {
    auto row = leading_cells(tensor, "ok", "");
    const auto workers = static_cast<double>(scope().workers);
    const bool several = scope().workers >= 2;
    append(row, several ? ratio_cell(sums.unanimous, sums.signed_elements) : Cell{},
           several ? ratio_cell(sums.majority, sums.signed_elements) : Cell{},
           several ? Cell{std::exp2(1 - workers)} : Cell{}, several ? Cell{chance_majority(scope().workers)} : Cell{},
           sent_share(sums, 0), ratio_cell(sums.waiting[0].waited, sums.waiting[0].sends));
    table_.add(std::move(row));
    for (std::size_t a = 0; sums.tested > 0 && a < kAlphaCurve.size(); ++a) {
      auto cells = long_cells(tensor);
      append(cells, kAlphaCurve[a], ratio_cell(sums.passed[a], sums.tested));
      const auto found = std::find(kWaitAlphas.begin(), kWaitAlphas.end(), kAlphaCurve[a]);
      if (found == kWaitAlphas.end()) {
        cells.resize(alphas_.columns().size());
      } else {
        const auto at = static_cast<std::size_t>(found - kWaitAlphas.begin());
        const Waiting& waiting = sums.waiting[at];
        append(cells, sent_share(sums, at), ratio_cell(waiting.waited, waiting.sends),
               ratio_cell(waiting.never, waiting.elements));
      }
      alphas_.add(std::move(cells));
    }
  }
  static Cell sent_share(const CertaintySums& sums, std::size_t alpha) {
    return ratio_cell(sums.waiting[alpha].sends, sums.tested);
  }

  Table &table_, &alphas_;
};

}  // namespace

std::unique_ptr<Analysis> make_certainty(Scope scope) {
  return std::make_unique<CertaintyAnalysis>(std::move(scope));
}

}  // namespace gradtool
