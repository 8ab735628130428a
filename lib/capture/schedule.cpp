#include "lib/capture/schedule.hpp"

#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <numbers>
#include <string_view>

#include "lib/core/error.hpp"

namespace gradtool {
namespace {

template <class T>
bool parse_number(std::string_view text, T& value) {
  const auto [end, status] = std::from_chars(text.data(), text.data() + text.size(), value);
  return status == std::errc{} && end == text.data() + text.size();
}

}  // namespace

LearningRate::LearningRate(double base, const std::string& schedule, std::int64_t total) : base_{base}, total_{total} {
  const std::string_view text{schedule};
  if (text == "constant") return;
  if (text == "cosine") {
    kind_ = Kind::cosine;
    return;
  }
  constexpr std::string_view kStep = "step:";
  if (text.starts_with(kStep)) {
    const std::string_view rest = text.substr(kStep.size());
    const std::size_t colon = rest.find(':');
    if (colon != std::string_view::npos && parse_number(rest.substr(0, colon), period_) &&
        parse_number(rest.substr(colon + 1), factor_) && period_ >= 1 && factor_ > 0.0 && std::isfinite(factor_)) {
      kind_ = Kind::step;
      if (const double last = at(total - 1); !(last < kHighestRate)) {
        throw Error{Fault::usage, fmt::format("--lr-schedule '{}' makes the learning rate {} at iteration {}; it must "
                                              "stay below {}",
                                              schedule, last, total - 1, kHighestRate)};
      }
      return;
    }
  }
  throw Error{Fault::usage,
              fmt::format("--lr-schedule '{}' is none of constant, cosine and step:ITERATIONS:FACTOR, for "
                          "example step:1000:0.1",
                          schedule)};
}

double LearningRate::at(std::int64_t iteration) const {
  switch (kind_) {
    case Kind::step: {
      const std::int64_t drops = iteration / period_;
      return base_ * std::pow(factor_, static_cast<double>(drops));
    }
    case Kind::cosine:
      return base_ * 0.5 *
             (1.0 + std::cos(std::numbers::pi * static_cast<double>(iteration) / static_cast<double>(total_)));
    case Kind::constant:
      break;
  }
  return base_;
}

}  // namespace gradtool
