#pragma once

#include <functional>

#include "lib/comm/mpi_job.hpp"
#include "lib/comm/ring.hpp"

namespace gradtool {

/// This process in MPI_COMM_WORLD. MPI is initialised by the first one that is made, with MPI_THREAD_MULTIPLE; a
/// library that gives less than MPI_THREAD_SERIALIZED is refused with Fault::backend. So any thread may make the calls
/// of a communicator, one at a time. The rings are ours, so the counted bytes are those that were sent; barrier and
/// agree_max are MPI's own.
///
/// MPI's errors throw Fault::backend with MPI's text. Whoever fails calls abort_mpi_job, which `run_mpi` does; a peer
/// that dies or stalls is the watch's to find (MpiWatch), which ends the job.
class MpiCommunicator final : public RingCommunicator<Space::host> {
 public:
  /// `limits`: how long the others are waited for, from now on. The process is in a job of the watch while this lives.
  explicit MpiCommunicator(const WatchLimits& limits = {});
  ~MpiCommunicator() override;

  [[nodiscard]] std::string_view name() const noexcept override { return "mpi"; }
  /// MPI_Allreduce for f32. MPI adds no other type of ours: those go around our ring.
  void all_reduce_native(Queue<Space::host> queue, Bytes inout, Dtype dtype, Bytes scratch) override;
  void barrier(Queue<Space::host> queue) override;
  void agree_max(std::span<double> values) override;

  /// bytes := the root's bytes, by MPI itself and not counted; for bootstrapping.
  void share(std::span<std::byte> bytes, int root);
  /// This process's rank among those on the same machine.
  [[nodiscard]] int rank_on_node() const;

 protected:
  void transfer(Queue<Space::host> queue, int to, ConstBytes out, int from, Bytes in) override;
  void transfer_sum(Queue<Space::host> queue, int to, ConstBytes out, int from, Bytes inout, Dtype dtype,
                    Bytes scratch) override;
  /// One ring segment: what arrives is added from there.
  [[nodiscard]] std::size_t ring_scratch(std::size_t bytes) const override;
  void copy_local(Queue<Space::host> queue, Bytes to, ConstBytes from) override;
  void sum_local(Queue<Space::host> queue, Bytes sum, ConstBytes addend, Dtype dtype) override;

 private:
  MpiCommunicator(const MpiPlace& place, const WatchLimits& limits);

  MpiWatch* watch_;  ///< null in a job of one process
};

/// run_mpi, for callers in lib/comm that need the MPI communicator itself, and for tests of the watch.
void run_mpi_job(const std::function<void(MpiCommunicator&)>& body, const WatchLimits& limits = {});

}  // namespace gradtool
