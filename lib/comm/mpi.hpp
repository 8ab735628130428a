#pragma once

#include <functional>
#include <memory>
#include <string>

#include "lib/comm/launch.hpp"
#include "lib/comm/mpi_watch.hpp"
#include "lib/comm/ring.hpp"

namespace gradtool {

/// Initialises MPI on the first call, together with the other processes of the job, and starts the watch over them; MPI
/// is finalised when the process exits. When some process does not get there within ten times the stall limit, every
/// process that waits for it prints a line and ends with status 4. Returns this process's place in MPI_COMM_WORLD.
/// Throws Fault::backend when MPI and the launcher's environment do not agree on the number of processes.
MpiPlace start_mpi_job(const WatchLimits& limits);

/// The watch over the other processes. Null before start_mpi_job, in a job of one process, and when MPI does not allow
/// calls from several threads at once.
[[nodiscard]] MpiWatch* mpi_watch() noexcept;

/// Ends every process of the job with `status` and does not return. For a failure that would leave others waiting.
[[noreturn]] void abort_mpi_job(int status);

/// For example "Open MPI v4.1.4". Does not initialise MPI.
[[nodiscard]] std::string mpi_library_version();

/// This process as a rank of MPI_COMM_WORLD. The first communicator initialises MPI with MPI_THREAD_MULTIPLE; a library
/// that grants less than MPI_THREAD_SERIALIZED is refused with Fault::backend. So any thread may make the calls of a
/// communicator, one at a time. The collectives are those of RingCommunicator, so the counted bytes are those that were
/// sent; barrier and agree_max are MPI's own.
///
/// MPI's errors throw Fault::backend with MPI's text. A process that fails must call abort_mpi_job, as `run_mpi` does.
/// A peer that dies or stalls is found by the watch (MpiWatch), which ends the job.
class MpiCommunicator final : public RingCommunicator<Space::host> {
 public:
  /// `limits` says how long this process waits for the others from now on. While this object lives, the watch counts
  /// the process as working on a job.
  explicit MpiCommunicator(const WatchLimits& limits = {});
  ~MpiCommunicator() override;

  [[nodiscard]] std::string_view name() const noexcept override { return "mpi"; }
  /// MPI_Allreduce for f32, the only one of our types that MPI can add; the others go around the ring.
  void all_reduce_native(Queue<Space::host> queue, Bytes inout, Dtype dtype, Bytes scratch) override;
  /// Communicators of MPI's own (MPI_Comm_split), so that what is native is so on each level.
  void set_levels(int node) override;
  void barrier(Queue<Space::host> queue) override;
  void agree_max(std::span<double> values) override;

  /// bytes := the bytes of rank `root`, by MPI_Bcast. Not counted; it serves to set up other libraries.
  void share(std::span<std::byte> bytes, int root);
  /// This process's rank among those on the same machine.
  [[nodiscard]] int rank_on_node() const;

 protected:
  void transfer(Queue<Space::host> queue, int to, ConstBytes out, int from, Bytes in) override;
  void transfer_many(Queue<Space::host> queue, std::span<const Outgoing> out, std::span<const Incoming> in) override;
  void transfer_sum(Queue<Space::host> queue, int to, ConstBytes out, int from, Bytes inout, Dtype dtype,
                    Bytes scratch) override;
  /// One ring segment, which holds what arrives until it is added.
  [[nodiscard]] std::size_t ring_scratch(std::size_t bytes) const override;
  void copy_local(Queue<Space::host> queue, Bytes to, ConstBytes from) override;
  void sum_local(Queue<Space::host> queue, Bytes sum, ConstBytes addend, Dtype dtype) override;

 private:
  struct Members;

  MpiCommunicator(const MpiPlace& place, const WatchLimits& limits);
  /// Some of the ranks of the job.
  MpiCommunicator(std::unique_ptr<Members> members, MpiWatch* watch);

  [[nodiscard]] int rank_in_job(int rank) const;

  MpiWatch* watch_;  ///< null when nothing watches; see mpi_watch
  std::unique_ptr<Members> members_;
};

/// Does what run_mpi does, for callers in lib/comm that need the MPI communicator itself, and for tests of the watch.
void run_mpi_job(const std::function<void(MpiCommunicator&)>& body, const WatchLimits& limits = {});

}  // namespace gradtool
