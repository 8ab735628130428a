#pragma once

#include <string>
#include <vector>

#include "lib/report/table.hpp"

namespace gradtool {

/// One row for each tensor and the row `all`, with the main columns of the analyses that were run. `tables` holds the
/// results of Analysis::tables(), in any order.
[[nodiscard]] Table summarise(const std::vector<Table>& tables);

/// A text for people: the largest tensors of a summary as a table, and what the numbers mean for compression. At most
/// 22 lines of 100 columns.
[[nodiscard]] std::string describe(const Table& summary);

}  // namespace gradtool
