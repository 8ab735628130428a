#include "lib/analysis/prediction.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <numbers>
#include <optional>
#include <string_view>

#include "lib/core/text.hpp"

namespace gradtool {
namespace {

constexpr double kLeastRatio = 1.05;  ///< of bytes, below which a codec compresses nothing
constexpr double kInvites = 0.1;      ///< a tenth of the energy; whether it costs accuracy, trainings say
constexpr double kRulesOut = 0.5;     ///< half of the gradient is lost
constexpr double kOff = 1.5;          ///< a factor by which a prediction fails
constexpr std::size_t kFewest = 5;    ///< codecs: fewer say nothing of what these gradients invite

std::optional<double> number_in(const Table& table, std::size_t row, std::string_view column) {
  const Cell& cell = table.at(row, column);
  if (const auto* real = std::get_if<double>(&cell)) return *real;
  if (const auto* integer = std::get_if<std::int64_t>(&cell)) return static_cast<double>(*integer);
  return {};
}

/// The tables by name. What is not there reads as nothing.
class Tables {
 public:
  explicit Tables(const std::vector<Table>& tables) {
    for (const auto& table : tables) by_name_[table.name()] = &table;
  }
  [[nodiscard]] const Table* find(const std::string& name) const {
    const auto found = by_name_.find(name);
    return found == by_name_.end() ? nullptr : found->second;
  }
  /// The value in the last row, which is the one for all tensors.
  [[nodiscard]] std::optional<double> all(const std::string& table, std::string_view column) const {
    const Table* found = find(table);
    return found == nullptr || found->rows().empty() ? std::nullopt
                                                     : number_in(*found, found->rows().size() - 1, column);
  }

 private:
  std::map<std::string, const Table*> by_name_;
};

/// The norms of one tensor's gradients, from the per-tensor rows of variance.csv.
struct Norms {
  double elements, l1, energy;
};

std::vector<Norms> norms_of(const Tables& tables) {
  std::vector<Norms> norms;
  const Table* variance = tables.find("variance");
  for (std::size_t r = 0; variance != nullptr && r + 1 < variance->rows().size(); ++r) {
    const auto l1 = number_in(*variance, r, "l1_norm_mean"), l2 = number_in(*variance, r, "l2_norm_rms");
    if (l1 && l2) norms.push_back({number_in(*variance, r, "elements").value_or(0), *l1, *l2 * *l2});
  }
  return norms;
}

class Predictor {
 public:
  Predictor(const std::vector<Table>& tables, double element_bytes)
      : tables_{tables}, of_float32_{element_bytes / sizeof(float)} {
    workers_ = tables_.all("correlation", "workers").value_or(0);
    rho_ = std::max(0.0, tables_.all("correlation", "worker_pearson_mean").value_or(0));
    if (workers_ >= 1) averaging_ = 1 + (workers_ - 1) * rho_;
    for (const auto& table : tables) {
      if (!table.rows().empty()) file_ = table.at(0, "file");
    }
  }

  Table take() {
    selections();
    low_rank();
    rounding();
    signs();
    if (const auto loss = tables_.all("gradiveq", "own_nmse")) {
      const auto elements = tables_.all("gradiveq", "compared_elements"),
                 d = tables_.all("gradiveq", "basis_components");
      add("gradiveq", elements && d && *d > 0 ? std::optional{*elements / *d} : std::nullopt, *loss,
          "gradiveq: own_nmse");
    }
    return std::move(out_);
  }

 private:
  /// `ratio`: float32 bytes over those of a payload.
  void add(const std::string& codec, std::optional<double> ratio, double nmse, const std::string& from) {
    std::vector<Cell> row{std::int64_t{1}, file_, codec};
    row.emplace_back();
    if (ratio) row.back() = *ratio * of_float32_;
    append(row, nmse, from);
    row.resize(out_.columns().size());
    out_.add(std::move(row));
  }

  void selections() {
    for (const int percent : {1, 5, 10, 25}) {
      const std::string column = fmt::format("raw_share_{:02}", percent);
      const double ratio = percent / 100.0;
      // A float32 and about 4 bits more than the entropy of a gap for each value.
      const double bits = 32 + 4 - std::log2(ratio);
      if (const auto share = tables_.all("spectrum", column))
        add(fmt::format("topk:ratio={:g},ef=off", ratio), 32 / (bits * ratio), 1 - *share, "spectrum: " + column);
    }
    for (const int percent : {5, 15}) {
      const std::string column = fmt::format("fft_share_{:02}", percent);
      if (const auto share = tables_.all("spectrum", column)) {
        const double kept = percent / 100.0;
        add(fmt::format("fft:theta={:g}", 1 - kept), 32 / (10 * kept + 0.5), 1 - *share, "spectrum: " + column);
      }
    }
    add("randomk:ratio=0.1,ef=off", 10, 0.9, "1 - ratio");
  }

  void low_rank() {
    const Table* table = tables_.find("low_rank");
    if (table == nullptr || table->rows().empty()) return;
    for (const int rank : {1, 2, 4, 8}) {
      const auto exact = tables_.all("low_rank", fmt::format("rank_{}_share", rank)),
                 drawn = tables_.all("low_rank", fmt::format("power_{}_share", rank));
      if (!exact || !drawn) continue;
      double elements = 0, sent = 0;
      for (std::size_t r = 0; r + 1 < table->rows().size(); ++r) {
        const double n = number_in(*table, r, "elements").value_or(0);
        const auto rows = number_in(*table, r, "rows"), columns = number_in(*table, r, "columns");
        const double factors = rows ? rank * (*rows + columns.value_or(0)) : n;
        elements += n;
        sent += std::min(n, factors);
      }
      add(fmt::format("powersgd:rank={},ef=off", rank), elements / sent,
          std::sqrt(std::max(0.0, 1 - *exact) * std::max(0.0, 1 - *drawn)),
          fmt::format("low_rank: rank_{0}_share, power_{0}_share", rank));
    }
  }

  void rounding() {
    if (averaging_ == 0) return;
    const Table* formats = tables_.find("formats");
    for (std::size_t r = 0; formats != nullptr && r < formats->rows().size(); ++r) {
      const auto nmse = number_in(*formats, r, "nmse");
      if (to_text(formats->at(r, "tensor")) != "all" || !nmse) continue;
      const std::string format = to_text(formats->at(r, "format"));
      if (format == "fp16") add("fp16:ef=off", 2, in_ring(*nmse, 0x1p-10), "formats: " + format);
      if (format == "bf16") add("bf16:ef=off", 2, in_ring(*nmse, 0x1p-7), "formats: " + format);
      if (format == "fp8 e4m3, scaled") add("fp8:ef=off", 4, *nmse / averaging_, "formats: " + format);
      for (const int bits : {8, 4}) {
        if (format == fmt::format("int{}, drawn", bits))
          add(fmt::format("qsgd:bits={}", bits), 32.0 / (bits + 32.0 / 512), *nmse / averaging_, "formats: " + format);
      }
    }
    const auto drawing = tables_.all("distribution", "ternary_variance"),
               bias = tables_.all("distribution", "ternary_bias");
    if (drawing && bias)
      add("terngrad", 16, *drawing / averaging_ + *bias, "distribution: ternary_variance, ternary_bias");
  }

  /// Error of the mean over W workers in a ring that adds in a format whose mantissa is spaced by `spacing`: W addends
  /// are rounded, each with the error `nmse`, and so are the W - 1 sums of them on their way. A sum of k addends has
  /// the energy k (1 + (k - 1) rho) of one; its rounding error is spacing^2 / 12 times E (2^e / x)^2 = 3 / (8 ln 2),
  /// for values whose logarithms are spread evenly.
  [[nodiscard]] double in_ring(double nmse, double spacing) const {
    const double of_sum = spacing * spacing / 12 * 3 / (8 * std::numbers::ln2);
    double error = nmse * workers_;
    for (int i = 2; i <= static_cast<int>(workers_); ++i) error += of_sum * i * (1 + (i - 1) * rho_);
    return error / (workers_ * averaging_);
  }

  void signs() {
    double error = 0, energy = 0;
    for (const Norms& tensor : norms_of(tables_)) {
      energy += tensor.energy;
      error += tensor.energy - tensor.l1 * tensor.l1 / tensor.elements;
    }
    if (energy > 0) add("efsignsgd:ef=off", 32, error / energy, "variance: l1_norm_mean, l2_norm_rms");
  }

  Tables tables_;
  double of_float32_;  ///< bytes of an uncompressed element over 4
  double workers_ = 0, rho_ = 0;
  double averaging_ = 0;  ///< 1 + (W - 1) rho; 0: not known
  Cell file_;
  Table out_{
      "prediction",
      {{"schema_version", "version of this table's columns"},
       {"file", "the gradient file as named on the command line"},
       {"codec", "as bench takes it"},
       {"ratio",
        "bytes of the gradient, in the type in which the job sends it, over those of a payload, roughly, before any "
        "gathering"},
       {"predicted_nmse", "error of the mean over workers of one step, without error feedback, each tensor by itself"},
       {"from", "table and column that it is predicted from"},
       {"measured_nmse", "what bench measured (--measured); empty where it did not"},
       {"off", "measured over predicted"}}};
};

/// Without its ef=off, which all have.
std::string codec_at(const Table& table, std::size_t row) {
  std::string codec = to_text(table.at(row, "codec"));
  if (codec.ends_with("ef=off")) codec.erase(codec.size() - 7);
  return codec;
}

/// "topk:ratio=0.01 (0.61 at 84x)"
std::string shown(const Table& table, std::size_t row) {
  const auto ratio = number_in(table, row, "ratio");
  return fmt::format("{} ({:.2g}{})", codec_at(table, row), number_in(table, row, "predicted_nmse").value_or(0),
                     ratio ? fmt::format(" at {:.2g}x", *ratio) : "");
}

std::string line(const std::string& what, const std::vector<std::string>& codecs) {
  return wrapped(fmt::format("- {}: {}", what, codecs.empty() ? "none" : joined(codecs, ", ")), 100);
}

}  // namespace

Table predict(const std::vector<Table>& tables, double element_bytes) {
  return Predictor{tables, element_bytes}.take();
}

void set_measured(Table& predictions, std::size_t row, double nmse) {
  predictions.set(row, "measured_nmse", nmse);
  const double predicted = number_in(predictions, row, "predicted_nmse").value_or(0);
  if (predicted > 0) predictions.set(row, "off", nmse / predicted);
}

std::string describe_predictions(const Table& predictions) {
  if (predictions.rows().size() < kFewest) return {};
  // One set of parameters is enough for each method: the one that compresses most, or the one that compresses least if
  // all are ruled out.
  enum Verdict : std::uint8_t { invited, open, ruled_out };
  std::array<std::vector<std::pair<std::string, std::size_t>>, 3> chosen;  // method, row
  std::vector<std::string> off;
  std::size_t measured = 0;
  for (std::size_t r = 0; r < predictions.rows().size(); ++r) {
    const double nmse = number_in(predictions, r, "predicted_nmse").value_or(0);
    // A codec that saves nothing is no advice, however exact it is: a rank that is as large as the matrices.
    if (nmse < kInvites && number_in(predictions, r, "ratio").value_or(kLeastRatio) < kLeastRatio) continue;
    const Verdict verdict = nmse < kInvites ? invited : nmse > kRulesOut ? ruled_out : open;
    const std::string codec = to_text(predictions.at(r, "codec")), method = codec.substr(0, codec.find(':'));
    auto& these = chosen[verdict];
    const auto same = std::find_if(these.begin(), these.end(), [&](auto& one) { return one.first == method; });
    const auto ratio = [&](std::size_t row) { return number_in(predictions, row, "ratio").value_or(0); };
    if (same == these.end()) {
      these.emplace_back(method, r);
    } else if ((verdict == ruled_out) == (ratio(r) < ratio(same->second))) {
      same->second = r;
    }
    const auto factor = number_in(predictions, r, "off");
    if (!factor) continue;
    ++measured;
    if (*factor > kOff || *factor < 1 / kOff)
      off.push_back(fmt::format("{} ({:.2g} times as much)", codec_at(predictions, r), *factor));
  }
  const auto rows = [&](Verdict verdict) {
    std::vector<std::string> texts;
    for (const auto& [method, row] : chosen[verdict]) texts.push_back(shown(predictions, row));
    return texts;
  };
  std::string text =
      line(fmt::format("Invites (predicted error below {})", kInvites), rows(invited)) +
      line("Leaves open", rows(open)) +
      line(fmt::format("Rules out, unless error feedback or averaging makes up for it (above {})", kRulesOut),
           rows(ruled_out));
  if (measured > 0) text += line(fmt::format("Of {} measured, prediction fails for", measured), off);
  return text;
}

}  // namespace gradtool
