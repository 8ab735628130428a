#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>

#include "lib/codecs/index_code.hpp"
#include "lib/codecs/params.hpp"

namespace gradtool {

/// What the dct codec's parameters come to; shared by its CPU and its CUDA side.
struct DctOptions {
  explicit DctOptions(const Params& params)
      : ratio{params.real("ratio")}, refresh{params.integer("refresh")}, coding{params.word("index")} {}

  /// k: how many elements set the threshold.
  [[nodiscard]] std::size_t kept(std::size_t n) const {
    const auto wanted = static_cast<std::size_t>(std::llround(ratio * static_cast<double>(n)));
    return std::clamp<std::size_t>(wanted, std::min<std::size_t>(n, 1), n);
  }
  /// What the reader of a row must know after so many steps.
  [[nodiscard]] std::string note(std::int64_t steps) const {
    if (steps < 2 || steps > refresh) return "";
    return fmt::format("the threshold is that of the first of {} steps", steps);
  }

  double ratio;
  std::int64_t refresh;  ///< steps that a threshold serves
  IndexCoding coding;
};

}  // namespace gradtool
