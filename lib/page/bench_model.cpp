#include "lib/page/bench_model.hpp"
#include "lib/advice/terminal.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <set>

#include "lib/advice/own_trial.hpp"
#include "lib/page/sweep.hpp"

namespace gradtool {
namespace {

constexpr int kUsualNodes = 32;

bool is_timed(const ResultRow& row) {
  return row.status == ResultRow::Status::ok && row.timing == Timing::isolated && !row.units.empty() && row.bytes &&
         row.encode && row.decode;
}

}  // namespace

BenchModel::BenchModel(const BenchSource& source, const FigureOptions& options)
    : record{source.record}, options_{options}, several_cuts_{has_several_granularities(record.rows)} {
  for (const ResultRow& row : record.rows) {
    if (!row.modelled()) measured.push_back(row);
  }
  synthetic = !record.rows.empty() && record.rows.front().granularity.starts_with("size:");
  choose_networks();
  leave_out_slower_ways();
  model_as_asked();
  choose_unit();
  if (synthetic) return;
  if (options_.acceptance.trials && !record.rows.empty())
    options_.acceptance.trials->expect_same_model(record.rows.front().file, record.rows.front().elements);
  advice = advice_of(modelled, options_.acceptance);
  sweep();
}

std::string BenchModel::name(const ResultRow& row) const {
  return full_name(row, several_cuts_);
}

bool BenchModel::can_model() const {
  return std::any_of(measured.begin(), measured.end(), is_timed);
}

bool BenchModel::has_codecs() const {
  return std::any_of(measured.begin(), measured.end(), [](const ResultRow& row) {
    return row.errors && row.codec.name() != "none" && row.codec.name() != "noop";
  });
}

void BenchModel::choose_networks() {
  networks = options_.networks;
  nodes = options_.nodes;
  std::set<std::string> seen;
  std::set<int> counts;
  for (const ResultRow& row : record.rows) {
    if (row.iteration && compute.seconds == 0.0) {
      compute = {.seconds = row.iteration->compute_seconds,
                 .low = row.iteration->compute_low,
                 .high = row.iteration->compute_high};
      overlap_ = row.iteration->overlap;
      backward_ = row.iteration->backward;
    }
    if (!row.modelled()) continue;
    record_has_models_ = true;
    library_ = row.network;
    if (options_.networks.empty() && seen.insert(row.network->name).second) networks.push_back(*row.network);
    if (options_.nodes.empty()) counts.insert(row.ranks / row.network->node);
  }
  if (networks.empty()) {
    for (const char* usual : {"1gbe", "10gbe", "100gbe"}) networks.push_back(Network::parse(usual));
  }
  for (Network& network : networks) {
    if (!library_) break;
    network.library = library_->library;
    network.under_hook = library_->under_hook;
  }
  if (nodes.empty()) nodes.assign(counts.begin(), counts.end());
  if (nodes.empty()) nodes = {kUsualNodes};
  usual_nodes = *std::min_element(nodes.begin(), nodes.end(), [](int a, int b) {
    return std::abs(std::log(a / double{kUsualNodes})) < std::abs(std::log(b / double{kUsualNodes}));
  });
}

std::vector<ResultRow> BenchModel::modelled_for(const std::vector<Network>& on,
                                                const std::vector<int>& machines) const {
  std::vector<ResultRow> rows;
  for (const ResultRow& row : measured) {
    if (is_timed(row)) rows.push_back(row);
  }
  const auto timed = static_cast<std::ptrdiff_t>(rows.size());
  add_modelled(rows, {.networks = on,
                      .machines = machines,
                      .tensor_bytes = tensor_bytes_,
                      .compute = compute,
                      .overlap = overlap_,
                      .backward = backward_});
  rows.erase(rows.begin(), rows.begin() + timed);
  return rows;
}

bool BenchModel::as_recorded() const {
  return record_has_models_ && options_.networks.empty() && options_.nodes.empty();
}

void BenchModel::model_as_asked() {
  read_tensor_bytes();
  if (as_recorded()) {
    std::vector<std::size_t> places;
    for (std::size_t i = 0; i < record.rows.size(); ++i) {
      if (!record.rows[i].modelled()) continue;
      modelled.push_back(record.rows[i]);
      places.push_back(record.place[i]);
    }
    add_what_is_not_written();
    std::vector<std::string> columns;
    for (const auto& column : record.table.columns()) columns.push_back(column.name);
    modelled_cells = selected(record.table, columns, places);
  } else if (can_model()) {
    modelled = modelled_for(networks, nodes);
    set_verdicts(modelled);
    modelled_cells = to_table(modelled);
  }
}

/// To recorded rows, what add_modelled() knew of them when the bench ran, but does not write down.
void BenchModel::add_what_is_not_written() {
  const std::vector<ResultRow> again = modelled_for(networks, nodes);
  for (ResultRow& row : modelled) {
    const auto same = std::find_if(again.begin(), again.end(), [&](const ResultRow& other) {
      return same_method(other, row) && same_way(other, row) && other.ranks == row.ranks &&
             other.network->name == row.network->name;
    });
    if (same == again.end()) continue;
    row.units = same->units;
    // Codec times of another machine are the row's own, while units were written as measured.
    for (UnitProfile& profile : row.units) {
      if (same->encode->median > 0.0) profile.encode *= row.encode->median / same->encode->median;
      if (same->decode->median > 0.0) profile.decode *= row.decode->median / same->decode->median;
    }
    row.measured_ranks = same->measured_ranks;
    row.measured_node = same->measured_node;
    if (!row.gate_bytes) row.gate_bytes = same->gate_bytes;
    if (!tensor_bytes_.empty()) row.tensorwise_seconds = same->tensorwise_seconds;
  }
}

/// Also those that only a link of some other speed would prefer stay.
void BenchModel::leave_out_slower_ways() {
  std::vector<ResultRow> rows = record.rows;
  const auto add = [&rows](std::vector<ResultRow> more) { rows.insert(rows.end(), more.begin(), more.end()); };
  add(modelled_for(networks, nodes));
  if (can_model()) add(modelled_for(links_of_every_speed(), {usual_nodes}));
  std::vector<ResultRow> kept;
  std::vector<std::size_t> places;
  for (const std::size_t i : rows_of_best_ways(rows, options_.acceptance)) {
    if (i >= record.rows.size()) break;
    kept.push_back(record.rows[i]);
    places.push_back(record.place[i]);
  }
  record.rows = std::move(kept);
  record.place = std::move(places);
  measured.clear();
  for (const ResultRow& row : record.rows) {
    if (!row.modelled()) measured.push_back(row);
  }
}

void BenchModel::read_tensor_bytes() {
  if (record.rows.empty()) return;
  const Table& table = record.table;
  for (std::size_t i = 0; i < table.rows().size(); ++i) {
    if (text_at(table, i, "codec") != "none" || text_at(table, i, "tensor") == "all" ||
        text_at(table, i, "timing") != "isolated" || text_at(table, i, "status") != "ok" ||
        text_at(table, i, "granularity") != record.rows.front().granularity)
      continue;
    tensor_bytes_.push_back(number_at(table, i, "raw_bytes").value_or(0.0));
  }
}

/// From the times of uncompressed steps on the networks, their geometric mean.
void BenchModel::choose_unit() {
  double sum = 0.0;
  std::size_t count = 0;
  for (const ResultRow& row : modelled) {
    const double seconds = judged_seconds(row);
    if (row.codec.name() != "none" || !std::isfinite(seconds)) continue;
    sum += std::log(seconds);
    ++count;
  }
  if (count > 0) unit = time_unit_for(std::exp(sum / static_cast<double>(count)));
}

std::vector<Network> BenchModel::links_of_every_speed() const {
  const LatencyCurve latencies{networks};
  std::vector<Network> links;
  for (std::size_t i = 0; i < kSweepSpeeds; ++i) {
    Network network = networks.front();  // with its ranks of a machine and what joins them
    network.name = fmt::format("{} Gbit/s", i);
    network.link = {.alpha = latencies.at(sweep_speed(i)), .beta = sweep_speed(i) * 1e9 / 8.0};
    links.push_back(network);
  }
  return links;
}

void BenchModel::sweep() {
  if (!can_model()) return;
  latency_words = LatencyCurve{networks}.words();
  swept_ = modelled_for(links_of_every_speed(), {usual_nodes});
  swept_advice = advice_of(swept_, options_.acceptance);
}

}  // namespace gradtool
