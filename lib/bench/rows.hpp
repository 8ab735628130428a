#pragma once

#include <string>

#include "lib/bench/bench.hpp"
#include "lib/bench/quality.hpp"

namespace gradtool {

/// Fills one row of the bench table by column name; what is never set stays empty.
class RowBuilder {
 public:
  explicit RowBuilder(const Table& table) : table_{table}, cells_(table.columns().size()) {}
  RowBuilder& set(std::string_view column, Cell value) {
    cells_[table_.index_of(column)] = std::move(value);
    return *this;
  }
  [[nodiscard]] std::vector<Cell> take() { return std::move(cells_); }

 private:
  const Table& table_;
  std::vector<Cell> cells_;
};

/// What is the same in all rows of a run.
struct RunFacts {
  const BenchOptions* options = nullptr;
  const GradientReader* reader = nullptr;
  std::string run_id;
  int ranks = 1;
  int threads = 1;
  int pipeline = 1;
  std::uint64_t elements = 0;  ///< of the tensors that are replayed
  double copy_rate = 0.0;
  std::string remark;  ///< for the `all` rows: tensors left out
};

/// Independent columns of a row of `spec`; `tensor` is a name or "all".
[[nodiscard]] RowBuilder start_row(const Table& table, const RunFacts& facts, const CodecSpec& spec, Timing timing,
                                   const std::string& tensor, std::uint64_t elements);
void set_errors(RowBuilder& row, const ErrorSums& sums, double cumulative_error, double cumulative_energy);
void set_bytes(RowBuilder& row, const RunFacts& facts, const ReplayResult& result);
void set_times(RowBuilder& row, const RunFacts& facts, const ReplayResult& bytes,
               const std::vector<PhaseTimes>& samples, const CodecSpec& spec, Timing timing);
void set_quality(RowBuilder& row, const CodecQuality& quality);

}  // namespace gradtool
