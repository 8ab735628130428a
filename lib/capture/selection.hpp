#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "lib/io/gradient_file.hpp"

namespace gradtool {

/// The tensors that are captured, and where each lies in the flat vector of all parameters.
struct Selection {
  struct Range {
    std::size_t first, count;
  };
  std::vector<TensorInfo> tensors;  ///< in forward order
  std::vector<Range> ranges;        ///< one for each tensor
  std::size_t elements = 0;

  /// Copies the selected elements of `flat` to the front of `out`; returns what of `out` lies behind them.
  [[nodiscard]] std::span<float> gather(std::span<const float> flat, std::span<float> out) const;
};

/// The tensors whose name `layers` (a regular expression, found anywhere in the name; empty: all) matches.
/// Throws Fault::usage, naming the first and last names there are, when that is none.
[[nodiscard]] Selection select_tensors(const std::vector<TensorInfo>& all, const std::string& layers);

}  // namespace gradtool
