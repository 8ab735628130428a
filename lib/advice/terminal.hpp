#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lib/advice/acceptance.hpp"
#include "lib/bench/result.hpp"
#include "lib/report/color.hpp"

namespace gradtool {

/// The positions of all rows but those of ways that are the fastest of their codec's on none of the modelled networks
/// for none of the numbers of ranks: for tables and charts, which they would only crowd. A way that `acceptance` allows
/// counts as faster than one that it does not, and a faster one that needs a trial, or errs too much, is kept beside
/// it.
[[nodiscard]] std::vector<std::size_t> rows_of_best_ways(std::span<const ResultRow> rows,
                                                         const std::optional<Acceptance>& acceptance = {});

/// For people: one line for each codec and granularity. Sorted by modelled time on the first network and number of
/// ranks, else by break-even. Rows whose method was not reached stand apart, below. With `acceptance`, the codec that
/// advise() takes on that network is marked.
[[nodiscard]] std::string terminal_table(std::span<const ResultRow> rows, Style style = Style::plain,
                                         const std::optional<Acceptance>& acceptance = {});

/// For people, of synthetic gradients: sizes below each other as nccl-tests has them, at each size the fastest first.
[[nodiscard]] std::string sizes_table(std::span<const ResultRow> rows, Style style = Style::plain);

/// For people: how much faster than uncompressed each codec is, for each network a table with a column for each number
/// of ranks; where iterations were modelled also their scaling efficiency. Empty when there are no modelled rows.
[[nodiscard]] std::string modelled_tables(std::span<const ResultRow> rows, Style style = Style::plain);

/// The text of --advise, at most 80 characters wide but for the commands.
struct AdviceText {
  std::string answer;   ///< what to do and what it gains, for each network; stands before the tables
  std::string reasons;  ///< what runs up, why others were not taken, and what the answer rests on; stands behind them
};
struct BenchOptions;
/// The options that the rows were made with, so that the answer can name the command that measures it again.
struct MadeWith {
  const BenchOptions* options = nullptr;  ///< null: no command is named
  std::optional<double> max_nmse = {};    ///< where it was given
};
/// For people: the advice of advice_of(). Neighbouring numbers of ranks with the same answer share it. Empty without
/// modelled rows.
[[nodiscard]] AdviceText advise(std::span<const ResultRow> rows, const Acceptance& acceptance,
                                Style style = Style::plain, const MadeWith& made_with = {});

}  // namespace gradtool
