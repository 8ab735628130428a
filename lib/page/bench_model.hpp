#pragma once

#include <optional>
#include <string>
#include <vector>

#include "lib/advice/advice.hpp"
#include "lib/bench/modelled.hpp"
#include "lib/page/bench_figures.hpp"
#include "lib/page/sources.hpp"
#include "lib/page/sweep.hpp"

namespace gradtool {

/// All that a page says of a bench that is modelled: its rows on the networks that were asked for and on links of every
/// speed, and the advice for each. Rows of the record stay as they are written; others come from the bench's own model.
class BenchModel {
 public:
  /// Refers to `options`. Throws Fault::data where the trials are of another model than the record.
  BenchModel(const BenchSource& source, const FigureOptions& options);

  BenchRecord record;  ///< without the rows that only crowd charts
  std::vector<ResultRow> measured;
  bool synthetic = false;  ///< gradients that nobody captured: how fast codecs are can be seen in them, errors cannot
  std::vector<Network> networks;
  std::vector<int> nodes;  ///< numbers of machines
  int usual_nodes = 0;     ///< of the numbers of machines the one nearest to 32
  ComputeTime compute;
  TimeUnit unit;
  std::vector<ResultRow> modelled;          ///< of the networks
  Table modelled_cells{"bench", {}};        ///< the same, as they are written
  std::vector<NetworkAdvice> advice;        ///< on those
  std::vector<NetworkAdvice> swept_advice;  ///< on links of every speed, slowest first
  std::string latency_words;                ///< how those links' latencies follow from the networks'

  [[nodiscard]] std::string name(const ResultRow& row) const;
  /// Whether a row has what the model needs.
  [[nodiscard]] bool can_model() const;
  /// Whether there is anything beside the baselines that was measured.
  [[nodiscard]] bool has_codecs() const;
  /// Whether the modelled rows are the record's own.
  [[nodiscard]] bool as_recorded() const;
  /// The rows that networks and numbers of machines make of the measured ones, by the bench's own model.
  [[nodiscard]] std::vector<ResultRow> modelled_for(const std::vector<Network>& on,
                                                    const std::vector<int>& machines) const;

 private:
  void choose_networks();
  void leave_out_slower_ways();
  void model_as_asked();
  void add_what_is_not_written();
  void read_tensor_bytes();
  void choose_unit();
  void sweep();
  [[nodiscard]] std::vector<Network> links_of_every_speed() const;

  const FigureOptions& options_;
  bool several_cuts_;
  bool record_has_models_ = false;
  BackwardPass backward_;
  Overlap overlap_ = Overlap::bucket;
  std::optional<Network> library_;  ///< a recorded modelled row's: the library that its bench was told
  std::vector<double> tensor_bytes_;
  std::vector<ResultRow> swept_;  ///< of links of every speed
};

}  // namespace gradtool
