#include "lib/bench/bench.hpp"

namespace gradtool {
namespace {

void add_times(std::vector<Column>& columns, const std::string& phase, const std::string& what) {
  columns.push_back({phase + "_us_median", "microseconds a step to " + what + ", slowest rank: median over samples"});
  columns.push_back({phase + "_us_p95", "the same, 95th percentile"});
  columns.push_back({phase + "_us_min", "the same, smallest"});
  columns.push_back({phase + "_noise", "standard deviation / mean of the samples"});
}

std::vector<Column> make_columns() {
  std::vector<Column> c{
      {"schema_version", "of this table; columns are only ever added"},
      {"run_id", "names the run: time and process, the same in every row"},
      {"status", "ok, skipped or failed"},
      {"message", "why, when it is not ok; else a remark"},
      {"codec", "bare name"},
      {"params", "key=value,... with defaults filled in"},
      {"aggregation", "collective used: sum, gather, hop, own (several), none"},
      {"file", "input file, its name without folders"},
      {"model", "from the file"},
      {"tensor", "a tensor's name, or all"},
      {"granularity", "what is reduced in one piece: tensor, bucket:SIZE, model"},
      {"elements", "gradient elements the row covers, one step"},
      {"first_step", "training iteration of the first step replayed"},
      {"last_step", "and of the last"},
      {"ranks", "ranks that were averaged"},
      {"comm", "threads, mpi, nccl, loopback; model for modelled rows"},
      {"device", "cpu or cuda:i"},
      {"threads", "threads of one rank for encode and decode"},
      {"dtype", "of the gradients as captured"},
      {"seed", "of the random draws"},
      {"network", "name of the network, for modelled rows"},
      {"alpha_us", "latency of a message in that network"},
      {"link_gbit_s", "rate of a link in that network, each way"},
      {"node", "ranks that share a link, in that network"},
      {"time_source", "measured or modelled"},
      {"timing", "isolated: one rank encodes at a time; concurrent: all at once"},
      {"pipeline", "chunks of a unit whose phases overlap; 1: none do"},
      {"compute_ms",
       "milliseconds of forward and backward in one iteration on one rank, where iterations are modelled"},
      {"overlap", "of communication with the backward pass, in modelled iterations: none or bucket"},
      {"all_reduce", "how sums are added: ring, doubling or auto; library: as MPI or NCCL do; empty in modelled rows"},
      {"raw_bytes", "4 x elements"},
      {"payload_bytes", "what one rank's encoder wrote in a step, mean over steps"},
      {"wire_bytes_per_rank",
       "what the communicator counted as sent by one rank in a step: largest over ranks, mean over steps"},
      {"element_ratio", "elements / values sent"},
      {"payload_ratio", "raw_bytes / payload_bytes"},
      {"wire_ratio", "bytes of an uncompressed ring all-reduce, 2(p-1)/p raw_bytes, / wire_bytes_per_rank"},
      {"bits_per_element", "8 payload_bytes / elements"},
      {"nmse", "sum (x-y)^2 / sum x^2, x the exact mean over ranks, y the result, over all steps"},
      {"snr_db", "-10 log10 nmse"},
      {"cosine", "x.y / (|x| |y|)"},
      {"relative_bias", "x.y / x.x - 1"},
      {"max_abs_error", "largest |x-y|"},
      {"sign_agreement", "share of the elements with y != 0 whose sign is x's"},
      {"zeroed_fraction", "share of elements with y = 0 and x != 0"},
      {"psnr_db", "-20 log10 nrmse; flatters heavy tails"},
      {"nrmse", "root mean square error / (max x - min x)"},
      {"cumulative_nmse", "nmse of the sums of x and y over all steps"},
      {"residual_ratio", "norm of what rank 0 holds back / norm of its gradients, pooled over steps"},
      {"codec_nmse", "nmse of one rank's decode(encode(x)) alone, first step, no residual"},
      {"bias_nmse", "for unbiased codecs, squared bias over 30 seeds / sum x^2, first step, sampling error taken off"},
      {"variance_nmse", "for unbiased codecs, variance over 30 seeds / sum x^2, first step"}};
  add_times(c, "encode", "encode, error feedback included");
  add_times(c, "comm", "communicate");
  add_times(c, "decode", "decode all ranks' payloads and average");
  add_times(c, "total", "do all of it, all ranks at once");
  for (const auto& [name, meaning] : std::initializer_list<std::pair<const char*, const char*>>{
           {"samples", "steps timed"},
           {"iteration_ms", "milliseconds of a modelled iteration: computation, codec and communication"},
           {"encode_gbps", "raw_bytes / encode time, 1e9 bytes a second"},
           {"decode_gbps", "raw_bytes / decode time"},
           {"algbw_gbps", "raw_bytes / total time"},
           {"busbw_gbps", "algbw_gbps x 2(p-1)/p"},
           {"wire_gbps", "wire_bytes_per_rank / communication time"},
           {"copy_gbps", "memcpy with the row's threads, measured in this run"},
           {"encode_share", "(raw + payload bytes) moved in the encode time, as a share of what memcpy moves"},
           {"decode_share", "(payloads + twice the raw bytes) in the decode time, as a share of what memcpy moves"},
           {"speedup_vs_none", "total time of none / total time of this row"},
           {"headroom_vs_noop", "total time of this row / total time of noop"},
           {"breakeven_gbit_s",
            "network speed below which the codec beats none, encode and decode counted, latency not"},
           {"pareto",
            "the error is finite, and no other row with this timing, network and ranks is better in error or time and "
            "no worse in the other; empty for noop"},
           {"scaling_efficiency", "compute_ms / iteration_ms: throughput of a rank against one rank alone"},
           {"iteration_speedup_vs_none", "iteration_ms of none / iteration_ms of this row"}}) {
    c.push_back({name, meaning});
  }
  return c;
}

}  // namespace

const std::vector<Column>& bench_columns() {
  static const std::vector<Column> columns = make_columns();
  return columns;
}

}  // namespace gradtool
