#pragma once

#include <cstddef>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace gradtool {

/// Collectives of one kind and size in a trace.
struct TracedCollective {
  std::string name;  ///< "allreduce", as the trace has it
  int ranks = 0;     ///< of its process group, or of the whole job; 0: the trace says neither
  bool group_known = false;
  double bytes = 0.0;  ///< that a rank hands to it
  std::size_t calls = 0;
  double seconds = 0.0;  ///< median, waiting for other ranks included
};

/// The steps of a training job, as torch.profiler (Kineto) has written them.
struct JobTrace {
  std::string given;          ///< all files, as read_job_traces() took them
  std::string file;           ///< of the rank that is shown
  std::size_t steps = 0;      ///< that its marks enclose
  double step_seconds = 0.0;  ///< median
  double exposed_seconds =
      0.0;  ///< median of the time of a step in which a collective is under way and nothing computes
  /// The rest of a step: its median, and that of the shortest and of the longest step.
  double compute_seconds = 0.0, compute_low = 0.0, compute_high = 0.0;
  std::vector<TracedCollective> collectives;  ///< what takes most of the time first

  /// On the job's network no codec makes a step shorter by more than this.
  [[nodiscard]] double most_gain() const { return step_seconds / compute_seconds; }
  /// "Of a step's 412 ms (median of 10 in rank0.json) 130 ms are exposed communication: on that job's network no
  /// codec can gain more than 1.46 times"
  [[nodiscard]] std::string words() const;
  /// "The collectives of the trace: allreduce of 26.6 MB among 2 ranks takes 2.64 ms (10.1 GB/s of bus bandwidth),
  /// ...", or that the trace has no sizes.
  [[nodiscard]] std::string collectives_words() const;
};

/// True for "trace.json" and "trace.json.gz", and for several of them with commas.
[[nodiscard]] bool names_traces(const std::string& text);

/// The files that such a text names; none for any other text.
[[nodiscard]] std::vector<std::string> trace_files(const std::string& text);

/// Reads the traces of one or several ranks, "rank0.json,rank1.json.gz", and shows the rank that computes longest: the
/// others wait for it within their collectives, so that its communication alone is exposed.
///
/// Steps are the marks ProfilerStep#N. Where the trace has kernels, a collective is a kernel that is recorded as one
/// (`Collective name`), or that a library of collectives names (nccl, rccl), and every other kernel and copy computes.
/// Their sizes are those of TraceCalls. Without kernels, as with gloo, a collective is under way as long as its
/// annotation (gloo:all_reduce), and operators (aten::) compute. Time and memory grow with the events, and only those
/// that are looked at are kept.
/// Throws Fault::data for a file that cannot be read, is no trace, or lacks steps, collectives or computation.
[[nodiscard]] JobTrace read_job_traces(const std::string& text);

/// The member `job_trace` of the bench's JSON record, times in milliseconds.
[[nodiscard]] nlohmann::ordered_json to_json(const JobTrace& trace);
/// Reads that member back. Throws nlohmann::json::exception where something is missing or of another type.
[[nodiscard]] JobTrace job_trace_of(const nlohmann::ordered_json& json);

}  // namespace gradtool
