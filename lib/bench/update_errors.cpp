#include "lib/bench/update_errors.hpp"

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <limits>
#include <map>

#include "lib/core/parse.hpp"

namespace gradtool {
namespace {

constexpr std::size_t kBlock = 1024;

/// "adamw" of "AdamW:learning_rate=0.001,...".
std::string name_of_optimizer(std::string_view text) {
  std::string name{text.substr(0, text.find(':'))};
  std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return std::tolower(c); });
  return name;
}

/// Empty where a value is no number.
std::optional<std::map<std::string, double, std::less<>>> numbers_of(std::string_view text) {
  std::map<std::string, double, std::less<>> numbers;
  bool in_schedule = false;  // whose value has commas: "schedule=milestones:10,20:0.1"
  if (text.ends_with(',')) text.remove_suffix(1);
  for (const std::string_view one : split(text, ',')) {
    const std::size_t equal = one.find('=');
    if (equal == std::string_view::npos) {
      if (!in_schedule) return std::nullopt;
      continue;
    }
    in_schedule = one.substr(0, equal) == "schedule";
    if (const auto value = number_of<double>(one.substr(equal + 1)))
      numbers.emplace(one.substr(0, equal), *value);
    else if (!in_schedule)
      return std::nullopt;
  }
  return numbers;
}

/// In eight sums side by side, because one after the other each addition would wait for the one before.
struct Products {
  double xx = 0.0, xy = 0.0, yy = 0.0;
};
Products products(std::span<const float> x, std::span<const float> y) {
  constexpr std::size_t kLanes = 8;
  std::array<double, kLanes> xx{}, xy{}, yy{};
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double a = static_cast<double>(x[i]), b = static_cast<double>(y[i]);
    xx[i % kLanes] += a * a;
    xy[i % kLanes] += a * b;
    yy[i % kLanes] += b * b;
  }
  Products sum;
  for (std::size_t lane = 0; lane < kLanes; ++lane) {
    sum.xx += xx[lane];
    sum.xy += xy[lane];
    sum.yy += yy[lane];
  }
  return sum;
}

}  // namespace

std::optional<UpdateRule> UpdateRule::parse(std::string_view text) {
  const std::size_t colon = std::min(text.find(':'), text.size());
  const std::string name = name_of_optimizer(text);
  const auto numbers = numbers_of(text.substr(std::min(colon + 1, text.size())));
  if (!numbers) return std::nullopt;
  const auto number = [&](const char* key, double otherwise) {
    const auto found = numbers->find(key);
    return found == numbers->end() ? otherwise : found->second;
  };
  for (const char* key : {"momentum", "outer_momentum", "beta1", "beta2"}) {
    if (const double value = number(key, 0.0); !(value >= 0.0 && value < 1.0)) return std::nullopt;
  }
  if (const double epsilon = number("epsilon", 0.0); !(epsilon >= 0.0 && std::isfinite(epsilon))) return std::nullopt;
  UpdateRule rule;
  if (numbers->count("diloco") != 0) {
    rule.momentum = number("outer_momentum", 0.0);
    rule.nesterov = true;
    return rule;
  }
  rule.adam = name == "adam" || name == "adamw";
  if (rule.adam) {
    rule.beta1 = number("beta1", rule.beta1);
    rule.beta2 = number("beta2", rule.beta2);
    rule.epsilon = number("epsilon", rule.epsilon);
    return rule;
  }
  if (name != "sgd" || numbers->count("momentum") == 0) return std::nullopt;
  rule.momentum = number("momentum", 0.0);
  rule.nesterov = number("nesterov", 0.0) != 0.0;
  return rule;
}

bool scales_by_history(std::string_view optimizer) {
  const std::string name = name_of_optimizer(optimizer);
  return !name.empty() && name != "sgd";
}

UpdateRule UpdateRule::without_momentum() const {
  if (adam) return *this;
  return {};
}

double UpdateSums::nmse() const {
  if (std::isnan(error) || std::isnan(energy)) return std::numeric_limits<double>::quiet_NaN();
  if (energy > 0.0) return error / energy;
  return error > 0.0 ? std::numeric_limits<double>::infinity() : 0.0;
}

UpdateErrors::UpdateErrors(std::span<const Unit> units, const UpdateRule& exact, const UpdateRule& received)
    : units_{units}, states_(units.size()) {
  for (std::size_t u = 0; u < units.size(); ++u) {
    for (auto [moments, rule] : {std::pair{&states_[u].exact, exact}, std::pair{&states_[u].received, received}}) {
      moments->rule = rule;
      moments->first.resize(units[u].elements);
      moments->second.resize(rule.adam ? units[u].elements : 0);
      moments->sum.resize(units[u].elements);
    }
    states_[u].sums.resize(units[u].pieces.size());
  }
}

void UpdateErrors::Moments::reset() {
  for (auto* values : {&first, &second, &sum}) std::fill(values->begin(), values->end(), 0.0F);
}

void UpdateErrors::Moments::update(std::size_t at, std::span<const float> gradient, std::size_t step,
                                   std::span<float> to) {
  float* const m = &first[at];
  float* const s = &sum[at];
  if (step <= kSummedSteps) {
    for (std::size_t i = 0; i < gradient.size(); ++i) s[i] += gradient[i];
  }
  if (!rule.adam) {
    const auto momentum = static_cast<float>(rule.momentum);
    const float ahead = rule.nesterov ? momentum : 0.0F;
    for (std::size_t i = 0; i < gradient.size(); ++i) {
      m[i] = momentum * m[i] + gradient[i];
      to[i] = rule.nesterov ? gradient[i] + ahead * m[i] : m[i];
    }
    return;
  }
  float* const v = &second[at];
  const auto beta1 = static_cast<float>(rule.beta1), beta2 = static_cast<float>(rule.beta2);
  const auto epsilon = static_cast<float>(rule.epsilon);
  const auto count = static_cast<double>(step);
  const auto first_share = static_cast<float>(1.0 / (1.0 - std::pow(rule.beta1, count)));
  const auto second_share = static_cast<float>(1.0 / (1.0 - std::pow(rule.beta2, count)));
  for (std::size_t i = 0; i < gradient.size(); ++i) {
    m[i] = beta1 * m[i] + (1.0F - beta1) * gradient[i];
    v[i] = beta2 * v[i] + (1.0F - beta2) * gradient[i] * gradient[i];
    to[i] = m[i] * first_share / (std::sqrt(v[i] * second_share) + epsilon);
  }
}

void UpdateErrors::observe(std::size_t unit_index, std::span<const double> exact, std::span<const float> got) {
  OfUnit& state = states_[unit_index];
  ++state.steps;
  std::array<float, kBlock> narrowed, ours, theirs;
  for (std::size_t p = 0; p < state.sums.size(); ++p) {
    const Unit::Piece& piece = units_[unit_index].pieces[p];
    UpdateSums& sums = state.sums[p];
    for (std::size_t done = 0; done < piece.elements; done += kBlock) {
      const std::size_t first = piece.first + done;
      const std::size_t count = std::min(kBlock, piece.elements - done);
      std::transform(&exact[first], &exact[first] + count, narrowed.begin(),
                     [](double value) { return static_cast<float>(value); });
      const auto u = std::span{ours}.first(count), v = std::span{theirs}.first(count);
      state.exact.update(first, std::span{narrowed}.first(count), state.steps, u);
      state.received.update(first, got.subspan(first, count), state.steps, v);
      for (std::size_t i = 0; i < count; ++i) v[i] = u[i] - v[i];
      const Products both = products(u, v);
      sums.energy += both.xx;
      sums.error += both.yy;
    }
  }
}

double UpdateErrors::distance(const OfUnit& unit, const Unit::Piece& piece) {
  const auto x = std::span{unit.exact.sum}.subspan(piece.first, piece.elements);
  const auto y = std::span{unit.received.sum}.subspan(piece.first, piece.elements);
  const Products both = products(x, y);
  // A layer of which nothing arrives is as far as one at a right angle; one without a gradient is where it was.
  const double norms = std::sqrt(both.xx * both.yy);
  return norms > 0.0 ? 1.0 - both.xy / norms : both.xx == both.yy ? 0.0 : 1.0;
}

void UpdateErrors::finish(std::span<UpdateSums> sums) {
  for (std::size_t u = 0; u < states_.size(); ++u) {
    OfUnit& state = states_[u];
    for (std::size_t p = 0; p < state.sums.size(); ++p) {
      const Unit::Piece& piece = units_[u].pieces[p];
      UpdateSums& mine = state.sums[p];
      UpdateSums& all = sums[piece.tensor];
      all.error += mine.error;
      all.energy += mine.energy;
      all.distance = distance(state, piece);
      mine = {};
    }
    state.steps = 0;
    state.exact.reset();
    state.received.reset();
  }
}

}  // namespace gradtool
