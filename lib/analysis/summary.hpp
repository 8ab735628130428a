#pragma once

#include <string>
#include <vector>

#include "lib/report/table.hpp"

namespace gradtool {

/// One row for each tensor and the row `all`, with what matters most of every analysis that was run; the cells of the
/// others are empty. `tables`: what Analysis::tables() gave, in any order.
[[nodiscard]] Table summarise(const std::vector<Table>& tables);

/// For people: the largest tensors of a summary as a table, and what the numbers mean for compressibility. At most 22
/// lines of 100 columns.
[[nodiscard]] std::string describe(const Table& summary);

}  // namespace gradtool
