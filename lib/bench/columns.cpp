// The table of columns, and the formulas of those that follow from others.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <type_traits>

#include "lib/bench/result.hpp"

namespace gradtool {
namespace {

template <class T>
Cell to_cell(const T& value) {
  if constexpr (std::is_convertible_v<T, std::string_view>) {
    return std::string{std::string_view{value}};
  } else if constexpr (std::is_integral_v<T> && !std::is_same_v<T, bool>) {
    return static_cast<std::int64_t>(value);
  } else {
    return value;
  }
}
template <class T>
Cell to_cell(const std::optional<T>& value) {
  return value ? to_cell(*value) : Cell{};
}

/// `value` of a group that the row may lack: empty without the group.
template <class Group, class Value>
Cell from(const std::optional<Group>& group, Value value) {
  return group ? to_cell(std::invoke(value, *group)) : Cell{};
}

/// `value` of a row that was made here; empty for what another program made (--received), of which it is not known.
template <class Value>
auto from_here(Value value) {
  return [value](const ResultRow& row) { return row.received() ? Cell{} : to_cell(std::invoke(value, row)); };
}

/// Text that is left out where it is empty.
Cell unless_empty(const std::string& text) {
  return text.empty() ? Cell{} : Cell{text};
}

/// A mean over steps: an integer where every step had the same, so that it prints as a count.
Cell count_if_whole(double bytes) {
  if (bytes == std::floor(bytes)) return static_cast<std::int64_t>(bytes);
  return bytes;
}

std::optional<double> positive_ratio(double above, double below) {
  return below > 0.0 ? std::optional{above / below} : std::nullopt;
}

/// 1e9 bytes a second; empty where the clock saw nothing.
std::optional<double> rate(double bytes, const std::optional<PhaseSummary>& phase) {
  if (!phase || !(phase->median > 0.0) || !(bytes > 0.0)) return std::nullopt;
  return bytes / phase->median / 1e9;
}

class Columns {
 public:
  /// `value` is called with a row; it may return anything that to_cell takes.
  template <class Value>
  void add(std::string name, std::string meaning, Value value) {
    columns_.push_back({std::move(name), std::move(meaning),
                        [value](const ResultRow& row) { return to_cell(std::invoke(value, row)); }});
  }
  /// The four columns of a phase; `what` says what it does in a step.
  void add_phase(const std::string& name, const std::string& what, std::optional<PhaseSummary> ResultRow::*phase) {
    const auto microseconds = [](std::optional<double> seconds) {
      return seconds ? std::optional{*seconds * 1e6} : std::nullopt;
    };
    add(name + "_us_median", "microseconds a step to " + what + ", slowest rank: median over samples",
        [=](const ResultRow& row) { return from(row.*phase, [=](auto& p) { return microseconds(p.median); }); });
    add(name + "_us_p95", "the same, 95th percentile",
        [=](const ResultRow& row) { return from(row.*phase, [=](auto& p) { return microseconds(p.p95); }); });
    add(name + "_us_min", "the same, smallest",
        [=](const ResultRow& row) { return from(row.*phase, [=](auto& p) { return microseconds(p.min); }); });
    add(name + "_noise", "standard deviation / mean of the samples",
        [=](const ResultRow& row) { return from(row.*phase, &PhaseSummary::noise); });
    add(name + "_us_low", "where the median lies with 95 % confidence, from here; empty for fewer than 5 samples",
        [=](const ResultRow& row) { return from(row.*phase, [=](auto& p) { return microseconds(p.low); }); });
    add(name + "_us_high", "and to here",
        [=](const ResultRow& row) { return from(row.*phase, [=](auto& p) { return microseconds(p.high); }); });
  }
  [[nodiscard]] std::vector<ResultColumn> take() { return std::move(columns_); }

 private:
  std::vector<ResultColumn> columns_;
};

/// Seeds beyond the range of a cell's integers are written as text, which reads the same.
Cell seed_cell(std::uint64_t seed) {
  const bool fits = seed <= static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
  return fits ? to_cell(seed) : Cell{std::to_string(seed)};
}

std::vector<ResultColumn> make_columns() {
  using Row = const ResultRow&;
  using Bytes = StepBytes;
  Columns c;
  c.add("schema_version", "of this table; within a version columns are only ever added",
        [](Row) { return kBenchSchema; });
  c.add("run_id", "names the run: time and process, the same in every row", &ResultRow::run_id);
  c.add("status", "ok, skipped, failed, or not_finite: measured, but the result has NaN or infinity",
        [](Row r) { return name_of(r.status); });
  c.add("message", "why, when it is not ok; else a remark", [](Row r) { return unless_empty(r.message); });
  c.add("codec", "bare name; received: means of another program (--received)", [](Row r) { return r.codec.name(); });
  c.add("params", "key=value,... with defaults filled in; default: the codec has no parameters", [](Row r) {
    std::string params = r.codec.params_text();
    return params.empty() ? std::string{"default"} : params;
  });
  c.add("aggregation", "way taken: sum, gather, hop, alltoall, own (several collectives), none", from_here([](Row r) {
          return r.codec.descriptor->aggregation == Aggregation::none ? "none" : name_of(r.scheme);
        }));
  c.add("file", "input file, its name without folders", &ResultRow::file);
  c.add("model", "from the file", &ResultRow::model);
  c.add("tensor", "a tensor's name, or all", &ResultRow::tensor);
  c.add("granularity", "what is reduced in one piece: tensor, bucket:SIZE, model; size:SIZE of synthetic gradients",
        &ResultRow::granularity);
  c.add("elements", "gradient elements the row covers, one step", &ResultRow::elements);
  c.add("first_step", "training iteration of the first step replayed", &ResultRow::first_step);
  c.add("last_step", "and of the last", &ResultRow::last_step);
  c.add("ranks", "ranks that were averaged", &ResultRow::ranks);
  c.add("comm", "threads, mpi, udp, nccl, loopback; model for modelled rows", from_here(&ResultRow::comm));
  c.add("device", "cpu or cuda:i", from_here(&ResultRow::device));
  c.add("threads", "threads of one rank for encode and decode", from_here(&ResultRow::threads));
  c.add("dtype", "of the gradients as captured", &ResultRow::dtype);
  c.add("quantity", "what is replayed: gradient, pseudo_gradient, weight, weight_delta or activation",
        &ResultRow::quantity);
  c.add("averaged",
        "true where gradients were averaged over the ranks before, so that errors of their mean say nothing",
        &ResultRow::averaged);
  c.add("seed", "of the random draws", from_here([](Row r) { return seed_cell(r.seed); }));
  c.add("network", "name of the network, for modelled rows", [](Row r) { return from(r.network, &Network::name); });
  c.add("alpha_us", "latency of a message in that network",
        [](Row r) { return from(r.network, [](auto& n) { return n.link.alpha * 1e6; }); });
  c.add("link_gbit_s", "rate of a link in that network, each way",
        [](Row r) { return from(r.network, [](auto& n) { return n.link.beta * 8e-9; }); });
  c.add("node", "ranks that share a link, in that network", [](Row r) { return from(r.network, &Network::node); });
  c.add("time_source", "measured or modelled", [](Row r) { return r.modelled() ? "modelled" : "measured"; });
  c.add("timing", "isolated: one rank encodes at a time; concurrent: all at once; of received the first one asked for",
        [](Row r) { return r.timing == Timing::isolated ? "isolated" : "concurrent"; });
  c.add("pipeline", "chunks of a unit whose phases overlap; 1: none do", &ResultRow::pipeline);
  c.add("compute_ms",
        "milliseconds of forward, backward and update in one iteration on one rank, where iterations are modelled",
        [](Row r) { return from(r.iteration, [](auto& i) { return i.compute_seconds * 1e3; }); });
  c.add("overlap", "of communication with the backward pass, in modelled iterations: none or bucket", [](Row r) {
    return from(r.iteration, [](auto& i) { return i.overlap == Overlap::bucket ? "bucket" : "none"; });
  });
  c.add("all_reduce",
        "how sums are added: ring, doubling, auto, server or transpose; library: as MPI or NCCL do; none: nothing is "
        "added; empty in modelled rows",
        from_here([](Row r) { return r.modelled() ? Cell{} : Cell{r.all_reduce}; }));
  c.add("op", "all-reduce, reduce-scatter, all-gather or all-to-all", [](Row r) { return name_of(r.op); });
  c.add("levels", "of an all-reduce in two levels, by --levels or of the codec itself: ranks of a machine, as node=8",
        [](Row r) { return r.level_node > 1 ? Cell{"node=" + std::to_string(r.level_node)} : Cell{}; });
  c.add("codec_inner", "with --levels: the codec inside machines, with its parameters", [](Row r) {
    if (!r.inner) return Cell{};
    const std::string params = r.inner->params_text();
    return Cell{r.inner->name() + (params.empty() ? "" : ":") + params};
  });
  c.add("raw_bytes", "of the elements in baseline_dtype: what an uncompressed collective is handed",
        [](Row r) { return count_if_whole(r.raw_bytes()); });
  c.add("payload_bytes", "what a rank's encoder wrote in a step, mean over steps and ranks",
        [](Row r) { return from(r.bytes, [](const Bytes& b) { return count_if_whole(b.payload); }); });
  c.add("payload_bytes_max", "the same of the rank that wrote most, mean over steps",
        from_here([](Row r) { return from(r.bytes, [](const Bytes& b) { return count_if_whole(b.payload_max); }); }));
  c.add("wire_bytes_per_rank",
        "what the communicator counted as sent by one rank in a step: largest over ranks, mean over steps",
        from_here([](Row r) {
          // A model's bytes are no count, even where they happen to be whole.
          const bool counted = !r.modelled();
          return from(r.bytes, [counted](const Bytes& b) {
            return counted ? count_if_whole(b.wire_per_rank) : Cell{b.wire_per_rank};
          });
        }));
  c.add("element_ratio",
        "elements that a rank encoded (of an all-gather its shard) / values that it sent, mean over steps and ranks",
        &ResultRow::element_ratio);
  c.add("element_ratio_max", "the same of the rank that sent fewest", &ResultRow::element_ratio_max);
  c.add("payload_ratio", "raw_bytes / payload_bytes; of an all-gather, those of a shard", &ResultRow::payload_ratio);
  c.add("wire_ratio",
        "bytes of the uncompressed collective, 2(p-1)/p raw_bytes for an all-reduce and half for the others, / "
        "wire_bytes_per_rank",
        &ResultRow::wire_ratio);
  c.add("delivered_least", "smallest share of a tensor that a message delivered, of all ranks; udp alone loses any",
        [](Row r) { return from(r.packets, &PacketShares::delivered_least); });
  c.add("lost_first", "share of packets that had not arrived when all had been sent once, of the worst rank; udp alone",
        [](Row r) { return from(r.packets, &PacketShares::lost_first); });
  c.add("repeated", "share of datagrams that repeat one, of the worst rank; udp alone",
        [](Row r) { return from(r.packets, &PacketShares::repeated); });
  c.add("bits_per_element", "8 payload_bytes / elements", &ResultRow::bits_per_element);
  c.add("wire_bytes_inside",
        "of wire_bytes_per_rank, what is sent inside machines, in two levels; units below a gate go in one",
        [](Row r) { return r.level_node > 1 ? from(r.bytes, &Bytes::wire_inside) : Cell{}; });
  c.add("wire_bytes_across",
        "of wire_bytes_per_rank, what is sent between machines, in two levels; units below a gate go in one",
        [](Row r) { return r.level_node > 1 ? from(r.bytes, &Bytes::wire_across) : Cell{}; });
  c.add("nmse", "sum (x-y)^2 / sum x^2, x the exact mean over ranks, y the result, over all steps",
        [](Row r) { return from(r.errors, &ErrorSums::nmse); });
  c.add("snr_db", "-10 log10 nmse", [](Row r) { return from(r.errors, &ErrorSums::snr_db); });
  c.add("cosine", "x.y / (|x| |y|)", [](Row r) { return from(r.errors, &ErrorSums::cosine); });
  c.add("relative_bias", "x.y / x.x - 1", [](Row r) { return from(r.errors, &ErrorSums::relative_bias); });
  c.add("max_abs_error", "largest |x-y|", [](Row r) { return from(r.errors, &ErrorSums::largest_error); });
  c.add("sign_agreement", "share of the elements with y != 0 whose sign is x's",
        [](Row r) { return from(r.errors, &ErrorSums::sign_agreement); });
  c.add("zeroed_fraction", "share of elements with y = 0 and x != 0",
        [](Row r) { return from(r.errors, &ErrorSums::zeroed_fraction); });
  c.add("psnr_db", "-20 log10 nrmse; flatters heavy tails", [](Row r) { return from(r.errors, &ErrorSums::psnr_db); });
  c.add("nrmse", "root mean square error / (max x - min x)", [](Row r) { return from(r.errors, &ErrorSums::nrmse); });
  c.add("cumulative_nmse", "nmse of the sums of x and y over all steps of a window, largest of all windows",
        &ResultRow::cumulative_nmse);
  c.add("error_correlation",
        "mean correlation of the errors y-x of two steps of a window, of all tensors, largest of all windows; "
        "0: they are independent, and cancel",
        &ResultRow::error_correlation);
  c.add(
      "lost_signs",
      "share of elements that come as 0, with the other sign, or as a value in the place of 0, in the tensor where it "
      "is largest, of those with 1 % of all elements; only where the file's optimizer is not SGD",
      &ResultRow::lost_signs);
  c.add("update_nmse",
        "nmse of the updates that the optimizer makes of x and of y, largest of all windows; --update-error alone",
        &ResultRow::update_nmse);
  c.add("cosine_by_layer",
        "1 - cosine between sums of x and of y over the first 8 steps of a window, mean over tensors, largest of all "
        "windows; --update-error alone",
        &ResultRow::cosine_by_layer);
  c.add("residual_ratio", "norm of what rank 0 holds back / norm of its gradients, pooled over steps",
        &ResultRow::residual_ratio);
  c.add("codec_nmse",
        "nmse of one rank's decode(encode(x)) alone, first step, no residual; empty where ranks only work together",
        [](Row r) { return from(r.quality, &CodecQuality::nmse); });
  c.add("bias_nmse",
        "for unbiased codecs, squared bias over 30 seeds / sum x^2, first step, sampling error taken off; of a large "
        "gradient its first units",
        [](Row r) { return from(r.quality, &CodecQuality::bias_nmse); });
  c.add("variance_nmse",
        "for unbiased codecs, variance over 30 seeds / sum x^2, first step; of a large gradient its first units",
        [](Row r) { return from(r.quality, &CodecQuality::variance_nmse); });
  c.add_phase("encode", "encode, error feedback included", &ResultRow::encode);
  c.add_phase("comm", "communicate", &ResultRow::communicate);
  c.add_phase("decode", "decode all ranks' payloads and average", &ResultRow::decode);
  c.add_phase("total", "do all of it, all ranks at once", &ResultRow::total);
  c.add("samples", "steps timed", [](Row r) { return r.samples.empty() ? Cell{} : to_cell(r.samples.size()); });
  c.add("iteration_ms", "milliseconds of a modelled iteration: computation, codec and communication",
        [](Row r) { return from(r.iteration, [](auto& i) { return i.seconds * 1e3; }); });
  const auto add_end = [&c](const char* name, const char* end, std::optional<double> ResultRow::Iteration::*seconds) {
    c.add(name, fmt::format("{} end of the 95 % interval of iteration_ms, by the noise of encoding and decoding", end),
          [seconds](Row r) {
            return r.iteration && *r.iteration.*seconds ? Cell{*(*r.iteration.*seconds) * 1e3} : Cell{};
          });
  };
  add_end("iteration_low_ms", "lower", &ResultRow::Iteration::low);
  add_end("iteration_high_ms", "upper", &ResultRow::Iteration::high);
  c.add("encode_gb_s", "4 x elements / encode time, 1e9 bytes a second: codecs read float32", &ResultRow::encode_gb_s);
  c.add("decode_gb_s", "4 x elements / decode time", &ResultRow::decode_gb_s);
  c.add("algbw_gb_s", "raw_bytes / total time", &ResultRow::algbw_gb_s);
  c.add("busbw_gb_s", "algbw_gb_s x 2(p-1)/p for an all-reduce, x (p-1)/p for the others", &ResultRow::busbw_gb_s);
  c.add("wire_gb_s", "wire_bytes_per_rank / communication time", &ResultRow::wire_gb_s);
  c.add("copy_gb_s", "memcpy with the row's threads, measured in this run",
        [](Row r) { return r.samples.empty() ? Cell{} : Cell{r.copy_rate / 1e9}; });
  c.add("encode_share",
        "(4 x elements + payload bytes) / encode time / (2 copy_gb_s): what it moves, as a share of the 2 n bytes that "
        "a copy of n moves",
        &ResultRow::encode_share);
  c.add("decode_share", "(payloads + 8 x elements) / decode time / (2 copy_gb_s), likewise", &ResultRow::decode_share);
  c.add("speedup_vs_none", "total time of none / total time of this row",
        [](Row r) { return r.verdict.speedup_vs_none; });
  c.add("headroom_vs_noop", "total time of this row / total time of noop",
        [](Row r) { return r.verdict.headroom_vs_noop; });
  c.add("breakeven_gbit_s",
        "speed of the network's links below which the codec beats none, by the model, for the row's ranks; 0: nowhere, "
        "inf: everywhere",
        [](Row r) { return r.verdict.breakeven_gbit_s; });
  c.add("breakeven_from_gbit_s",
        "speed above which it does so: 0 but where the codec sends more bytes in fewer messages, or computes less",
        [](Row r) { return r.verdict.breakeven_from; });
  c.add("breakeven_low_gbit_s", "where it lies with 95 % confidence of the times of both, from here",
        [](Row r) { return r.verdict.breakeven_low; });
  c.add("breakeven_high_gbit_s", "and to here", [](Row r) { return r.verdict.breakeven_high; });
  c.add("pareto",
        "the error is finite, and no other row with this timing, network and ranks is better in error or time and no "
        "worse in the other; empty for noop",
        [](Row r) { return r.verdict.pareto; });
  c.add("reached",
        "false where only a warm-up, a sampling phase or a fall-back was at work, not the method: message says which",
        from_here([](Row r) { return r.errors ? Cell{r.reached} : Cell{}; }));
  c.add("scaling_efficiency", "compute_ms / iteration_ms: throughput of a rank against one rank alone",
        &ResultRow::scaling_efficiency);
  c.add("iteration_speedup_vs_none", "iteration_ms of none / iteration_ms of this row",
        [](Row r) { return r.verdict.iteration_speedup_vs_none; });
  c.add("baseline_dtype", "in which none reduces gradients: f32, f16, bf16, or mixed, tensor by tensor",
        &ResultRow::baseline_dtype);
  const auto captured = [](double ResultRow::Iteration::*seconds) {
    return [seconds](Row r) {
      return r.iteration && r.iteration->compute_low > 0.0 ? Cell{(*r.iteration).*seconds * 1e3} : Cell{};
    };
  };
  c.add("processor", "name of the CPU or GPU that encoded and decoded",
        [](Row r) { return unless_empty(r.processor); });
  c.add("compute_low_ms", "compute_ms of the fastest captured step; empty where the time was given",
        captured(&ResultRow::Iteration::compute_low));
  c.add("compute_high_ms", "and of the slowest", captured(&ResultRow::Iteration::compute_high));
  c.add("gate_bytes",
        "in modelled rows, raw bytes of a unit from which on the codec beats none; 0: at any size, inf: at none",
        [](Row r) { return r.gate_bytes; });
  c.add("gated_share", "part of the raw bytes in units below the gate, which a modelled step sends uncompressed",
        [](Row r) { return r.gate_bytes ? Cell{r.gated_share} : Cell{}; });
  c.add("library",
        "what carries the collectives of a modelled row: best (the best known algorithms), nccl, gloo, mpi, or hook "
        "over gloo or nccl, where none rides that library itself",
        [](Row r) { return from(r.network, [](const Network& n) { return library_text(n); }); });
  c.add("messages", "messages that one rank sends in a modelled step, of the rank that sends most",
        &ResultRow::messages);
  c.add("readiness",
        "when gradients of modelled iterations are ready: as captured, or in proportion to elements, where the file "
        "does not say",
        [](Row r) { return from(r.iteration, [](auto& i) { return i.backward.captured ? "captured" : "elements"; }); });
  c.add("backward_share",
        "the backward pass whose gradients are sent, as a share of compute_ms, in modelled iterations",
        [](Row r) { return from(r.iteration, [](auto& i) { return i.backward.share; }); });
  c.add("codec_times",
        "where encode and decode times come from: measured in this run, record (--codec-speed FILE: another machine's "
        "run), or floor (--codec-speed floor:3000: what the memory needs at least)",
        [](Row r) { return r.encode ? Cell{std::string{name_of(r.codec_times)}} : Cell{}; });
  c.add("stride", "training iterations from one captured step to the next: capture --every",
        [](Row r) { return r.errors ? Cell{r.stride} : Cell{}; });
  c.add("windows", "runs of captured steps at that distance; codecs begin anew with each",
        [](Row r) { return r.errors ? Cell{static_cast<std::int64_t>(r.windows)} : Cell{}; });
  c.add("worst_nmse", "as nmse, of the window where it is largest", &ResultRow::worst_nmse);
  c.add("worst_window_first_step",
        "training iteration with which the window begins where the error is largest by which the row is judged",
        [](Row r) { return from(r.worst_window, [](const IterationRange& w) { return w.first; }); });
  c.add("ddp_hook",
        "how PyTorch's DistributedDataParallel sends a modelled all-reduce: gradtool's ddp_hook over gloo or nccl, or "
        "PyTorch's own bf16_compress_hook or fp16_compress_hook where that is faster; of none the library alone",
        [](Row r) { return from(r.in_ddp, [](auto& ddp) { return ddp.hook; }); });
  c.add("ddp_ms", "milliseconds that this takes: of an iteration where it is modelled, else of a step",
        [](Row r) { return from(r.in_ddp, [](auto& ddp) { return ddp.time.median * 1e3; }); });
  const auto ddp_end = [](std::optional<double> PhaseSummary::*end) {
    return [end](Row r) { return r.in_ddp && r.in_ddp->time.*end ? Cell{*(r.in_ddp->time.*end) * 1e3} : Cell{}; };
  };
  c.add("ddp_low_ms", "lower end of its 95 % interval, by the noise of encoding and decoding",
        ddp_end(&PhaseSummary::low));
  c.add("ddp_high_ms", "upper end of it", ddp_end(&PhaseSummary::high));
  c.add("ddp_gate_bytes", "raw bytes of a bucket below which ddp_hook sends it uncompressed there; empty: none are",
        [](Row r) { return from(r.in_ddp, [](auto& ddp) { return ddp.gate_bytes; }); });
  return c.take();
}

}  // namespace

std::optional<double> ResultRow::element_ratio() const {
  return bytes ? positive_ratio(encoded_share() * static_cast<double>(elements), bytes->values_sent) : std::nullopt;
}

std::optional<double> ResultRow::element_ratio_max() const {
  return bytes ? positive_ratio(encoded_share() * static_cast<double>(elements), bytes->fewest_values_sent)
               : std::nullopt;
}

std::optional<double> ResultRow::payload_ratio() const {
  return bytes ? positive_ratio(encoded_share() * raw_bytes(), bytes->payload) : std::nullopt;
}

std::optional<double> ResultRow::wire_ratio() const {
  return bytes ? positive_ratio(bus_factor() * raw_bytes(), bytes->wire_per_rank) : std::nullopt;
}

std::optional<double> ResultRow::bits_per_element() const {
  if (!bytes) return std::nullopt;
  return 8.0 * bytes->payload / (encoded_share() * static_cast<double>(elements));
}

bool ResultRow::has_codec_times() const {
  const bool baseline = codec.descriptor->name == "none" || codec.descriptor->name == "noop";
  return !baseline && !modelled() && timing == Timing::isolated && bytes && encode && decode;
}

std::optional<double> ResultRow::encode_gb_s() const {
  return has_codec_times() ? rate(encoded_share() * float_bytes(), encode) : std::nullopt;
}

std::optional<double> ResultRow::decode_gb_s() const {
  return has_codec_times() ? rate(float_bytes(), decode) : std::nullopt;
}

std::optional<double> ResultRow::algbw_gb_s() const {
  return rate(raw_bytes(), total);
}

std::optional<double> ResultRow::busbw_gb_s() const {
  const auto algbw = algbw_gb_s();
  if (!algbw || (ranks == 1 && !modelled())) return std::nullopt;
  return *algbw * bus_factor();
}

std::optional<double> ResultRow::wire_gb_s() const {
  return bytes && !modelled() ? rate(bytes->wire_per_rank, communicate) : std::nullopt;
}

std::optional<double> ResultRow::encode_share() const {
  if (!has_codec_times() || inner) return std::nullopt;  // of two levels two codecs encode
  return (encoded_share() * float_bytes() + bytes->payload) / encode->median /
         (2.0 * copy_rate);  // a copy of B bytes moves 2 B
}

std::optional<double> ResultRow::decode_share() const {
  if (!has_codec_times() || inner) return std::nullopt;
  // A sum is decoded once, a gather p times; hop decodes p-1 segments on the way and all p at the end; alltoall decodes
  // p shards as their owner and all p means at the end.
  const double p = ranks;
  const bool gathers = op == Collective::all_reduce;
  const double payloads = scheme == Scheme::gather                ? p
                          : scheme == Scheme::hop                 ? (gathers ? (2.0 * p - 1.0) / p : 1.0)
                          : scheme == Scheme::alltoall && gathers ? 2.0
                                                                  : 1.0;
  return (payloads * bytes->payload + 2.0 * float_bytes()) / decode->median / (2.0 * copy_rate);
}

std::optional<double> ResultRow::scaling_efficiency() const {
  if (!iteration) return std::nullopt;
  return iteration->compute_seconds / iteration->seconds;
}

const std::vector<ResultColumn>& bench_columns() {
  static const std::vector<ResultColumn> columns = make_columns();
  return columns;
}

double cumulative_nmse(double error, double energy) {
  if (energy > 0.0) return error / energy;
  return error == 0.0 ? 0.0 : std::numeric_limits<double>::infinity();
}

Table steps_table(std::span<const ResultRow> rows) {
  const std::set<std::string> keys{"schema_version", "run_id", "codec",       "params", "aggregation", "levels", "op",
                                   "tensor",         "ranks",  "granularity", "seed",   "pipeline",    "timing"};
  std::vector<Column> heads;
  std::vector<const ResultColumn*> sources;
  for (const auto& column : bench_columns()) {
    if (!keys.contains(column.name)) continue;
    heads.push_back({column.name, column.meaning});
    sources.push_back(&column);
  }
  heads.push_back({"iteration", "training iteration of the step"});
  heads.push_back({"nmse", "of the step"});
  heads.push_back({"cosine", "of the step"});
  heads.push_back({"cumulative_nmse", "nmse of the sums of x and y over the steps of the window so far"});
  heads.push_back({"window", "of the training that the step is in, from 0"});
  heads.push_back({"payload_bytes", "what a rank's encoder wrote in the step, mean over ranks"});
  heads.push_back({"wire_bytes_per_rank", "what the communicator counted as sent by one rank: largest over ranks"});
  heads.push_back({"residual_ratio", "norm of what rank 0 holds back after the step / norm of its gradients"});
  Table table{"steps", std::move(heads)};
  std::set<std::string> seen;
  for (const auto& row : rows) {
    if (row.steps.empty()) continue;  // one that failed does not stand for the other timing
    std::vector<Cell> about;
    std::string told_apart;
    for (const auto* column : sources) {
      about.push_back(column->cell(row));
      if (column->name != "timing") told_apart += to_text(about.back()) + '\n';
    }
    if (!seen.insert(told_apart).second) continue;
    const bool whole = row.tensor == "all" && !row.received();
    for (std::size_t s = 0; s < row.steps.size(); ++s) {
      const StepErrors& step = row.steps[s];
      std::vector<Cell> cells = about;
      cells.emplace_back(row.step_iterations[s]);
      cells.emplace_back(step.sums.nmse());
      cells.push_back(to_cell(step.sums.cosine()));
      cells.push_back(row.cumulative_nmse ? to_cell(cumulative_nmse(step.cumulative_error, step.cumulative_energy))
                                          : Cell{});
      cells.emplace_back(static_cast<std::int64_t>(row.step_windows[s]));
      cells.push_back(whole ? count_if_whole(step.bytes.payload) : Cell{});
      cells.push_back(whole ? count_if_whole(step.bytes.wire_per_rank) : Cell{});
      cells.push_back(whole && row.residual_ratio && step.gradient_energy > 0.0
                          ? Cell{std::sqrt(step.residual_energy / step.gradient_energy)}
                          : Cell{});
      table.add(std::move(cells));
    }
  }
  return table;
}

Table to_table(std::span<const ResultRow> rows) {
  std::vector<Column> heads;
  for (const auto& column : bench_columns()) heads.push_back({column.name, column.meaning});
  Table table{"bench", std::move(heads)};
  for (const auto& row : rows) {
    std::vector<Cell> cells;
    for (const auto& column : bench_columns()) cells.push_back(column.cell(row));
    table.add(std::move(cells));
  }
  return table;
}

}  // namespace gradtool
