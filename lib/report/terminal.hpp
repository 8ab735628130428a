#pragma once

#include <string>
#include <vector>

namespace gradtool {

/// A table for people: columns padded to their widest cell, numbers (as `align_right` says) on the right.
/// Cells longer than `max_cell` end in "...". One line per row, the header first, two spaces between columns.
[[nodiscard]] std::string format_rows(const std::vector<std::string>& header,
                                      const std::vector<std::vector<std::string>>& rows,
                                      const std::vector<bool>& align_right, std::size_t max_cell = 40);

}  // namespace gradtool
