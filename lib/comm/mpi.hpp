#pragma once

#include <functional>
#include <string>

#include "lib/comm/ring.hpp"

namespace gradtool {

/// This process in MPI_COMM_WORLD. MPI is initialised by the first one that is made, with MPI_THREAD_MULTIPLE; a
/// library that gives less than MPI_THREAD_SERIALIZED is refused with Fault::backend. So any thread may make the calls
/// of a communicator, one at a time. The rings are ours, so the counted bytes are those that were sent; barrier and
/// agree_max are MPI's own.
///
/// MPI's errors throw Fault::backend with MPI's text. A dead peer cannot be told from a slow one here: whoever fails
/// must call abort_mpi_job, which `run_mpi` does.
class MpiCommunicator final : public RingCommunicator<Space::host> {
 public:
  MpiCommunicator();

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
};

/// run_mpi, for callers in lib/comm that need the MPI communicator itself.
void run_mpi_job(const std::function<void(MpiCommunicator&)>& body);

/// Ends every process of the job with `status`, without return. For a failure that others would wait on.
[[noreturn]] void abort_mpi_job(int status);

/// "Open MPI v4.1.4"; does not initialise MPI.
[[nodiscard]] std::string mpi_library_version();

}  // namespace gradtool
