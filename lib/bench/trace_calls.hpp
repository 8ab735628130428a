#pragma once

#include <string>
#include <vector>

#include "lib/bench/job_trace.hpp"

namespace gradtool {

/// An event of a trace, with the fields that are looked at. Times are in microseconds; -1: the event does not say.
struct TraceEvent {
  std::string phase, category, name;
  double begin = -1.0, duration = -1.0;
  double thread = -1.0;
  double correlation = -1.0;  ///< joins a kernel with the call that launched it
  // The arguments that newer traces give of a collective.
  std::string collective, dtype;
  double elements = -1.0, ranks = 0.0;
  // The tensors of an annotation or operator, as record_shapes=True writes them.
  std::vector<double> tensor_elements = {};
  std::vector<std::string> tensor_types = {};

  [[nodiscard]] double end() const { return begin + duration; }
  /// That a rank hands to the collective; 0: not recorded.
  [[nodiscard]] double bytes() const;
};

/// The collectives of a trace, with their sizes.
///
/// Kernels of newer traces carry size and group. Those of older ones carry neither: the size is that of the annotation
/// (`nccl:all_reduce`) or of the `record_param_comms` within which the thread launched the kernel, and the launch is
/// the call with the kernel's `correlation`. Several kernels of one annotation are one call, from the first one's
/// begin to the last one's end. Kernels without either are left out.
class TraceCalls {
 public:
  /// A collective that lasts as long as the event, under this name. Nothing where its size is not recorded.
  void add(const TraceEvent& event, const std::string& name);
  /// A kernel of a library of collectives.
  void add_kernel(const TraceEvent& event);
  /// A call on the host that may have launched one.
  void add_launch(const TraceEvent& event);
  /// An annotation or operator around such calls.
  void add_annotation(const TraceEvent& event);

  [[nodiscard]] bool annotated() const { return !annotations_.empty(); }

  /// All of them by name, group and size, what takes most of the time first. `world`: ranks of the job, 0: not known,
  /// which stand in for groups that the trace does not name.
  [[nodiscard]] std::vector<TracedCollective> take(double world);

 private:
  struct Launch {
    double correlation = 0.0, thread = 0.0, begin = 0.0;
  };
  struct Kernel {
    double correlation = 0.0, begin = 0.0, end = 0.0;
  };
  struct Annotation {
    std::string name;
    double thread = 0.0, begin = 0.0, end = 0.0, bytes = 0.0;
    int ranks = 0;
    double first_kernel = 0.0, last_kernel = -1.0;  ///< begin of the first and end of the last one launched within
  };
  struct Call {
    std::string name;
    int ranks = 0;
    double bytes = 0.0, seconds = 0.0;
  };
  void pair_kernels();

  std::vector<Call> calls_;
  std::vector<Launch> launches_;
  std::vector<Kernel> kernels_;  ///< without sizes
  std::vector<Annotation> annotations_;
};

/// Bytes over the slowest link of a rank, as nccl-tests counts its "bus bandwidth" (doc/PERFORMANCE.md), for a
/// collective to which each of `ranks` hands `bytes`; 0 for one that is not known by its name.
[[nodiscard]] double bus_bytes(const std::string& name, int ranks, double bytes);

}  // namespace gradtool
