#include "lib/capture/schedule.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <string_view>

#include "lib/core/parse.hpp"
#include "lib/core/throw_error.hpp"

namespace gradtool {
namespace {

/// Numbers of at least 1, each above the one before, separated by commas.
bool parse_iterations(std::string_view text, std::vector<std::int64_t>& iterations) {
  for (const std::string_view one : split(text, ',')) {
    const std::int64_t value = number_of<std::int64_t>(one).value_or(0);
    if (value < 1 || (!iterations.empty() && value <= iterations.back())) return false;
    iterations.push_back(value);
  }
  return !iterations.empty();
}

/// Takes `prefix` from the front of `text`.
bool take(std::string_view& text, std::string_view prefix) {
  if (!text.starts_with(prefix)) return false;
  text.remove_prefix(prefix.size());
  return true;
}

}  // namespace

bool LearningRate::parse(std::string_view text) {
  if (text == "constant") return true;
  if (text == "cosine") {
    kind_ = Kind::cosine;
    return true;
  }
  kind_ = text.starts_with("step:") ? Kind::step : Kind::milestones;
  if (!take(text, "step:") && !take(text, "milestones:")) return false;
  const std::size_t colon = text.find(':');
  if (colon == std::string_view::npos || !parse_iterations(text.substr(0, colon), iterations_)) return false;
  factor_ = number_of<double>(text.substr(colon + 1)).value_or(0.0);
  return (kind_ == Kind::milestones || iterations_.size() == 1) && factor_ > 0.0 && std::isfinite(factor_);
}

LearningRate::LearningRate(double base, const std::string& schedule, std::int64_t total) : base_{base}, total_{total} {
  std::string_view text{schedule};
  bool valid = true;
  if (take(text, "warmup:")) {
    const std::size_t colon = std::min(text.find(':'), text.size());
    warmup_ = number_of<std::int64_t>(text.substr(0, colon)).value_or(0);
    valid = warmup_ >= 1;
    text.remove_prefix(std::min(colon + 1, text.size()));
  }
  if (!valid || !parse(text)) {
    throw_error(Fault::usage,
                "--lr-schedule '{}' is none of constant, cosine, step:ITERATIONS:FACTOR and "
                "milestones:ITERATION,...:FACTOR, with or without warmup:ITERATIONS: before "
                "it, for example step:1000:0.1 or warmup:100:milestones:8000,12000:0.1",
                schedule);
  }
  // A factor above 1 makes the last rate the highest.
  if (const double last = at(total - 1); !(last < kHighestRate)) {
    throw_error(Fault::usage, "--lr-schedule '{}' makes the learning rate {} at iteration {}; it must stay below {}",
                schedule, last, total - 1, kHighestRate);
  }
}

double LearningRate::at(std::int64_t iteration) const {
  double rate = base_;
  if (iteration < warmup_) rate *= static_cast<double>(iteration + 1) / static_cast<double>(warmup_);
  switch (kind_) {
    case Kind::step: {
      const std::int64_t drops = iteration / iterations_.front();
      return rate * std::pow(factor_, static_cast<double>(drops));
    }
    case Kind::milestones: {
      const auto drops = std::upper_bound(iterations_.begin(), iterations_.end(), iteration) - iterations_.begin();
      return rate * std::pow(factor_, static_cast<double>(drops));
    }
    case Kind::cosine: {
      if (iteration < warmup_) return rate;
      const double done = static_cast<double>(iteration - warmup_) / static_cast<double>(total_ - warmup_);
      return rate * 0.5 * (1.0 + std::cos(std::numbers::pi * done));
    }
    case Kind::constant:
      break;
  }
  return rate;
}

}  // namespace gradtool
