#include "lib/bench/rows.hpp"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>

#include "lib/core/dtype.hpp"

namespace gradtool {
namespace {

Cell optional_cell(std::optional<double> value) {
  return value ? Cell{*value} : Cell{};
}
Cell integer(std::uint64_t value) {
  return static_cast<std::int64_t>(value);
}

/// A mean over steps: whole where every step had the same, so that it prints as a count.
Cell bytes_cell(double bytes) {
  if (bytes == std::floor(bytes)) return static_cast<std::int64_t>(bytes);
  return bytes;
}

/// Seconds of one phase (0 to 2) or of the whole (3), sample by sample.
std::vector<double> seconds_of(const std::vector<PhaseTimes>& samples, std::size_t phase) {
  std::vector<double> seconds(samples.size());
  std::transform(samples.begin(), samples.end(), seconds.begin(),
                 [phase](const PhaseTimes& sample) { return phase < 3 ? sample.phase[phase] : sample.total; });
  return seconds;
}

double median_of(const std::vector<PhaseTimes>& samples, std::size_t phase) {
  return summarise(seconds_of(samples, phase)).median;
}

void set_phase(RowBuilder& row, const std::string& name, const std::vector<PhaseTimes>& samples, std::size_t phase) {
  const Summary s = summarise(seconds_of(samples, phase));
  row.set(name + "_us_median", s.median * 1e6).set(name + "_us_p95", s.p95 * 1e6);
  row.set(name + "_us_min", s.min * 1e6).set(name + "_noise", s.noise);
}

/// raw / seconds in 1e9 bytes a second; empty when nothing was done that a clock could see.
Cell rate(double bytes, double seconds) {
  return seconds > 0.0 && bytes > 0.0 ? Cell{bytes / seconds / 1e9} : Cell{};
}

}  // namespace

RowBuilder start_row(const Table& table, const RunFacts& facts, const CodecSpec& spec, Timing timing,
                     const std::string& tensor, std::uint64_t elements) {
  const GradientReader& reader = *facts.reader;
  const BenchOptions& options = *facts.options;
  RowBuilder row{table};
  Scheme scheme = options.scheme_for(spec);  // kept as asked for where the codec cannot ride it: that row is skipped
  if (scheme == Scheme::automatic) scheme = resolve(scheme, spec);
  const bool silent = spec.descriptor->aggregation == Aggregation::none;
  row.set("schema_version", std::int64_t{1}).set("run_id", facts.run_id).set("status", std::string{"ok"});
  if (tensor == "all" && !facts.remark.empty()) row.set("message", facts.remark);
  row.set("codec", spec.name()).set("params", spec.params_text());
  row.set("aggregation", std::string{silent ? "none" : name_of(scheme)});
  row.set("file", std::filesystem::path{reader.path()}.filename().string()).set("model", reader.info().model);
  row.set("tensor", tensor).set("granularity", options.granularity.text()).set("elements", integer(elements));
  row.set("first_step", reader.steps().front().iteration).set("last_step", reader.steps().back().iteration);
  row.set("ranks", std::int64_t{facts.ranks}).set("comm", options.comm).set("device", options.device);
  row.set("threads", std::int64_t{facts.threads});
  const bool fits = options.seed <= static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
  row.set("seed", fits ? integer(options.seed) : Cell{std::to_string(options.seed)});
  std::string dtype;
  for (const auto& info : reader.tensors()) {
    if (tensor != "all" && info.name != tensor) continue;
    const std::string name{name_of(info.dtype)};
    dtype = dtype.empty() || dtype == name ? name : "mixed";
  }
  row.set("dtype", dtype).set("time_source", std::string{"measured"});
  row.set("timing", std::string{timing == Timing::isolated ? "isolated" : "concurrent"});
  row.set("pipeline", std::int64_t{facts.pipeline});
  row.set("all_reduce", std::string{facts.options->all_reduce_for(spec)});
  row.set("raw_bytes", integer(4 * elements));
  return row;
}

void set_errors(RowBuilder& row, const ErrorSums& sums, double cumulative_error, double cumulative_energy) {
  row.set("nmse", sums.nmse()).set("snr_db", sums.snr_db()).set("cosine", optional_cell(sums.cosine()));
  row.set("relative_bias", optional_cell(sums.relative_bias())).set("max_abs_error", sums.largest_error);
  row.set("sign_agreement", optional_cell(sums.sign_agreement())).set("zeroed_fraction", sums.zeroed_fraction());
  row.set("psnr_db", optional_cell(sums.psnr_db())).set("nrmse", optional_cell(sums.nrmse()));
  row.set("cumulative_nmse", cumulative_energy > 0.0   ? cumulative_error / cumulative_energy
                             : cumulative_error == 0.0 ? 0.0
                                                       : std::numeric_limits<double>::infinity());
}

void set_bytes(RowBuilder& row, const RunFacts& facts, const ReplayResult& result) {
  const double raw = 4.0 * static_cast<double>(facts.elements);
  const double p = facts.ranks;
  row.set("payload_bytes", bytes_cell(result.payload_bytes)).set("wire_bytes_per_rank", bytes_cell(result.wire_bytes));
  row.set("bits_per_element", 8.0 * result.payload_bytes / static_cast<double>(facts.elements));
  if (result.values_sent > 0.0) row.set("element_ratio", static_cast<double>(facts.elements) / result.values_sent);
  if (result.payload_bytes > 0.0) row.set("payload_ratio", raw / result.payload_bytes);
  if (result.wire_bytes > 0.0) row.set("wire_ratio", 2.0 * (p - 1.0) / p * raw / result.wire_bytes);
  if (result.has_residual && result.gradient_energy > 0.0) {
    row.set("residual_ratio", std::sqrt(result.residual_energy / result.gradient_energy));
  }
}

void set_times(RowBuilder& row, const RunFacts& facts, const ReplayResult& bytes,
               const std::vector<PhaseTimes>& samples, const CodecSpec& spec, Timing timing) {
  if (samples.empty()) return;
  set_phase(row, "encode", samples, 0);
  set_phase(row, "comm", samples, 1);
  set_phase(row, "decode", samples, 2);
  const double raw = 4.0 * static_cast<double>(facts.elements);
  const double p = facts.ranks;
  row.set("samples", integer(samples.size())).set("wire_gbps", rate(bytes.wire_bytes, median_of(samples, 1)));
  row.set("copy_gbps", facts.copy_rate / 1e9);
  if (timing == Timing::concurrent) {
    set_phase(row, "total", samples, 3);
    const Cell algbw = rate(raw, median_of(samples, 3));
    row.set("algbw_gbps", algbw);
    if (p > 1.0) row.set("busbw_gbps", std::get<double>(algbw) * 2.0 * (p - 1.0) / p);
    return;
  }
  // The baselines neither encode nor decode: a rate would be that of the clock.
  const double encode = median_of(samples, 0);
  const double decode = median_of(samples, 2);
  const bool encodes = spec.descriptor->name != "none" && spec.descriptor->name != "noop";
  // A sum is decoded once, a gather p times; hop decodes p-1 segments on the way and all p at the end.
  const Scheme scheme = resolve(facts.options->scheme_for(spec), spec);
  const double payloads_decoded = scheme == Scheme::gather ? p : scheme == Scheme::hop ? (2.0 * p - 1.0) / p : 1.0;
  if (!encodes) return;
  row.set("encode_gbps", rate(raw, encode)).set("decode_gbps", rate(raw, decode));
  row.set("encode_share", (raw + bytes.payload_bytes) / encode / (2.0 * facts.copy_rate));
  row.set("decode_share", (payloads_decoded * bytes.payload_bytes + 2.0 * raw) / decode / (2.0 * facts.copy_rate));
}

void set_quality(RowBuilder& row, const CodecQuality& quality) {
  row.set("codec_nmse", quality.nmse).set("bias_nmse", optional_cell(quality.bias_nmse));
  row.set("variance_nmse", optional_cell(quality.variance_nmse));
}

}  // namespace gradtool
