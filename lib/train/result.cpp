#include "lib/train/result.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <nlohmann/json.hpp>

#include "lib/comm/launch.hpp"
#include "lib/core/text.hpp"
#include "lib/report/json.hpp"

namespace gradtool {
namespace {

Cell cell_of(std::optional<double> value) {
  return value ? Cell{*value} : Cell{};
}

std::string text_of(const CodecSpec& spec) {
  return spec.name() + (spec.given.empty() ? "" : ":" + spec.given);
}

/// The parameters in the form that bench prints.
std::string params_of(const CodecSpec& spec) {
  const std::string params = spec.params_text();
  return params.empty() ? "default" : params;
}

/// The judged runs of one codec over the seeds.
class CodecRuns {
 public:
  CodecRuns(const TrainOptions& options, const TrainReport& report, std::size_t codec) {
    for (const TrainRun& run : report.runs) {
      if (run.codec == codec && is_judged(options, report, run)) runs_.push_back(&run);
    }
  }

  [[nodiscard]] std::size_t count(TrainRun::Status status) const {
    return static_cast<std::size_t>(
        std::count_if(runs_.begin(), runs_.end(), [status](const TrainRun* run) { return run->status == status; }));
  }
  [[nodiscard]] std::vector<std::int64_t> seeds_with(TrainRun::Status status) const {
    std::vector<std::int64_t> seeds;
    for (const TrainRun* run : runs_) {
      if (run->status == status) seeds.push_back(run->seed);
    }
    return seeds;
  }
  using Value = std::function<std::optional<double>(const TrainRun&)>;
  /// Mean over the runs that have finished and have the value.
  [[nodiscard]] std::optional<MeanOverSeeds> mean(const Value& value) const {
    std::vector<double> values;
    for (const TrainRun* run : runs_) {
      if (run->status != TrainRun::Status::finished) continue;
      if (const auto one = value(*run)) values.push_back(*one);
    }
    return mean_over_seeds(values);
  }
  /// Mean of the differences to the run of `others` with the same seed.
  [[nodiscard]] std::optional<MeanOverSeeds> mean_difference(const CodecRuns& others, const Value& value) const {
    std::vector<double> values;
    for (const TrainRun* run : runs_) {
      for (const TrainRun* other : others.runs_) {
        if (run->seed != other->seed || run->status != TrainRun::Status::finished ||
            other->status != TrainRun::Status::finished)
          continue;
        const auto mine = value(*run), its = value(*other);
        if (mine && its) values.push_back(*mine - *its);
      }
    }
    return mean_over_seeds(values);
  }
  [[nodiscard]] std::vector<std::string> notes() const {
    std::vector<std::string> notes;
    for (const TrainRun* run : runs_) {
      if (!run->note.empty() && std::find(notes.begin(), notes.end(), run->note) == notes.end())
        notes.push_back(run->note);
    }
    return notes;
  }

 private:
  std::vector<const TrainRun*> runs_;
};

std::optional<double> last_of(const TrainRun& run, double TrainCosts::*what) {
  if (run.rows.empty()) return std::nullopt;
  return run.rows.back().numbers.costs.*what;
}

/// Bytes of an uncompressed ring all-reduce / wire bytes, as bench has it.
std::optional<double> wire_ratio(const TrainOptions& options, const TrainReport& report, const TrainRun& run) {
  if (run.rows.empty()) return std::nullopt;
  const auto& numbers = run.rows.back().numbers;
  if (!(numbers.costs.wire_bytes > 0.0)) return std::nullopt;
  const auto p = static_cast<double>(options.training.workers);
  return 2.0 * (p - 1.0) / p * 4.0 * static_cast<double>(report.elements) * static_cast<double>(numbers.step) /
         numbers.costs.wire_bytes;
}

/// The factor of the learning rate of the codec's judged runs; empty where it has finished with none of several.
Cell factor_cell(const TrainOptions& options, const TrainReport& report, std::size_t codec) {
  if (options.lr_factors.size() == 1) return options.lr_factors.front();
  return cell_of(best_lr_factor(options, report, codec));
}

void add_mean(std::vector<Cell>& row, const std::optional<MeanOverSeeds>& mean) {
  const bool known = mean && mean->interval;
  append(row, mean ? Cell{mean->mean} : Cell{}, known ? Cell{mean->interval->low} : Cell{},
         known ? Cell{mean->interval->high} : Cell{});
}

std::optional<double> mean_of(const std::optional<MeanOverSeeds>& mean) {
  return mean ? std::optional{mean->mean} : std::nullopt;
}

/// "90.1 +- 0.3", in per cent.
std::string percent(const std::optional<MeanOverSeeds>& mean, bool sign = false) {
  if (!mean) return "-";
  const double half = mean->interval ? 0.5 * (mean->interval->high - mean->interval->low) : 0.0;
  const std::string number =
      sign ? fmt::format("{:+.2f}", 100.0 * mean->mean) : fmt::format("{:.2f}", 100.0 * mean->mean);
  return mean->interval ? fmt::format("{} +-{:.2f}", number, 100.0 * half) : number;
}

}  // namespace

std::optional<double> TrainRun::final_accuracy() const {
  if (rows.empty() || rows.back().numbers.tested == 0) return std::nullopt;
  return rows.back().numbers.test_accuracy;
}

std::optional<double> TrainRun::best_accuracy() const {
  std::optional<double> best;
  for (const auto& row : rows) {
    if (row.numbers.tested != 0) best = std::max(best.value_or(0.0), row.numbers.test_accuracy);
  }
  return best;
}

const TrainRow* TrainRun::reached(double accuracy) const {
  for (const auto& row : rows) {
    if (row.numbers.tested != 0 && row.numbers.test_accuracy >= accuracy) return &row;
  }
  return nullptr;
}

namespace {

/// Whether the codec has ended, or diverged, with every factor of the learning rate in the first seed.
bool has_tried_all_factors(const TrainOptions& options, const TrainReport& report, std::size_t codec) {
  const auto over = std::count_if(report.runs.begin(), report.runs.end(), [&](const TrainRun& run) {
    return run.codec == codec && run.seed == options.seeds.front() && run.status != TrainRun::Status::unfinished;
  });
  return static_cast<std::size_t>(over) >= options.lr_factors.size();
}

}  // namespace

std::optional<double> best_lr_factor(const TrainOptions& options, const TrainReport& report, std::size_t codec) {
  const TrainRun* best = nullptr;
  const auto is_better = [](const TrainRun& one, const TrainRun& other) {
    const auto mine = one.final_accuracy(), its = other.final_accuracy();
    if (mine && its) return *mine > *its;
    return one.rows.back().numbers.train_loss < other.rows.back().numbers.train_loss;
  };
  for (const TrainRun& run : report.runs) {
    if (run.codec != codec || run.seed != options.seeds.front()) continue;
    if (run.status != TrainRun::Status::finished) continue;
    if (best == nullptr || is_better(run, *best)) best = &run;
  }
  // Factors that were not tried to the end may be better.
  if (best == nullptr || !has_tried_all_factors(options, report, codec)) return std::nullopt;
  return best->lr_factor;
}

bool is_judged(const TrainOptions& options, const TrainReport& report, const TrainRun& run) {
  if (options.lr_factors.size() == 1) return true;
  const bool chooses = run.seed == options.seeds.front();
  const auto best = best_lr_factor(options, report, run.codec);
  if (!best) {
    // Until all factors have ended nothing says which one counts: only a run that is still to end does, as unfinished.
    if (!has_tried_all_factors(options, report, run.codec)) return run.status == TrainRun::Status::unfinished;
    return chooses && run.lr_factor == options.lr_factors.front();
  }
  return options.seeds.size() == 1 ? run.lr_factor == *best : !chooses;
}

std::string note_of_run(const TrainOptions& options, const CodecSpec& spec,
                        const std::vector<std::unique_ptr<Reducer<Space::host>>>& reducers) {
  std::vector<std::string> notes;
  const std::string& optimizer = options.training.optimizer;
  if (spec.own_momentum()) {
    notes.push_back(optimizer == "sgd" ? "its momentum is its own: the optimiser has none"
                                       : fmt::format("its momentum comes on top of that of {}", optimizer));
  }
  if (!spec.descriptor->target.empty())
    notes.emplace_back("sends an update instead of a gradient, which wants a learning rate of its own");
  std::vector<Tally> tallies;
  for (const auto& reducer : reducers) {
    std::string note = reducer->note();
    if (!note.empty() && std::find(notes.begin(), notes.end(), note) == notes.end()) notes.push_back(std::move(note));
    for (const auto& tally : reducer->tallies()) {
      const auto same = std::find_if(tallies.begin(), tallies.end(), [&](auto& t) { return t.what == tally.what; });
      if (same == tallies.end()) {
        tallies.push_back(tally);
      } else {
        same->part += tally.part;
        same->whole += tally.whole;
      }
    }
  }
  for (const auto& tally : tallies) {
    if (tally.whole > 0.0) notes.push_back(fmt::format("{}: {:.4g} %", tally.what, 100.0 * tally.part / tally.whole));
  }
  return joined(notes, "; ");
}

Table train_table(const TrainOptions& options, const TrainReport& report) {
  std::vector<Column> columns{
      {"codec", "name of the codec"},
      {"params", "its parameters, or default where it has none"},
      {"seed", "of the weights, the order of the data and the codec's draws"},
      {"lr_factor", "that learning rates were multiplied with"},
      {"judged", "whether the run counts for its codec, and did not only try a factor of the learning rate"},
      {"epoch", "number of the epoch that the last step is in, from 1"},
      {"step", "steps made"},
      {"status", "of the run: finished, diverged, or unfinished"},
      {"learning_rate", "of the last step"},
      {"train_loss", "mean cross-entropy over workers and the steps since the row before"},
      {"test_loss", "mean cross-entropy on the test images"},
      {"test_accuracy", "share of correct answers on the test images"},
      {"wire_bytes", "sent so far, by the rank that sent most in each step"},
      {"payload_bytes", "that a rank's encoder has written so far, mean over ranks"},
      {"compute_seconds", "so far: forward and backward passes, copies to and from buckets, update; slowest worker"},
      {"encode_seconds", "so far: processor time of encoding, slowest rank"},
      {"communicate_seconds", "so far: clock time of collectives, slowest rank, waiting included"},
      {"decode_seconds", "so far: processor time of decoding, slowest rank"},
      {"total_seconds", "so far: clock time of the steps, without evaluation and checkpoints"}};
  for (const auto& network : options.networks) {
    columns.push_back({fmt::format("modelled_{}_seconds", network.name),
                       "so far: what the steps would take there, computing as none did"});
  }
  Table table{"train", std::move(columns)};
  for (std::size_t codec = 0; codec < options.codecs.size(); ++codec) {
    for (const auto& run : report.runs) {
      if (run.codec != codec) continue;
      const bool judged = is_judged(options, report, run);
      for (const auto& row : run.rows) {
        const auto& numbers = row.numbers;
        const TrainCosts& costs = numbers.costs;
        const bool tested = numbers.tested != 0;
        std::vector<Cell> cells{options.codecs[codec].name(),
                                params_of(options.codecs[codec]),
                                run.seed,
                                run.lr_factor,
                                std::string{judged ? "true" : "false"},
                                numbers.epoch,
                                numbers.step,
                                std::string{name_of(run.status)},
                                numbers.learning_rate,
                                numbers.train_loss,
                                tested ? Cell{numbers.test_loss} : Cell{},
                                tested ? Cell{numbers.test_accuracy} : Cell{},
                                costs.wire_bytes,
                                costs.payload_bytes,
                                costs.compute,
                                costs.encode,
                                costs.communicate,
                                costs.decode,
                                costs.total};
        for (const double seconds : row.modelled) cells.emplace_back(seconds);
        table.add(std::move(cells));
      }
    }
  }
  return table;
}

Table train_summary(const TrainOptions& options, const TrainReport& report) {
  std::vector<Column> columns{{"codec", "name of the codec"},
                              {"params", "its parameters, or default where it has none"}};
  const auto add = [&columns](const std::string& name, const std::string& meaning) {
    columns.push_back({name, meaning});
  };
  const auto add_three = [&add](const std::string& name, const std::string& meaning) {
    add(name, meaning);
    add(name + "_low", "lower end of its 95 % interval over seeds");
    add(name + "_high", "upper end");
  };
  add("lr_factor", "that learning rates were multiplied with; of several the one that did best with the first seed");
  add("finished", "runs that have finished; means are over them");
  add("diverged", "runs whose loss became infinite or no number");
  add("diverged_seeds", "their seeds");
  add("unfinished", "runs that were interrupted");
  add_three("final_accuracy", "share of correct answers after the last step, mean over seeds");
  add_three("best_accuracy", "the same of the best row of each seed");
  add_three("final_accuracy_minus_none", "difference to none with the same seed, mean over seeds");
  add("train_loss", "of the last row, mean over seeds");
  add("test_loss", "after the last step, mean over seeds");
  add("wire_bytes", "of a run, sent by the rank that sent most in each step");
  add("wire_ratio", "bytes of an uncompressed ring all-reduce, 2(p-1)/p raw_bytes, / wire_bytes");
  add("total_seconds", "of a run: clock time of the steps");
  for (const auto& network : options.networks)
    add(fmt::format("modelled_{}_seconds", network.name), "of a run: what the steps would take there");
  if (options.target_accuracy) {
    add("target_accuracy", "as asked for");
    add("reached_target", "finished runs whose accuracy was that high in some row; what follows is their mean");
    add("steps_to_target", "to the first such row");
    add("total_seconds_to_target", "the same in clock time of the steps");
    for (const auto& network : options.networks)
      add(fmt::format("modelled_{}_seconds_to_target", network.name), "the same on that network");
  }
  Table table{"summary", std::move(columns)};
  const CodecRuns none{options, report, 0};
  for (std::size_t codec = 0; codec < options.codecs.size(); ++codec) {
    const CodecRuns runs{options, report, codec};
    const auto mean = [&](const CodecRuns::Value& value) { return cell_of(mean_of(runs.mean(value))); };
    const auto final_accuracy = [](const TrainRun& run) { return run.final_accuracy(); };
    std::vector<Cell> row{options.codecs[codec].name(),
                          params_of(options.codecs[codec]),
                          factor_cell(options, report, codec),
                          static_cast<std::int64_t>(runs.count(TrainRun::Status::finished)),
                          static_cast<std::int64_t>(runs.count(TrainRun::Status::diverged)),
                          joined(runs.seeds_with(TrainRun::Status::diverged), " "),
                          static_cast<std::int64_t>(runs.count(TrainRun::Status::unfinished))};
    add_mean(row, runs.mean(final_accuracy));
    add_mean(row, runs.mean([](const TrainRun& run) { return run.best_accuracy(); }));
    add_mean(row, codec == 0 ? std::nullopt : runs.mean_difference(none, final_accuracy));
    append(row, mean([](const TrainRun& run) -> std::optional<double> { return run.rows.back().numbers.train_loss; }),
           mean([](const TrainRun& run) -> std::optional<double> {
             const auto& last = run.rows.back().numbers;
             return last.tested != 0 ? std::optional{last.test_loss} : std::nullopt;
           }),
           mean([](const TrainRun& run) { return last_of(run, &TrainCosts::wire_bytes); }),
           mean([&](const TrainRun& run) { return wire_ratio(options, report, run); }),
           mean([](const TrainRun& run) { return last_of(run, &TrainCosts::total); }));
    for (std::size_t i = 0; i < options.networks.size(); ++i) {
      row.push_back(mean([i](const TrainRun& run) -> std::optional<double> { return run.rows.back().modelled[i]; }));
    }
    if (options.target_accuracy) {
      const double target = *options.target_accuracy;
      const auto to_target = [&](const std::function<double(const TrainRow&)>& value) {
        return runs.mean([&](const TrainRun& run) -> std::optional<double> {
          const TrainRow* reached = run.reached(target);
          return reached == nullptr ? std::nullopt : std::optional{value(*reached)};
        });
      };
      const auto steps = to_target([](const TrainRow& r) { return static_cast<double>(r.numbers.step); });
      append(row, target, static_cast<std::int64_t>(steps ? steps->count : 0), cell_of(mean_of(steps)),
             cell_of(mean_of(to_target([](const TrainRow& r) { return r.numbers.costs.total; }))));
      for (std::size_t i = 0; i < options.networks.size(); ++i)
        row.push_back(cell_of(mean_of(to_target([i](const TrainRow& r) { return r.modelled[i]; }))));
    }
    table.add(std::move(row));
  }
  return table;
}

nlohmann::ordered_json train_record(const TrainOptions& options, const TrainReport& report,
                                    const std::vector<Fact>& facts) {
  nlohmann::ordered_json out;
  out["format"] = "gradtool.train";
  out["schema_version"] = kTrainSchema;
  out["command"] = options.command;
  out["provenance"] = provenance();
  for (const auto& backend : comm_backends()) {
    if (backend.name == options.comm)
      out["provenance"]["communicator"] = {{"name", backend.name}, {"detail", backend.detail}};
  }
  for (const auto& fact : facts) out["settings"][fact.what] = fact.value;
  out["elements"] = report.elements;
  out["steps_per_epoch"] = report.steps_per_epoch;
  out["interrupted"] = report.interrupted;
  const std::string warning = train_warning(options, report);
  out["warning"] = warning.empty() ? nlohmann::ordered_json{} : nlohmann::ordered_json(warning);
  out["runs"] = nlohmann::ordered_json::array();
  for (const auto& run : report.runs) {
    const CodecSpec& spec = options.codecs[run.codec];
    out["runs"].push_back({{"codec", spec.name()},
                           {"params", params_of(spec)},
                           {"seed", run.seed},
                           {"lr_factor", run.lr_factor},
                           {"judged", is_judged(options, report, run)},
                           {"reached", run.at_work},
                           {"status", name_of(run.status)},
                           {"weights_sha256", run.weights_sha256},
                           {"note", run.note}});
  }
  out["summary"] = to_json(train_summary(options, report));
  out["rows"] = to_json(train_table(options, report));
  return out;
}

std::string train_warning(const TrainOptions& options, const TrainReport& report) {
  const CodecRuns none{options, report, 0};
  const auto gain = [&](const std::function<std::optional<double>(const TrainRow&)>& value, double sign) {
    return none.mean([&](const TrainRun& run) -> std::optional<double> {
      const auto first = value(run.rows.front()), last = value(run.rows.back());
      return run.rows.size() > 1 && first && last ? std::optional{sign * (*last - *first)} : std::nullopt;
    });
  };
  const auto is_clear = [](const std::optional<MeanOverSeeds>& mean) {
    return mean && (mean->interval ? mean->interval->low > 0.0 : mean->mean > 0.0);
  };
  const auto loss = gain([](const TrainRow& row) { return std::optional{row.numbers.train_loss}; }, -1.0);
  const auto accuracy = gain(
      [](const TrainRow& row) {
        return row.numbers.tested != 0 ? std::optional{row.numbers.test_accuracy} : std::nullopt;
      },
      1.0);
  if (!loss || is_clear(loss) || is_clear(accuracy)) return {};
  return fmt::format(
      "none itself did not get better from its first row to its last beyond what seeds differ by (its training loss "
      "fell by {:.3g}), so a codec that loses nothing says little: more steps or another learning rate would tell",
      loss->mean);
}

std::string train_text(const TrainOptions& options, const TrainReport& report) {
  const bool timed = options.target_accuracy.has_value();
  const bool rates = options.lr_factors.size() > 1;
  std::vector<std::string> header{"codec", "accuracy %", "best %", "minus none", "loss", "wire ratio"};
  if (rates) header.insert(header.begin() + 1, "rate x");
  if (timed) header.emplace_back("steps to target");
  header.emplace_back("here");
  for (const auto& network : options.networks) header.push_back(network.name);
  const CodecRuns none{options, report, 0};
  std::vector<std::vector<std::string>> lines;
  std::string remarks;
  for (std::size_t codec = 0; codec < options.codecs.size(); ++codec) {
    const CodecRuns runs{options, report, codec};
    const auto final_accuracy = [](const TrainRun& run) { return run.final_accuracy(); };
    const auto seconds = [&](const std::function<double(const TrainRow&)>& value) -> std::string {
      const auto mean = runs.mean([&](const TrainRun& run) -> std::optional<double> {
        const TrainRow* row = timed ? run.reached(*options.target_accuracy) : &run.rows.back();
        return row == nullptr ? std::nullopt : std::optional{value(*row)};
      });
      return mean ? human_seconds(mean->mean) : "-";
    };
    std::vector<std::string> line{text_of(options.codecs[codec]), percent(runs.mean(final_accuracy)),
                                  percent(runs.mean([](const TrainRun& run) { return run.best_accuracy(); })),
                                  codec == 0 ? "" : percent(runs.mean_difference(none, final_accuracy), true)};
    if (rates) {
      const auto factor = best_lr_factor(options, report, codec);
      line.insert(line.begin() + 1, factor ? fmt::format("{:g}", *factor) : "-");
    }
    const auto loss = runs.mean([](const TrainRun& run) -> std::optional<double> {
      const auto& last = run.rows.back().numbers;
      return last.tested != 0 ? std::optional{last.test_loss} : std::nullopt;
    });
    line.push_back(loss ? fmt::format("{:.3f}", loss->mean) : "-");
    const auto ratio = runs.mean([&](const TrainRun& run) { return wire_ratio(options, report, run); });
    line.push_back(ratio ? fmt::format("{:.3g}", ratio->mean) : "-");
    if (timed) {
      const auto steps = runs.mean([&](const TrainRun& run) -> std::optional<double> {
        const TrainRow* row = run.reached(*options.target_accuracy);
        return row == nullptr ? std::nullopt : std::optional{static_cast<double>(row->numbers.step)};
      });
      const std::size_t finished = runs.count(TrainRun::Status::finished);
      std::string text = steps ? fmt::format("{:.0f}", steps->mean) : "-";
      if (steps && steps->count < finished) text += fmt::format(" ({} of {})", steps->count, finished);
      line.push_back(std::move(text));
    }
    line.push_back(seconds([](const TrainRow& row) { return row.numbers.costs.total; }));
    for (std::size_t i = 0; i < options.networks.size(); ++i)
      line.push_back(seconds([i](const TrainRow& row) { return row.modelled[i]; }));
    lines.push_back(std::move(line));
    const std::string name = text_of(options.codecs[codec]);
    if (const auto seeds = runs.seeds_with(TrainRun::Status::diverged); !seeds.empty())
      remarks += wrapped(fmt::format("{}: diverged with seed {}", name, joined(seeds, ", ")), 80);
    for (const auto& note : runs.notes()) remarks += wrapped(fmt::format("{}: {}", name, note), 80);
  }
  std::vector<bool> right(header.size(), true);
  right.front() = false;
  const CaptureOptions& training = options.training;
  std::string out = wrapped(
      fmt::format("{} on {}, {} worker{} x {}, {} seed{}: {} and mean cross-entropy (loss), means over seeds with the "
                  "95 % interval; times {}.",
                  training.model, training.dataset, training.workers, training.workers == 1 ? "" : "s",
                  training.batch_size, options.seeds.size(), options.seeds.size() == 1 ? "" : "s",
                  training.dataset == "text" ? "share of tokens of the held-out text that were foretold (accuracy)"
                                             : "accuracy on the test images",
                  timed ? fmt::format("until {:g} % were reached", 100.0 * *options.target_accuracy)
                        : std::string{"of a whole run"}),
      80, "");
  if (rates) {
    out += wrapped(
        fmt::format("Rate x: the factor of the learning rate that did best with seed {}, of {}. {}",
                    options.seeds.front(), joined(options.lr_factors, ", "),
                    options.seeds.size() > 1
                        ? "The numbers are those of the other seeds."
                        : "The numbers are those of the same seed, which flatters what was tried with more of them."),
        80, "");
  }
  if (const std::string warning = train_warning(options, report); !warning.empty())
    remarks += wrapped("Warning: " + warning + ".", 80);
  return out + "\n" + format_rows(header, lines, right, 32) + remarks;
}

}  // namespace gradtool
