#include "lib/bench/rows.hpp"
#include "lib/bench/update_errors.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

namespace gradtool {
namespace {

/// A note of what was lost on the way, and of the parameters with which the codec dlcp loses as much: a Gilbert-Elliott
/// channel that loses everything in its bad state, as often and for as long as measured.
std::string lossy_channel_note(const PacketShares& packets) {
  return fmt::format(
      "{:.2g} % of the packets were lost at first, {:.1f} in a row; as a codec: "
      "dlcp:model=gilbert,bad={:.3g},burst={:.3g},loss_bad=1",
      100.0 * packets.lost_first, packets.burst, packets.lost_first, packets.burst);
}

/// Seconds of one phase (0 to 2) or of the whole (3), over all samples, so many of which each round took.
PhaseSummary summary_of(const std::vector<PhaseTimes>& samples, const std::vector<std::size_t>& rounds,
                        std::size_t phase) {
  std::vector<double> seconds(samples.size());
  std::transform(samples.begin(), samples.end(), seconds.begin(),
                 [phase](const PhaseTimes& sample) { return phase < 3 ? sample.phase[phase] : sample.total; });
  const Summary all = summarise(seconds);
  const auto interval = median_interval(seconds, rounds);
  PhaseSummary summary{.median = all.median, .p95 = all.p95, .min = all.min, .noise = all.noise};
  if (interval) {
    // A resampled median is one sample, that of all may lie between two.
    summary.low = std::min(interval->low, all.median);
    summary.high = std::max(interval->high, all.median);
  }
  return summary;
}

/// The data type of tensors: "mixed" where they differ.
std::string dtype_of(std::span<const TensorInfo> tensors) {
  const bool alike = std::all_of(tensors.begin(), tensors.end(),
                                 [&](const TensorInfo& info) { return info.dtype == tensors.front().dtype; });
  return alike ? std::string{name_of(tensors.front().dtype)} : "mixed";
}

/// Sets the type in which the units are reduced uncompressed.
void set_baseline(std::span<const Unit> units, ResultRow& row) {
  double bytes = 0.0, elements = 0.0;
  for (const Unit& unit : units) {
    const std::string_view name = name_of(unit.dtype);
    row.baseline_dtype = elements == 0.0 || row.baseline_dtype == name ? name : "mixed";
    bytes += static_cast<double>(size_of(unit.dtype) * unit.elements);
    elements += static_cast<double>(unit.elements);
  }
  if (elements > 0.0) row.baseline_bytes = bytes / elements;
}

/// Ranks of a machine, where the codec worked in two levels.
int node_of(const ReplayResult& replayed) {
  int node = 1;
  for (const UnitProfile& unit : replayed.units) {
    for (const CollectiveUse& use : unit.uses) node = std::max(node, use.node);
  }
  return node;
}

/// The units' profiles, their times scaled to add up to the row's medians.
std::vector<UnitProfile> units_of(const BenchCut& cut, const ReplayResult& replayed, const ResultRow& row) {
  std::vector<UnitProfile> units = replayed.units;
  const auto ready =
      cut.backward != nullptr ? ready_shares(cut.units, *cut.backward) : ready_shares(cut.units, cut.source.tensors());
  const std::vector<TensorInfo>& tensors = cut.source.tensors();
  const CodecDescriptor& codec = *row.codec.descriptor;
  const bool levelled = node_of(replayed) > 1;
  for (std::size_t u = 0; u < units.size(); ++u) {
    const Unit& unit = cut.units[u];
    units[u].ready = ready[u];
    units[u].elements = unit.elements;
    units[u].gated = !levelled && row.codec.gates(unit.elements * size_of(unit.dtype));
    units[u].has_side = codec.needs_weight || codec.needs_second_moment;
    for (const Unit::Piece& piece : unit.pieces) {
      const TensorInfo& tensor = tensors[piece.tensor];
      units[u].largest_tensor = std::max(units[u].largest_tensor, piece.elements);
      units[u].has_side &= codec.needs_weight ? tensor.has_weight : tensor.has_second_moment;
    }
  }
  const auto scale_to = [&units](double UnitProfile::*time, double whole) {
    double sum = 0.0;
    for (const auto& unit : units) sum += unit.*time;
    return sum > 0.0 ? whole / sum : 0.0;
  };
  const double encode = scale_to(&UnitProfile::encode, row.encode->median);
  const double decode = scale_to(&UnitProfile::decode, row.decode->median);
  for (auto& unit : units) {
    unit.encode *= encode;
    unit.decode *= decode;
    unit.decode_across *= decode;
  }
  return units;
}

/// The accumulated error of some tensors in the window where it is largest, and that window.
std::pair<double, std::size_t> worst_sum(const ReplayResult& replayed, std::span<const std::size_t> tensors) {
  std::pair<double, std::size_t> worst{-1.0, 0};
  for (std::size_t w = 0; w < replayed.windows.size(); ++w) {
    const std::size_t first = w * replayed.tensor_errors.size();
    double error = 0.0, energy = 0.0;
    for (const std::size_t tensor : tensors) {
      error += replayed.cumulative_error[first + tensor];
      energy += replayed.cumulative_energy[first + tensor];
    }
    const double nmse = cumulative_nmse(error, energy);
    if (!(nmse <= worst.first)) worst = {nmse, w};  // also where it is NaN
  }
  return worst;
}

/// The mean correlation between the errors e of two of a window's K steps, (|sum e|^2 - sum |e|^2) / ((K - 1) sum
/// |e|^2), in the window where it is largest. Empty where no window has two steps.
std::optional<double> error_correlation(const ReplayResult& replayed, std::span<const std::size_t> tensors) {
  std::optional<double> largest;
  for (std::size_t w = 0; w < replayed.windows.size(); ++w) {
    const auto [begin, end] = replayed.windows[w];
    if (end - begin < 2) continue;
    double of_steps = 0.0, of_sum = 0.0;
    for (std::size_t s = begin; s < end; ++s) of_steps += replayed.step_errors[s].sums.error;
    for (const std::size_t tensor : tensors)
      of_sum += replayed.cumulative_error[w * replayed.tensor_errors.size() + tensor];
    const double correlation =
        of_steps > 0.0 ? (of_sum - of_steps) / (static_cast<double>(end - begin - 1) * of_steps) : 0.0;
    if (!largest || std::isnan(correlation) || correlation > *largest) largest = correlation;  // NaN stays
  }
  return largest;
}

/// See ResultRow::lost_signs.
std::optional<double> lost_signs(const BenchCut& cut, const ReplayResult& replayed) {
  if (!scales_by_history(cut.source.info().optimizer)) return std::nullopt;
  constexpr std::uint64_t kOneIn = 100;
  double worst = 0.0;
  for (const std::size_t tensor : cut.selection.tensors) {
    const ErrorSums& sums = replayed.tensor_errors[tensor];
    if (kOneIn * cut.source.tensors()[tensor].elements >= cut.elements) worst = std::max(worst, sums.lost_signs());
  }
  return worst;
}

/// Sets what the optimizer makes of some tensors, in the windows where it is worst.
void set_updates(const ReplayResult& replayed, std::span<const std::size_t> tensors, ResultRow& row) {
  if (replayed.updates.empty()) return;
  for (std::size_t w = 0; w < replayed.windows.size(); ++w) {
    UpdateSums all;
    double distance = 0.0;
    for (const std::size_t tensor : tensors) {
      const UpdateSums& sums = replayed.updates[w * replayed.tensor_errors.size() + tensor];
      all.error += sums.error;
      all.energy += sums.energy;
      distance += sums.distance;
    }
    distance /= static_cast<double>(tensors.size());
    const auto keep_worst = [](std::optional<double>& worst, double value) {  // nothing is worse than no number
      if (!worst || (!std::isnan(*worst) && !(value <= *worst))) worst = value;
    };
    keep_worst(row.update_nmse, all.nmse());
    keep_worst(row.cosine_by_layer, distance);
  }
}

/// The errors of the worst windows, and the one by which the row is judged.
void set_worst(const ReplayResult& replayed, std::span<const std::size_t> tensors, bool adds_up, ResultRow& row) {
  std::pair<double, std::size_t> worst{-1.0, 0};
  for (std::size_t w = 0; w < replayed.windows.size(); ++w) {
    ErrorSums sums;
    for (std::size_t s = replayed.windows[w].begin; s < replayed.windows[w].end; ++s)
      sums.merge(replayed.step_errors[s].sums);
    if (!(sums.nmse() <= worst.first)) worst = {sums.nmse(), w};
  }
  // One window has the error of all steps, whose sums were added in another order.
  row.worst_nmse = replayed.windows.size() == 1 ? row.errors->nmse() : worst.first;
  std::size_t judges = worst.second;
  if (adds_up) {
    const auto sum = worst_sum(replayed, tensors);
    row.cumulative_nmse = sum.first;
    row.error_correlation = error_correlation(replayed, tensors);
    set_updates(replayed, tensors, row);
    if (delays(row.codec)) judges = sum.second;
  }
  row.worst_window = row.window_iterations[judges];
}

/// The errors of each step, where it is, and in which window.
void set_steps(const BenchCut& cut, const ReplayResult& replayed, std::vector<StepErrors> steps, ResultRow& row) {
  row.steps = std::move(steps);
  std::size_t window = 0;
  for (std::size_t step = 0; step < row.steps.size(); ++step) {
    if (step == replayed.windows[window].end) ++window;
    row.step_iterations.push_back(cut.source.steps()[step].iteration);
    row.step_windows.push_back(window);
  }
}

}  // namespace

std::string joined(const std::string& first, const std::string& second) {
  return first + (first.empty() || second.empty() ? "" : "; ") + second;
}

// A row of a tensor, or of all where there is none, with what is known before anything is measured. `units` are those
// that have it.
ResultRow RowMaker::start_row(const BenchCut& cut, const Measurement& m, const TensorInfo* tensor,
                              std::span<const Unit> units) const {
  ResultRow row{m.spec};
  row.run_id = run_.id;
  row.op = options_.op;
  if (tensor == nullptr) row.message = cut.remark;
  row.file = std::filesystem::path{cut.source.path()}.filename().string();
  row.model = cut.source.info().model;
  row.tensor = tensor == nullptr ? "all" : tensor->name;
  row.granularity = cut.name;
  row.elements = tensor == nullptr ? cut.elements : tensor->elements;
  row.first_step = cut.source.steps().front().iteration;
  row.last_step = cut.source.steps().back().iteration;
  row.stride = stride_of(cut.source.steps(), cut.source.steps().size());
  row.window_iterations = window_iterations_of(cut.source.steps(), cut.source.steps().size());
  row.windows = row.window_iterations.size();
  row.ranks = row.measured_ranks = run_.ranks;
  row.dtype = dtype_of(tensor == nullptr ? std::span{cut.source.tensors()} : std::span{tensor, 1});
  set_baseline(units, row);
  row.quantity = cut.source.info().quantity;
  row.averaged = cut.averaged;
  row.timing = m.timing;
  if (row.received()) return row;            // made elsewhere, in a way that is not known here
  row.scheme = options_.scheme_for(m.spec);  // as asked for where the codec cannot ride it: that row is skipped
  if (m.way) row.scheme = m.way->scheme;
  if (row.scheme == Scheme::automatic && m.status != ResultRow::Status::skipped) row.scheme = options_.resolved(m.spec);
  if (const int node = m.way ? m.way->node : options_.levelled(m.spec) ? options_.node : 1; node > 1) {
    row.level_node = row.measured_node = node;
    row.inner = options_.inside();
  }
  row.comm = options_.comm;
  row.device = options_.device;
  row.threads = run_.threads;
  row.processor = run_.processor;
  row.seed = options_.seed;
  row.pipeline = options_.pipeline_for(m.spec, m.timing);
  row.all_reduce = m.way && m.way->scheme != Scheme::sum ? "none" : options_.all_reduce_for(m.spec);
  // MPI has no type of 16 bits, so these ride our ring.
  if (row.comm == "mpi" && m.spec.name() == "none" && row.baseline_dtype != "f32" && row.all_reduce == "library")
    row.all_reduce = name_of(AllReduce::ring);
  return row;
}

ResultRow RowMaker::row_of_all(const BenchCut& cut, const Measurement& m) const {
  ResultRow row = start_row(cut, m, nullptr, cut.units);
  if (m.status != ResultRow::Status::ok) {
    row.status = m.status;
    row.message = m.message;
    return row;
  }
  const ReplayResult& replayed = m.result;
  ErrorSums all;
  for (const std::size_t tensor : cut.selection.tensors) all.merge(replayed.tensor_errors[tensor]);
  if (!std::isfinite(all.yy) || !std::isfinite(replayed.residual_energy)) {
    row.status = ResultRow::Status::not_finite;
    row.message = joined(row.message, "the result is not finite: values overflow in this codec, or in the sum");
  }
  row.message = joined(joined(row.message, replayed.note), m.clock_note);
  if (replayed.packets && replayed.packets->lost_first > 0.0)
    row.message = joined(row.message, lossy_channel_note(*replayed.packets));
  row.packets = replayed.packets;
  row.reached = replayed.reached;
  row.errors = all;
  set_worst(replayed, cut.selection.tensors, options_.adds_up(m.spec), row);
  if (options_.adds_up(m.spec)) row.lost_signs = lost_signs(cut, replayed);
  set_steps(cut, replayed, replayed.step_errors, row);
  if (!row.received() || replayed.bytes.payload > 0.0) row.bytes = replayed.bytes;
  row.level_node = row.measured_node = std::max(row.level_node, node_of(replayed));
  // The residual of two levels is that of a shard of a machine's mean.
  if (replayed.has_residual && replayed.gradient_energy > 0.0 && !row.inner)
    row.residual_ratio = std::sqrt(replayed.residual_energy / replayed.gradient_energy);
  if (!replayed.samples.empty()) {
    row.encode = summary_of(replayed.samples, m.rounds, 0);
    row.communicate = summary_of(replayed.samples, m.rounds, 1);
    row.decode = summary_of(replayed.samples, m.rounds, 2);
    if (m.timing == Timing::concurrent) row.total = summary_of(replayed.samples, m.rounds, 3);
    if (m.timing == Timing::isolated) row.units = units_of(cut, replayed, row);
    row.copy_rate = run_.copy_rate;
    row.samples = replayed.samples;
    row.rounds = m.rounds;
  }
  if (row.pipeline == 1) row.quality = m.quality;
  if (row.quality && row.quality->bias_nmse && row.quality->seed_units < cut.units.size()) {
    row.message = joined(row.message, fmt::format("bias and variance are those of {} of {} units",
                                                  row.quality->seed_units, cut.units.size()));
  }
  return row;
}

// Errors of each tensor, and its bytes where it is a unit of its own: what a bucket sends is not its tensors' apart.
void RowMaker::add_tensor_rows(const BenchCut& cut, const Measurement& m, std::vector<ResultRow>& rows) const {
  const ReplayResult& replayed = m.result;
  std::vector<std::size_t> unit_of(cut.source.tensors().size());
  for (std::size_t u = 0; u < cut.units.size(); ++u) {
    for (const auto& piece : cut.units[u].pieces) unit_of[piece.tensor] = u;
  }
  const int node = node_of(replayed);
  for (const std::size_t tensor : cut.selection.tensors) {
    ResultRow row = start_row(cut, m, &cut.source.tensors()[tensor], std::span{&cut.units[unit_of[tensor]], 1});
    row.level_node = row.measured_node = std::max(row.level_node, node);
    row.errors = replayed.tensor_errors[tensor];
    if (!std::isfinite(row.errors->yy)) row.status = ResultRow::Status::not_finite;
    if (options_.adds_up(m.spec)) {
      row.cumulative_nmse = worst_sum(replayed, std::span{&tensor, 1}).first;
      set_updates(replayed, std::span{&tensor, 1}, row);
    }
    std::vector<StepErrors> steps;
    for (std::size_t i = tensor; i < replayed.tensor_steps.size(); i += replayed.tensor_errors.size())
      steps.push_back(replayed.tensor_steps[i]);
    set_steps(cut, replayed, std::move(steps), row);
    const bool alone = cut.units[unit_of[tensor]].pieces.size() == 1;
    if (alone && !row.received()) row.bytes = replayed.units[unit_of[tensor]].bytes;
    if (!alone && !row.received())
      row.message = "it shares a bucket, whose bytes are not its own; --granularity tensor counts them";
    rows.push_back(std::move(row));
  }
}

std::vector<ResultRow> RowMaker::rows_of(const BenchCut& cut, const Measurement& m) const {
  std::vector<ResultRow> rows;
  const Timing first = options_.isolated ? Timing::isolated : Timing::concurrent;
  for (const auto& bad : cut.selection.skipped) {
    if (m.timing != first) break;
    const TensorInfo& info = cut.source.tensors()[bad.tensor];
    ResultRow row = start_row(cut, m, &info, {});
    row.status = ResultRow::Status::skipped;
    row.message = fmt::format("{} values are not finite, first at iteration {}, worker {}", bad.count,
                              cut.source.steps()[bad.first_step].iteration, bad.first_worker);
    rows.push_back(std::move(row));
  }
  rows.push_back(row_of_all(cut, m));
  if (options_.per_tensor && m.errors && m.status == ResultRow::Status::ok) add_tensor_rows(cut, m, rows);
  return rows;
}

}  // namespace gradtool
