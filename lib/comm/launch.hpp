#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "lib/comm/communicator.hpp"
#include "lib/comm/udp/options.hpp"

namespace gradtool {

/// One communication backend, whether it can be used here or not.
struct BackendStatus {
  std::string name;    ///< threads, mpi, udp, nccl or loopback
  bool available;      ///< true when it is built in and the device that it needs is present
  std::string detail;  ///< when available, what was found; otherwise the reason
};
/// The status of all five backends, in the order above. Initialises nothing but the CUDA runtime.
[[nodiscard]] std::vector<BackendStatus> comm_backends();

using HostBody = std::function<void(Communicator<Space::host>&)>;
using CudaBody = std::function<void(Communicator<Space::cuda>&, Queue<Space::cuda>)>;

/// Runs `body` on `ranks` threads of this process that share a communicator. The first exception of any rank stops the
/// others at their next collective and is rethrown here, when all of them have ended. A rank that waits longer than
/// `timeout_seconds` for another one throws Fault::backend naming it; one that waits for a rank whose body has returned
/// does so at once.
void run_threads(int ranks, const HostBody& body, double timeout_seconds = 120.0);

/// Runs `body` once in every process of MPI_COMM_WORLD (MPI is initialised on the first call and finalised at exit).
/// An exception that leaves `body` is printed as one line and ends the whole job with its fault as exit status, so no
/// process is left waiting; with a single process it is simply rethrown. A process that exits with a failure anywhere
/// else gives the others 10 s to end too, then ends them. A process that dies, is stopped or is waited for longer than
/// `timeout_seconds` ends the job with a line that names it and exit status 4 (lib/comm/mpi_watch.hpp). Call it from
/// one thread. Without mpirun it is a job of one rank. Throws Fault::unavailable when gradtool was built without MPI.
void run_mpi(const HostBody& body, double timeout_seconds = 120.0);
/// The place of a process in its job.
struct MpiPlace {
  int rank = 0;
  int size = 1;
  int on_machine = 1;  ///< processes of the job on this machine; known to mpi_world() and processes_world() only
  bool by_environment = false;  ///< not MPI, but RANK, WORLD_SIZE and MASTER_ADDR say so, as for torch.distributed
};
/// This process's place according to the launcher's environment variables, without initialising MPI; {0, 1} when
/// neither mpirun nor srun started it, and RANK, WORLD_SIZE and MASTER_ADDR are not set.
[[nodiscard]] MpiPlace mpi_place();
/// This process's place according to MPI itself, which works with every launcher but initialises MPI. Throws as
/// run_mpi, and Fault::backend when MPI does not see the processes that the launcher started.
[[nodiscard]] MpiPlace mpi_world(double timeout_seconds = 120.0);
/// True once this process has met the others of its job in MPI.
[[nodiscard]] bool mpi_started() noexcept;

/// Runs `body` once in every process of the job, with the bounded-loss transport between them (lib/comm/udp/udp.hpp).
/// The processes find each other through MPI where mpirun or srun started them; otherwise through rank 0 at MASTER_ADDR
/// and MASTER_PORT, with RANK, WORLD_SIZE and the secret GRADTOOL_JOB_KEY. The connections are made once a process,
/// with the options of the first call. Failures as in run_mpi; without MPI they are rethrown in the failing process,
/// and the others throw Fault::backend naming it. Throws Fault::usage where a variable is missing or not valid.
void run_udp(const UdpOptions& options, const HostBody& body, double timeout_seconds = 120.0);

/// How ranks that are processes reach each other.
struct ProcessComm {
  std::string name = "mpi";  ///< mpi or udp
  UdpOptions udp;
};
/// run_mpi or run_udp.
void run_processes(const ProcessComm& comm, const HostBody& body, double timeout_seconds = 120.0);
/// This process's place in such a job, which may have to be started for it.
[[nodiscard]] MpiPlace processes_world(const ProcessComm& comm, double timeout_seconds = 120.0);

/// Runs `body` on `ranks` threads that share the GPU `device`, each with a stream of its own. Failures and time-out as
/// in run_threads. Throws Fault::unavailable without CUDA or without that GPU.
void run_loopback(int ranks, int device, const CudaBody& body, double timeout_seconds = 120.0);

/// Runs `body` in one process on `gpus` threads, each with a GPU of its own, and NCCL between them. A failing rank
/// aborts the communicators of the others, which releases their streams; the first exception is rethrown. Bytes are
/// counted by the ring formulas of docs/measuring.md; NCCL's own algorithm may send otherwise. Time-out as in
/// run_threads. Throws Fault::unavailable when there are fewer GPUs.
void run_nccl(int gpus, const CudaBody& body, double timeout_seconds = 120.0);
/// Runs `body` once in every process of a job that mpirun started, with one GPU for each process and NCCL between them;
/// MPI is used to set NCCL up. A process uses the GPU whose number is its rank on its node. Failures and time-out as in
/// run_mpi, bytes as in run_nccl.
void run_nccl_mpi(const CudaBody& body, double timeout_seconds = 120.0);

/// For example "NCCL 2.28.9". Only in builds with NCCL.
[[nodiscard]] std::string nccl_library_version();

}  // namespace gradtool
