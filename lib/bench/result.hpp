#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lib/bench/errors.hpp"
#include "lib/bench/replay.hpp"
#include "lib/bench/windows.hpp"
#include "lib/core/words.hpp"
#include "lib/model/cost_model.hpp"
#include "lib/model/statistics.hpp"
#include "lib/report/table.hpp"

namespace gradtool {

/// The name in the place of a codec's that rows of --received have. No registry has it: nothing encodes with it.
inline constexpr std::string_view kReceivedName = "received";
/// The stand-in for a codec in those rows: that name with the parameter `file`, the file's name without folders.
[[nodiscard]] CodecSpec received_spec(const std::string& path);

/// Seconds a step of one phase, over all samples of a row. A modelled row has a median only.
struct PhaseSummary {
  double median = 0.0;
  std::optional<double> p95 = {}, min = {};
  std::optional<double> noise = {};           ///< standard deviation / mean
  std::optional<double> low = {}, high = {};  ///< where the median lies with 95 % confidence, see median_interval()
};

/// The source of the encoding and decoding times of a row.
enum class CodecTimes : std::uint8_t {
  measured,  ///< in this run, on this machine
  record,    ///< another machine's run (--codec-speed FILE)
  floor,     ///< what its memory needs at least (--codec-speed floor:3000)
};
/// Behind how many of how many, in the message of rows that lack tensors with NaN or infinity.
inline constexpr std::string_view kTensorsLeftOut = "tensors left out: not finite";
constexpr auto spellings(CodecTimes) {
  return words("measured", "record", "floor");
}

/// One row of `gradtool bench`: one codec with one timing, over all tensors or for the errors of one of them, measured
/// or modelled. Numbers are kept as they were measured, in seconds and bytes. What follows from them is computed by the
/// member functions, and becomes text in bench_columns() only. An empty optional is "not measured".
struct ResultRow {
  enum class Status : std::uint8_t {
    ok,
    skipped,
    failed,
    not_finite,  ///< measured, but the result holds NaN or infinity, so that errors say nothing; not compared with
                 ///< others
  };

  explicit ResultRow(CodecSpec spec) : codec{std::move(spec)} {}

  // The subject of the row.
  std::string run_id;
  Status status = Status::ok;
  std::string message;  ///< why the status is not ok, else a remark; empty: none
  CodecSpec codec;
  Collective op = Collective::all_reduce;
  Scheme scheme = Scheme::automatic;   ///< that the codec rides
  int level_node = 1;                  ///< ranks of a machine, of an all-reduce in two levels; 1: in one
  int measured_node = 1;               ///< as level_node, but that of the replay in a modelled row
  std::optional<CodecSpec> inner;      ///< of two levels that are not the codec's own: the codec inside machines
  std::string file, model;             ///< name of the gradient file without folders, and the model that it names
  std::string tensor = "all";          ///< name of the one tensor, or all
  std::string granularity = "tensor";  ///< one of those given with --granularity, or size_name()
  std::uint64_t elements = 0;          ///< that the row covers in one step
  std::int64_t first_step = 0, last_step = 0;     ///< training iterations of the first and last captured step
  std::int64_t stride = 1;                        ///< iterations from one of these steps to the next, see stride_of()
  std::size_t windows = 1;                        ///< of these steps, see StepWindow
  std::vector<IterationRange> window_iterations;  ///< of each window; empty in rows that were read from a CSV
  int ranks = 1;
  int measured_ranks = 1;  ///< as `ranks`, but those of the replay in a modelled row
  std::string comm, device;
  int threads = 1;                     ///< of one rank
  std::string processor;               ///< name of the CPU or GPU that codecs ran on; empty: not known
  std::string dtype;                   ///< of the captured gradients, or "mixed"
  std::string baseline_dtype = "f32";  ///< in which `none` reduces them, or "mixed"
  double baseline_bytes = 4.0;         ///< of an element in that type, mean over elements
  std::string quantity = "gradient";   ///< what is replayed, one of schema::kQuantities
  bool averaged = false;               ///< over the ranks before, so that errors of their mean say nothing
  std::uint64_t seed = 0;
  Timing timing = Timing::isolated;
  int pipeline = 1;                     ///< chunks of a unit that overlap
  std::string all_reduce;               ///< what adds sums; no meaning in modelled rows
  std::optional<PacketShares> packets;  ///< where packets were sent by ourselves
  bool reached = true;                  ///< the method came to its work; see Reducer::reached()
  /// Seconds that a step would take with every tensor reduced by itself; for modelled rows of none.
  std::optional<double> tensorwise_seconds;
  std::optional<double> messages;  ///< of modelled rows: what one rank sends in a step

  /// The modelled network. A row with one is a modelled row.
  std::optional<Network> network;

  /// Raw bytes of a unit from which on compressing it pays, in modelled rows of codecs, and the part of all bytes that
  /// goes uncompressed because its units are smaller; see set_gates().
  std::optional<double> gate_bytes;
  double gated_share = 0.0;
  bool gate_applied = false;  ///< whether these are the units below `gate_bytes`; else those below the codec's gate=

  /// One modelled iteration.
  struct Iteration {
    double compute_seconds = 0.0;                  ///< forward and backward pass and update on one rank
    double compute_low = 0.0, compute_high = 0.0;  ///< of single captured steps; 0: the time was given
    Overlap overlap = Overlap::bucket;
    BackwardPass backward = {};
    double seconds = 0.0;                       ///< computation, codec and communication
    std::optional<double> low = {}, high = {};  ///< of that, from the codec's times
  };
  std::optional<Iteration> iteration;

  /// A modelled all-reduce as PyTorch's DistributedDataParallel sends it with a hook; see set_in_ddp().
  struct InDdp {
    std::string hook;                       ///< "ddp_hook over gloo", "bf16_compress_hook"; of none the library
    PhaseSummary time;                      ///< of what judged_seconds() is of
    std::optional<double> gate_bytes = {};  ///< below which ddp_hook sends uncompressed; empty: nothing goes so
  };
  std::optional<InDdp> in_ddp;

  std::optional<StepBytes> bytes;

  std::optional<ErrorSums> errors;          ///< of the averaged gradient, pooled over steps
  std::optional<double> worst_nmse;         ///< as `errors`, of the window where it is largest
  std::optional<double> cumulative_nmse;    ///< of the sums of gradients over a window, largest of all windows
  std::optional<double> error_correlation;  ///< of the errors of two steps of a window, largest of all windows
  /// ErrorSums::lost_signs of the tensor where it is largest, of those with a hundredth of all elements. Empty where
  /// the file's optimizer is SGD, to whose updates small values hardly matter, or not known.
  std::optional<double> lost_signs;
  std::optional<double> update_nmse;           ///< of the optimizer's updates, largest of all windows
  std::optional<double> cosine_by_layer;       ///< UpdateSums::distance, mean over tensors, largest of all windows
  std::optional<IterationRange> worst_window;  ///< where the error is largest by which the row is judged
  std::optional<double> residual_ratio;        ///< norm of what rank 0 holds back / norm of its gradients
  std::optional<CodecQuality> quality;         ///< of one rank's codec alone

  CodecTimes codec_times = CodecTimes::measured;  ///< of encode and decode
  std::string codec_times_file = {};              ///< of a record; empty: of none
  /// The part of the decoding that does not grow with the ranks in a gather; measured times do not tell.
  double decode_fixed_share = 0.0;
  std::optional<PhaseSummary> encode, communicate, decode;
  std::optional<PhaseSummary> total;          ///< of concurrent and of modelled rows
  double copy_rate = 0.0;                     ///< of memcpy, bytes a second, measured in the same run
  std::vector<PhaseTimes> samples;            ///< one for each timed step; empty where the row was not timed
  std::vector<std::size_t> rounds;            ///< how many of the samples each round took
  std::vector<StepErrors> steps;              ///< errors of each captured step of measured rows
  std::vector<std::int64_t> step_iterations;  ///< training iterations of those
  std::vector<std::size_t> step_windows;      ///< of each of those, the position of its window in window_iterations
  std::vector<UnitProfile> units;             ///< what each unit takes part in; of isolated and of modelled rows

  /// The outcome of comparing the row with others; see set_verdicts().
  struct Verdict {
    std::optional<double> speedup_vs_none, headroom_vs_noop, iteration_speedup_vs_none;
    /// The speeds of networks on which the row takes less time than none: up to, and from; and the former at the ends
    /// of the interval of the times of both.
    std::optional<double> breakeven_gbit_s, breakeven_from, breakeven_low, breakeven_high;
    std::optional<bool> pareto;
  };
  Verdict verdict;

  [[nodiscard]] bool modelled() const { return network.has_value(); }
  /// The row is about means of another program (--received): it has errors, and no times.
  [[nodiscard]] bool received() const { return codec.descriptor->name == kReceivedName; }
  /// The bytes that a step hands to the uncompressed collective.
  [[nodiscard]] double raw_bytes() const { return baseline_bytes * static_cast<double>(elements); }
  /// The bytes that codecs read in a step: they take float32, whatever the baseline sends.
  [[nodiscard]] double float_bytes() const { return 4.0 * static_cast<double>(elements); }
  /// The part of all elements that one rank encodes: in an all-gather its own shard.
  [[nodiscard]] double encoded_share() const { return op == Collective::all_gather ? 1.0 / measured_ranks : 1.0; }
  /// Bytes that one rank sends in this collective when nothing is compressed / raw_bytes: the factor between algbw and
  /// busbw (nccl-tests, doc/PERFORMANCE.md).
  [[nodiscard]] double bus_factor() const {
    const double p = ranks;
    return (op == Collective::all_reduce ? 2.0 : 1.0) * (p - 1.0) / p;
  }

  // Ratios of sizes; docs/measuring.md, "Bytes".
  [[nodiscard]] std::optional<double> element_ratio() const;
  [[nodiscard]] std::optional<double> element_ratio_max() const;
  [[nodiscard]] std::optional<double> payload_ratio() const;
  [[nodiscard]] std::optional<double> wire_ratio() const;
  [[nodiscard]] std::optional<double> bits_per_element() const;

  // Rates, in 1e9 bytes a second. Those of the codec are of measured isolated rows: a baseline neither encodes nor
  // decodes, and its rates would be those of the clock.
  [[nodiscard]] std::optional<double> encode_gb_s() const;
  [[nodiscard]] std::optional<double> decode_gb_s() const;
  [[nodiscard]] std::optional<double> algbw_gb_s() const;
  [[nodiscard]] std::optional<double> busbw_gb_s() const;
  [[nodiscard]] std::optional<double> wire_gb_s() const;
  /// Bytes that encoding must move at least / bytes that memcpy moves in the same time.
  [[nodiscard]] std::optional<double> encode_share() const;
  [[nodiscard]] std::optional<double> decode_share() const;

  /// Throughput of a rank in a modelled iteration / throughput of a rank alone.
  [[nodiscard]] std::optional<double> scaling_efficiency() const;

 private:
  [[nodiscard]] bool has_codec_times() const;
};

constexpr auto spellings(ResultRow::Status) {
  return words("ok", "skipped", "failed", "not_finite");
}

/// The version of the table and of the record; docs/columns.md, "Reading version 1", says what version 2 changed.
constexpr int kBenchSchema = 2;

/// A column of the results: the only place that knows its name, its meaning and how it is read from a row. The CSV, the
/// rows of the JSON record, `gradtool list columns` and the table in docs/columns.md all come from these; only the
/// parameters of codecs, which differ from run to run, have further columns in the CSV.
struct ResultColumn {
  std::string name;     ///< lower_snake, with the unit
  std::string meaning;  ///< one line
  std::function<Cell(const ResultRow&)> cell;
};
/// In the order of the output. Within a schema version columns are only ever added.
[[nodiscard]] const std::vector<ResultColumn>& bench_columns();

/// The rows as they are written: one cell for each column.
[[nodiscard]] Table to_table(std::span<const ResultRow> rows);

/// The codec's parameters in the order of its description, defaults filled in, numbers as numbers; behind them what was
/// asked of any codec: `ef` where it is on or is so by default, `eta`, `reduce`, `own`, `segment` and `gate`.
[[nodiscard]] std::vector<std::pair<std::string, Cell>> parameters_of(const CodecSpec& codec);

/// The rows as the CSV has them: to_table(), and at the end a column `params.NAME` for each parameter that the codec of
/// any row has, in the order in which they come up, empty for codecs without it.
[[nodiscard]] Table csv_table(std::span<const ResultRow> rows);

/// The errors of each captured step of the measured rows, as --steps-csv has them: a row for each of them and each
/// step, with the columns that tell rows apart, then `iteration`, `nmse`, `cosine`, `cumulative_nmse` of the window's
/// steps so far, `window`, and over all tensors what the step sent and kept back. What is the same for both timings is
/// there once, with the first of them. Rows that were not measured are left out.
[[nodiscard]] Table steps_table(std::span<const ResultRow> rows);

/// nmse of sums over steps: 0 for 0/0, infinite where only the energy is 0.
[[nodiscard]] double cumulative_nmse(double error, double energy);

/// The networks, machines and iteration that rows are modelled for.
struct ModelSetting {
  const std::vector<Network>& networks;
  const std::vector<int>& machines;         ///< numbers of machines, for each network
  const std::vector<double>& tensor_bytes;  ///< of each tensor of the capture; empty: there is none
  ComputeTime compute = {};                 ///< where it is known, rows have the iteration that it makes
  Overlap overlap = Overlap::bucket;
  BackwardPass backward = {};
};
/// Whether a rank decodes every rank's payload, so that its decoding grows with the ranks.
[[nodiscard]] bool decodes_every_rank(const ResultRow& row);
/// Whether a rank decodes, or divides, nothing but its shard of a sum, which shrinks as ranks grow.
[[nodiscard]] bool decodes_own_shard(const ResultRow& row);
/// Adds, for every network and number of machines, a modelled row for every measured isolated row that has been timed:
/// measured encode and decode times, counted bytes, and between them the collectives' times by the alpha-beta model
/// (cost_model.hpp), unit by unit. `ranks` becomes machines x ranks of a machine. A gather decodes every rank's
/// payload, so its decode time grows with the ranks; that of other schemes does not. Units that are too small to gain
/// go uncompressed (set_gates() in gate.hpp). Errors are those of the measured ranks with all units compressed, which
/// the message says.
void add_modelled(std::vector<ResultRow>& rows, const ModelSetting& setting);

/// Seconds of an iteration that computes for `compute`, of a modelled row; its units are needed.
[[nodiscard]] double modelled_iteration(const ResultRow& row, double compute, Overlap overlap);

/// The collectives of one step of an isolated or modelled row, on `network` among `ranks`. Where its library is the
/// hook, `none` rides what is under the hook.
[[nodiscard]] ModelledStep model_units(const ResultRow& row, const Network& network, int ranks);

/// A row that was measured has no network: its break-even is for this latency of a message, that of 10gbe.
constexpr double kBreakevenAlpha = 30e-6;

/// True where the row is judged by cumulative_nmse: its codec delays what it sends (error feedback, a residual), so
/// that step by step it looks unfairly bad.
[[nodiscard]] bool delays(const CodecSpec& codec);
/// True where that holds for the row's codec, or for the one inside machines.
[[nodiscard]] bool delays(const ResultRow& row);
/// True for a method whose result stands for something else than the mean of the gradients, such as a momentum. It
/// belongs to an optimizer of its own, and its errors, which are those against its own target, cannot be compared with
/// others'.
[[nodiscard]] bool replaces_mean(const CodecSpec& codec);
/// nmse of a step in the worst window; nmse where windows are not known (records of before). Infinite without errors.
[[nodiscard]] double worst_step_error(const ResultRow& row);
/// The error that a row's codec is judged by: cumulative_nmse when it delays what it sends, else worst_step_error().
/// Infinite where the row has none, and for a method that replaces the mean.
[[nodiscard]] double judged_error(const ResultRow& row);

/// The seconds that a row is compared by: its iteration where that was modelled, else the step's total. Infinite where
/// it has neither.
[[nodiscard]] double judged_seconds(const ResultRow& row);
/// The bounds between which judged_seconds lies with 95 % confidence; both equal it where they are not known.
[[nodiscard]] Interval judged_interval(const ResultRow& row);
/// The bounds between which judged_seconds(none) / judged_seconds(row) lies with 95 % confidence. The two rows' times
/// err independently of each other, so that the distances of their intervals' ends add up as squares, in logarithms.
[[nodiscard]] Interval gain_interval(const ResultRow& row, const ResultRow& none);

/// Fills in `verdict`: speed-up, headroom, break-even, Pareto front. Compared are rows that cover all tensors and are
/// ok, with the same granularity, source of time, timing, network and ranks. Needs the rows of none and noop.
///
/// The break-even is where the modelled speed-up is 1, by the very model of add_modelled(), latency included: the
/// highest speed of the network's links at which the row takes no longer than none, for the row's ranks. Looked for
/// between 1 Mbit/s and 100 Tbit/s; 0 where it wins at none of these, infinite where it wins at the fastest. A row that
/// sends more than none but in fewer messages loses again on slow networks: breakeven_from is where, else 0.
void set_verdicts(std::span<ResultRow> rows);

/// The codec as --codec takes it, with the parameters that were given.
[[nodiscard]] std::string spec_of(const ResultRow& row);
/// The way where it is not the one that the codec takes by itself, as in " by alltoall"; else empty.
[[nodiscard]] std::string way_words(const ResultRow& row);
/// The name under which a row stands in tables for people: the codec and the way, as in "nvfp4 by alltoall".
[[nodiscard]] std::string short_name(const ResultRow& row);
/// Whether the codec took the scheme that it takes by itself.
[[nodiscard]] bool takes_own_scheme(const ResultRow& row);
/// Bytes of what the row's codec works on / its payload. A row in two levels counts what is sent inside machines among
/// its payload, so that the ratio of the same codec in one level is taken where `rows` have it.
[[nodiscard]] std::optional<double> ratio_of_codec(const ResultRow& row, std::span<const ResultRow> rows);
/// Whether two rows of one codec took the same way, whatever the ranks of their machines.
[[nodiscard]] bool same_way(const ResultRow& a, const ResultRow& b);
/// Whether two rows are of one codec with the same parameters, reduced by the same units, whatever way each takes.
[[nodiscard]] bool same_method(const ResultRow& a, const ResultRow& b);

}  // namespace gradtool
