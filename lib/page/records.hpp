#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lib/bench/result.hpp"
#include "lib/report/table.hpp"

namespace gradtool {

/// A table of a record, read back: an array of objects, or CSV. Cells hold what the writer had, so that they print as
/// they do in its file. Throws Fault::data, naming `where`, for what is not a table.
[[nodiscard]] Table table_from_json(const std::string& name, const nlohmann::ordered_json& rows,
                                    const std::string& where);
[[nodiscard]] Table table_from_csv(const std::string& name, std::string_view text, const std::string& where);

[[nodiscard]] bool has_column(const Table& table, std::string_view column);
/// A cell as a number; empty where it is empty, is text, or the table has no such column.
[[nodiscard]] std::optional<double> number_at(const Table& table, std::size_t row, std::string_view column);
/// A cell as text; empty where the table has no such column.
[[nodiscard]] std::string text_at(const Table& table, std::size_t row, std::string_view column);
/// The columns of that name, in that order, with all rows that `keep` names. Columns that the table lacks are empty.
[[nodiscard]] Table selected(const Table& table, const std::vector<std::string>& columns,
                             const std::vector<std::size_t>& rows);

/// A run of `gradtool bench`, read back from its JSON record or from its CSV alone.
struct BenchRecord {
  Table table{"bench", {}};        ///< all rows as they were written
  std::vector<ResultRow> rows;     ///< the same rows over all tensors, as the bench had them, as far as the record says
  std::vector<std::size_t> place;  ///< of each of `rows` in `table`
  std::vector<std::string> unknown_codecs;  ///< of rows that this build cannot model, because it lacks the codec
};
/// Throws Fault::data where a row is of a version of the schema that this gradtool does not read, or of none.
void expect_known_schema(const Table& table, const std::string& where);

/// `units_and_steps`: the JSON rows, which have more than the table; null where only the table is there. Throws
/// Fault::data for a schema of a later version and for rows that no bench writes.
[[nodiscard]] BenchRecord read_bench(Table table, const nlohmann::ordered_json* json_rows, const std::string& where);

}  // namespace gradtool
