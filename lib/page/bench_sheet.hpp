#pragma once

#include <optional>
#include <string>
#include <vector>

#include "lib/page/bench_figures.hpp"
#include "lib/page/bench_model.hpp"

namespace gradtool {

/// A bench on its way to a page: what its charts share, and the figures that are made so far.
class BenchSheet {
 public:
  static constexpr const char* kOthers = "other codecs";
  static constexpr const char* kUndecided = "undecided";

  /// Refers to all of them.
  BenchSheet(const BenchSource& source, const FigureOptions& options, const std::string& suffix, CodecLooks& looks);

  const BenchSource& source;
  const FigureOptions& options;
  const BenchModel model;
  BenchFigures figures;

  /// The values of all specifications' blanks.
  [[nodiscard]] Blanks blanks() const;
  /// Adds a chart. `networks` are marked in it, where they are given.
  void add(const std::string& chart, Table table, const Blanks& filled, const nlohmann::ordered_json& networks = {});
  void lacks(const std::string& chart, const std::string& why);

  /// The name under which charts bring a codec out: its own, "uncompressed", or kOthers.
  [[nodiscard]] std::string shown_as(const std::string& codec) const;
  [[nodiscard]] static std::string place_name(const std::string& network, int ranks);
  /// The collective of the record's rows.
  [[nodiscard]] std::string_view collective() const;
  /// Places in the record of the measured rows over all tensors that have an error, one for each codec.
  [[nodiscard]] std::vector<std::size_t> measured_places() const;
  [[nodiscard]] Column time_column() const;
  /// A cell in microseconds, in the section's unit: as it stands there where that is microseconds.
  [[nodiscard]] Cell time_at(const Table& table, std::size_t row, const std::string& column) const;

 private:
  void choose_shown();

  const std::string& suffix_;
  CodecLooks& looks_;
  std::vector<std::string> shown_;  ///< codecs with a colour of their own
};

/// The cell, or an empty one where the table lacks the column, as those of older versions do.
[[nodiscard]] Cell cell_at(const Table& table, std::size_t row, const std::string& column);
/// The column of the error that a codec is judged by.
[[nodiscard]] const char* judged_column(const ResultRow& row);
/// The ends of the interval in which a row's time lies, in the unit; empty where it is not known.
struct TimeRange {
  TimeRange(const ResultRow& row, const TimeUnit& unit);
  Cell low, high;
};

/// The codec to take on links of every speed, and the time there.
void draw_speeds(BenchSheet& sheet);
/// Time against numbers of machines.
void draw_scaling(BenchSheet& sheet);
/// The model's forecasts beside the measurements of ranks on a network.
void draw_predicted(BenchSheet& sheet);
/// Errors against bytes and against time, and the phases of that time.
void draw_pareto(BenchSheet& sheet);
/// Errors of steps and of their sums.
void draw_errors(BenchSheet& sheet);
/// Errors of single tensors.
void draw_layers(BenchSheet& sheet);

}  // namespace gradtool
