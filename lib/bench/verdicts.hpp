#pragma once

#include "lib/report/table.hpp"

namespace gradtool {

/// What a row's codec is judged by: cumulative_nmse when it delays what it sends (error feedback, or a memory of its
/// own), for step by step that looks unfairly bad; else nmse. Infinite where the row has none.
[[nodiscard]] double judged_error(const Table& table, std::size_t row);

/// What a row is compared by, in microseconds: its iteration where that was modelled, else the step's total. Infinite
/// where it has neither.
[[nodiscard]] double judged_time(const Table& table, std::size_t row);

/// Columns that compare rows: speed-up, headroom, break-even, Pareto front, and for iterations efficiency and speed-up.
/// Compared are rows that cover all tensors and are ok, with the same source of time, timing, network and ranks. Needs
/// the rows of none and noop.
void set_verdicts(Table& table);

}  // namespace gradtool
