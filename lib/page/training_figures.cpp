#include "lib/page/training_figures.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "lib/core/error.hpp"

namespace gradtool {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kNone = "uncompressed";

/// Mean, smallest and largest of what some seeds came to.
struct OverSeeds {
  std::size_t count = 0;
  double sum = 0.0, least = INFINITY, most = -INFINITY;

  void add(std::optional<double> value) {
    if (!value || !std::isfinite(*value)) return;
    ++count;
    sum += *value;
    least = std::min(least, *value);
    most = std::max(most, *value);
  }
  [[nodiscard]] Cell mean() const { return count == 0 ? Cell{} : Cell{sum / static_cast<double>(count)}; }
};

class TrainingCharts {
 public:
  TrainingCharts(const TrainingSource& source, const std::string& suffix, CodecLooks& looks)
      : source_{source}, rows_{source.rows}, summary_{source.summary}, suffix_{suffix} {
    name_codecs();
    for (const auto& codec : codecs_) {
      if (codec.name == kNone) continue;
      const CodecLooks::Look look = looks.of(codec.name);
      shown_.push_back(codec.name);
      colours_.push_back(look.colour);
      dashes_.push_back(look.dash);
      shapes_.push_back(look.shape);
    }
    for (const auto& column : summary_.columns()) {
      constexpr std::string_view kBefore = "modelled_", kBehind = "_seconds";
      if (column.name.starts_with(kBefore) && column.name.ends_with(kBehind))
        networks_.push_back(column.name.substr(kBefore.size(), column.name.size() - kBefore.size() - kBehind.size()));
    }
  }

  BenchFigures take() {
    out_.title = source_.title;
    notes();
    basis();
    accuracy_by_epoch();
    loss_by_epoch();
    accuracy_by_bytes();
    accuracy_by_time();
    final_accuracy();
    time_to_target();
    return std::move(out_);
  }

 private:
  /// A codec with its parameters, as the tables have them, and what the page calls it.
  struct Codec {
    std::string codec, params, name;
  };

  /// The name alone where no other row has it, else with the parameters in which they differ, as codec_label() has it.
  void name_codecs() {
    std::vector<ResultRow> known;
    for (std::size_t i = 0; i < summary_.rows().size(); ++i) {
      Codec one{text_at(summary_, i, "codec"), text_at(summary_, i, "params"), {}};
      one.name = one.codec == "none" ? kNone : one.codec + (one.params == "default" ? "" : ":" + one.params);
      try {
        CodecSpec spec = parse_recorded_codec(one.params == "default" ? one.codec : one.codec + ":" + one.params);
        spec.given.clear();  // here all of them are
        known.emplace_back(std::move(spec));
      } catch (const Error&) {
        known.clear();  // of another build: the whole text serves
        codecs_.push_back(std::move(one));
        continue;
      }
      codecs_.push_back(std::move(one));
    }
    if (known.size() != codecs_.size()) return;
    for (std::size_t i = 0; i < codecs_.size(); ++i) {
      if (codecs_[i].name != kNone) codecs_[i].name = codec_label(known[i], known);
    }
  }

  [[nodiscard]] Blanks blanks() const {
    std::vector<std::string> names{kNone};
    for (const auto& codec : codecs_) {
      if (codec.name != kNone) names.push_back(codec.name);
    }
    return {{"rows_height", 30 * codecs_.size() + 10},
            {"shown", shown_},
            {"colours", colours_},
            {"dashes", dashes_},
            {"shapes", shapes_},
            {"all_names", names},
            {"measure", source_.text ? "next-token accuracy" : "accuracy"}};
  }

  void add(const std::string& chart, Table table, const Blanks& filled) {
    out_.charts.push_back(make_chart(chart, suffix_, source_.origin, std::move(table), filled));
  }
  void lacks(const std::string& chart, const std::string& why) {
    out_.missing.push_back(missing_chart(chart, why, blanks()));
  }

  /// Rows of the training's table that belong to judged runs of a codec and the same step, steps ascending.
  [[nodiscard]] std::map<std::int64_t, std::vector<std::size_t>> steps_of(const Codec& codec) const {
    std::map<std::int64_t, std::vector<std::size_t>> steps;
    const auto& columns = rows_.columns();
    const bool judged = std::any_of(columns.begin(), columns.end(), [](const Column& c) { return c.name == "judged"; });
    for (std::size_t i = 0; i < rows_.rows().size(); ++i) {
      if (text_at(rows_, i, "codec") != codec.codec || text_at(rows_, i, "params") != codec.params) continue;
      if (judged && text_at(rows_, i, "judged") == "false") continue;
      const auto step = number_at(rows_, i, "step");
      if (step) steps[static_cast<std::int64_t>(*step)].push_back(i);
    }
    return steps;
  }
  /// Epochs up to that step, a whole number where one ends there.
  [[nodiscard]] Cell epochs_at(std::int64_t step) const {
    const std::int64_t each = std::max<std::int64_t>(1, source_.steps_per_epoch);
    return step % each == 0 ? Cell{step / each} : Cell{static_cast<double>(step) / static_cast<double>(each)};
  }
  [[nodiscard]] OverSeeds over(const std::vector<std::size_t>& rows, const std::string& column,
                               double factor = 1.0) const {
    OverSeeds all;
    for (const std::size_t i : rows) {
      const auto value = number_at(rows_, i, column);
      if (value) all.add(*value * factor);
    }
    return all;
  }

  void notes() {
    for (std::size_t i = 0; i < summary_.rows().size(); ++i) {
      const std::string diverged = text_at(summary_, i, "diverged_seeds");
      if (!diverged.empty())
        out_.notes.push_back(
            fmt::format("{}: diverged with seed {}; means are over the others", codecs_[i].name, diverged));
      if (number_at(summary_, i, "unfinished").value_or(0.0) > 0.0)
        out_.notes.push_back(fmt::format("{}: a run is not finished; means are over the others", codecs_[i].name));
    }
  }

  /// A sentence for each codec: what it cost, and what it saved.
  void basis() {
    for (std::size_t i = 0; i < summary_.rows().size(); ++i) {
      const auto number = [&](const char* column) { return number_at(summary_, i, column); };
      const auto accuracy = number("final_accuracy");
      if (!accuracy) continue;
      if (codecs_[i].name == kNone) {
        out_.basis.push_back(fmt::format("Uncompressed training ends at {:.1f} % {}.", 100.0 * *accuracy,
                                         source_.text ? "of next tokens" : "accuracy"));
        continue;
      }
      const auto less = number("final_accuracy_minus_none");
      const auto low = number("final_accuracy_minus_none_low"), high = number("final_accuracy_minus_none_high");
      std::string text = fmt::format("{} ends at {:.1f} %", codecs_[i].name, 100.0 * *accuracy);
      if (less) text += fmt::format(", {:+.1f} points to uncompressed", 100.0 * *less);
      if (low && high) {
        text += fmt::format(" ({:+.1f} to {:+.1f}{})", 100.0 * *low, 100.0 * *high,
                            *low <= 0.0 && *high >= 0.0 ? ": these seeds do not tell them apart" : "");
      }
      if (const auto ratio = number("wire_ratio")) text += fmt::format(", and sends {:.3g} times less", *ratio);
      out_.basis.push_back(text + ".");
    }
    for (const auto& note : source_.notes) out_.basis.push_back(note + ".");
  }

  void accuracy_by_epoch() {
    Table table{"accuracy_by_epoch",
                {{"codec", "with what tells it from others"},
                 {"epoch", "epochs so far"},
                 {"seeds", "so many runs"},
                 {"accuracy", "share of correct answers on the test set, mean over seeds"},
                 {"accuracy_least", "of the worst seed"},
                 {"accuracy_most", "of the best seed"},
                 {"train_loss", "mean cross-entropy of the steps before, mean over seeds"},
                 {"test_loss", "mean cross-entropy on the test set, mean over seeds"}}};
    for (const Codec& codec : codecs_) {
      for (const auto& [step, rows] : steps_of(codec)) {
        const OverSeeds accuracy = over(rows, "test_accuracy");
        if (accuracy.count == 0) continue;
        table.add({codec.name, epochs_at(step), static_cast<std::int64_t>(accuracy.count), accuracy.mean(),
                   accuracy.least, accuracy.most, over(rows, "train_loss").mean(), over(rows, "test_loss").mean()});
      }
    }
    if (table.rows().empty())
      lacks("accuracy_by_epoch", "there was no test set, or it was not evaluated yet");
    else
      add("accuracy_by_epoch", std::move(table), blanks());
  }

  /// The loss over the test set, or over the training data if there is no test set.
  void loss_by_epoch() {
    const bool tested = [&] {
      for (std::size_t i = 0; i < rows_.rows().size(); ++i) {
        if (number_at(rows_, i, "test_loss")) return true;
      }
      return false;
    }();
    Table table{"loss_by_epoch",
                {{"codec", "with what tells it from others"},
                 {"epoch", "epochs so far"},
                 {"seeds", "so many runs"},
                 {"loss", "mean cross-entropy, mean over seeds"},
                 {"loss_least", "of the best seed"},
                 {"loss_most", "of the worst seed"}}};
    for (const Codec& codec : codecs_) {
      for (const auto& [step, rows] : steps_of(codec)) {
        const OverSeeds loss = over(rows, tested ? "test_loss" : "train_loss");
        if (loss.count == 0) continue;
        table.add(
            {codec.name, epochs_at(step), static_cast<std::int64_t>(loss.count), loss.mean(), loss.least, loss.most});
      }
    }
    Blanks filled = blanks();
    filled["measure"] = tested ? "cross-entropy on the test set" : "cross-entropy of the training";
    if (table.rows().empty())
      lacks("loss_by_epoch", "no row has a loss");
    else
      add("loss_by_epoch", std::move(table), filled);
  }

  void accuracy_by_bytes() {
    Table table{"accuracy_by_bytes",
                {{"codec", "with what tells it from others"},
                 {"epoch", "epochs so far"},
                 {"megabytes", "that the busiest rank has sent so far, 10^6 bytes, mean over seeds"},
                 {"accuracy", "share of correct answers on the test set, mean over seeds"}}};
    for (const Codec& codec : codecs_) {
      for (const auto& [step, rows] : steps_of(codec)) {
        const OverSeeds accuracy = over(rows, "test_accuracy"), bytes = over(rows, "wire_bytes", 1e-6);
        if (accuracy.count == 0 || !(bytes.sum > 0.0)) continue;
        table.add({codec.name, epochs_at(step), bytes.mean(), accuracy.mean()});
      }
    }
    if (table.rows().empty())
      lacks("accuracy_by_bytes", "nothing was sent: one worker, no test set, or it was not evaluated yet");
    else
      add("accuracy_by_bytes", std::move(table), blanks());
  }

  /// The networks of a chart, of which one is chosen at a time: name and column.
  using Places = std::vector<std::pair<std::string, std::string>>;
  /// Every network, and here; `ending` is what the columns' names end with.
  [[nodiscard]] Places places_with(const std::string& ending) const {
    Places places;
    for (const auto& network : networks_)
      places.emplace_back(network + ", modelled", fmt::format("modelled_{}{}", network, ending));
    places.emplace_back("here, measured", "total" + ending);
    return places;
  }
  static void fill_places(Blanks& filled, const Places& places) {
    filled["first_place"] = places.front().first;
    for (const auto& place : places) filled["places"].push_back(place.first);
  }

  void accuracy_by_time() {
    const Places places = places_with("_seconds");
    Table table{"accuracy_by_time",
                {{"place", "a network as modelled, or where it was run"},
                 {"codec", "with what tells it from others"},
                 {"epoch", "epochs so far"},
                 {"seconds", "of training steps so far, without evaluation, mean over seeds"},
                 {"accuracy", "share of correct answers on the test set, mean over seeds"}}};
    for (const auto& [place, column] : places) {
      for (const Codec& codec : codecs_) {
        for (const auto& [step, rows] : steps_of(codec)) {
          const OverSeeds accuracy = over(rows, "test_accuracy"), seconds = over(rows, column);
          if (accuracy.count == 0 || seconds.count == 0) continue;
          table.add({place, codec.name, epochs_at(step), seconds.mean(), accuracy.mean()});
        }
      }
    }
    if (table.rows().empty()) {
      lacks("accuracy_by_time", "there was no test set, or it was not evaluated yet");
      return;
    }
    Blanks filled = blanks();
    fill_places(filled, places);
    add("accuracy_by_time", std::move(table), filled);
  }

  void final_accuracy() {
    Table table{"final_accuracy",
                {{"codec", "with what tells it from others"},
                 {"accuracy", "after the last step, mean over seeds"},
                 {"accuracy_low", "where it lies with 95 % confidence, from here"},
                 {"accuracy_high", "and to here"},
                 {"minus_none", "difference to none with the same seed, mean over seeds"},
                 {"wire_ratio", "bytes of an uncompressed ring all-reduce / bytes sent"},
                 {"finished", "runs"}}};
    for (std::size_t i = 0; i < summary_.rows().size(); ++i) {
      const auto accuracy = number_at(summary_, i, "final_accuracy");
      if (!accuracy) continue;
      table.add({codecs_[i].name, summary_.at(i, "final_accuracy"), summary_.at(i, "final_accuracy_low"),
                 summary_.at(i, "final_accuracy_high"), summary_.at(i, "final_accuracy_minus_none"),
                 summary_.at(i, "wire_ratio"), summary_.at(i, "finished")});
    }
    if (table.rows().empty())
      lacks("final_accuracy", "no run has finished with a test set");
    else
      add("final_accuracy", std::move(table), blanks());
  }

  void time_to_target() {
    if (!has_column(summary_, "target_accuracy")) {
      lacks("time_to_target", "no target was asked for");
      return;
    }
    const Places places = places_with("_seconds_to_target");
    Table table{"time_to_target",
                {{"place", "a network as modelled, or where it was run"},
                 {"codec", "with what tells it from others"},
                 {"seconds", "of training steps until the target, mean over the seeds that reached it"},
                 {"reached", "so many of them"},
                 {"target_accuracy", "as asked for"}}};
    double target = 0.0;
    std::vector<std::string> never;
    for (const auto& [place, column] : places) {
      for (std::size_t i = 0; i < summary_.rows().size(); ++i) {
        target = number_at(summary_, i, "target_accuracy").value_or(target);
        if (!number_at(summary_, i, column)) {
          if (column == "total_seconds_to_target") never.push_back(codecs_[i].name);
          continue;
        }
        table.add({place, codecs_[i].name, summary_.at(i, column), summary_.at(i, "reached_target"),
                   summary_.at(i, "target_accuracy")});
      }
    }
    for (const auto& name : never)
      out_.notes.push_back(fmt::format("{}: never reached an accuracy of {:g} %", name, 100.0 * target));
    if (table.rows().empty()) {
      lacks("time_to_target", "no run reached it");
      return;
    }
    Blanks filled = blanks();
    fill_places(filled, places);
    filled["target_percent"] = fmt::format("{:g} %", 100.0 * target);
    add("time_to_target", std::move(table), filled);
  }

  const TrainingSource& source_;
  const Table &rows_, &summary_;
  std::string suffix_;
  std::vector<Codec> codecs_;  ///< in the order of the summary's rows
  std::vector<std::string> networks_;
  std::vector<std::string> shown_, colours_, shapes_;
  std::vector<std::vector<double>> dashes_;
  BenchFigures out_;
};

}  // namespace

BenchFigures training_figures(const TrainingSource& source, const std::string& suffix, CodecLooks& looks) {
  return TrainingCharts{source, suffix, looks}.take();
}

}  // namespace gradtool
