#include "lib/probe/fit.hpp"

#include <algorithm>
#include <cmath>
#include <random>

#include "lib/core/error.hpp"

namespace gradtool {
namespace {

/// Sorts the values in part.
double lower_quartile(std::vector<double>& values) {
  const auto quarter = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 4);
  std::nth_element(values.begin(), quarter, values.end());
  return *quarter;
}

/// The link for one time of each size.
class Problem {
 public:
  Problem(Pattern pattern, std::span<const SizeTimes> sizes, int ranks)
      : pattern_{pattern}, sizes_{sizes}, ranks_{ranks} {}

  [[nodiscard]] Link solve(std::span<const double> seconds) const {
    // Rough values to begin with: what the ends say. The cost of a collective may have several branches (halved or
    // whole), and how much a size counts depends on alpha, so that it takes a few turns.
    Link link{.alpha = seconds.front() / 2.0, .beta = sizes_.back().bytes / seconds.back()};
    constexpr int kTurns = 30;
    for (int turn = 0; turn < kTurns; ++turn) {
      const Link next = step(seconds, link);
      const bool same =
          std::abs(next.alpha - link.alpha) <= 1e-9 * link.alpha && std::abs(next.beta - link.beta) <= 1e-9 * link.beta;
      link = next;
      if (same) break;
    }
    return link;
  }

  [[nodiscard]] double modelled(std::size_t size, const Link& link) const {
    return modelled_seconds(pattern_, sizes_[size].bytes, ranks_, link);
  }

 private:
  /// t = messages alpha + bytes / beta near a link.
  struct Cost {
    double messages = 0.0, bytes = 0.0;
  };
  [[nodiscard]] Cost cost(std::size_t size, const Link& link) const {
    const double whole = modelled(size, link);
    const double more = 1e-4 * std::max(link.alpha, 1e-9);
    const double messages = (modelled(size, {link.alpha + more, link.beta}) - whole) / more;
    return {messages, (whole - messages * link.alpha) * link.beta};
  }

  [[nodiscard]] Link step(std::span<const double> seconds, const Link& link) const {
    // Two equations, messages alpha + bytes / beta = seconds, each a weighted sum over sizes of relative errors.
    double latency_m = 0.0, latency_b = 0.0, latency_1 = 0.0, transfer_m = 0.0, transfer_b = 0.0, transfer_1 = 0.0;
    for (std::size_t i = 0; i < sizes_.size(); ++i) {
      const Cost of = cost(i, link);
      const double latency = of.messages * link.alpha, transfer = of.bytes / link.beta;
      const double latency_share = latency / (latency + transfer), size_share = sizes_[i].bytes / sizes_.back().bytes;
      const double m = of.messages / seconds[i], b = of.bytes / seconds[i];
      const double counts_alpha = latency_share * latency_share * m, counts_beta = size_share * size_share * b;
      latency_m += counts_alpha * m, latency_b += counts_alpha * b, latency_1 += counts_alpha;
      transfer_m += counts_beta * m, transfer_b += counts_beta * b, transfer_1 += counts_beta;
    }
    const double determinant = latency_m * transfer_b - latency_b * transfer_m;
    double alpha = determinant > 0.0 ? (latency_1 * transfer_b - latency_b * transfer_1) / determinant : 0.0;
    double inverse = determinant > 0.0 ? (latency_m * transfer_1 - latency_1 * transfer_m) / determinant : 0.0;
    if (!(alpha > 0.0)) alpha = 0.0, inverse = transfer_1 / transfer_b;
    if (!(inverse > 0.0)) inverse = seconds.back() / cost(sizes_.size() - 1, link).bytes;
    return {.alpha = alpha, .beta = 1.0 / inverse};
  }

  Pattern pattern_;
  std::span<const SizeTimes> sizes_;
  int ranks_;
};

/// The samples of each round.
std::vector<std::span<const double>> rounds_of(const SizeTimes& size) {
  std::vector<std::span<const double>> rounds;
  for (std::size_t first = 0; const std::size_t count : size.rounds) {
    if (count > 0) rounds.push_back(std::span{size.seconds}.subspan(first, count));
    first += count;
  }
  return rounds;
}

}  // namespace

bool LinkFit::fits() const {
  return !off.empty() && std::abs(off[worst]) <= kMostOff;
}

LinkFit fit_link(Pattern pattern, std::span<const SizeTimes> sizes, int ranks) {
  expects(sizes.size() >= 2, "a link is fitted to two sizes at least");
  const Problem problem{pattern, sizes, ranks};
  std::vector<double> times, drawn;
  std::vector<std::vector<std::span<const double>>> rounds;
  std::size_t most_rounds = 0;
  for (const SizeTimes& size : sizes) {
    rounds.push_back(rounds_of(size));
    most_rounds = std::max(most_rounds, rounds.back().size());
    expects(!rounds.back().empty(), "every size that a link is fitted to has a sample");
    drawn = size.seconds;
    times.push_back(lower_quartile(drawn));
  }
  LinkFit fit{.link = problem.solve(times), .alpha = std::nullopt, .beta = std::nullopt, .off = {}};
  double squares = 0.0;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    fit.off.push_back(problem.modelled(i, fit.link) / times[i] - 1.0);
    squares += fit.off[i] * fit.off[i];
    if (std::abs(fit.off[i]) > std::abs(fit.off[fit.worst])) fit.worst = i;
  }
  fit.misfit = std::sqrt(squares / static_cast<double>(sizes.size()));

  constexpr std::size_t kFewest = 5;  // as for median_interval
  constexpr std::size_t kResamples = 400;
  if (std::any_of(sizes.begin(), sizes.end(), [](const SizeTimes& size) { return size.seconds.size() < kFewest; }))
    return fit;
  std::mt19937_64 random{1};
  const auto below = [&random](std::size_t n) { return static_cast<std::size_t>(random() % n); };
  std::vector<double> alphas, betas;
  for (std::size_t resample = 0; resample < kResamples; ++resample) {
    std::vector<std::size_t> chosen(most_rounds);
    for (auto& round : chosen) round = below(most_rounds);
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      drawn.clear();
      for (const std::size_t number : chosen) {
        const auto round = rounds[i][number % rounds[i].size()];
        for (std::size_t k = 0; k < round.size(); ++k) drawn.push_back(round[below(round.size())]);
      }
      times[i] = lower_quartile(drawn);
    }
    const Link link = problem.solve(times);
    alphas.push_back(link.alpha);
    betas.push_back(link.beta);
  }
  const auto interval = [](std::vector<double>& values, double value) {
    std::sort(values.begin(), values.end());
    return Interval{.low = std::min(value, values[kResamples / 40]),
                    .high = std::max(value, values[kResamples - 1 - kResamples / 40])};
  };
  fit.alpha = interval(alphas, fit.link.alpha);
  fit.beta = interval(betas, fit.link.beta);
  return fit;
}

}  // namespace gradtool
