#pragma once

#include <string>

#include "lib/comm/launch.hpp"
#include "lib/comm/mpi_watch.hpp"

namespace gradtool {

/// Initialises MPI on the first call, together with the other processes of the job, and starts the watch over them; MPI
/// is finalised when the process exits. Not all processes there within ten times the stall limit: every one that waits
/// prints a line and ends with status 4. Returns this process's place in MPI_COMM_WORLD. Throws Fault::backend when MPI
/// and the launcher's environment do not agree on the number of processes.
MpiPlace start_mpi_job(const WatchLimits& limits);

/// The watch over the other processes; null before start_mpi_job, in a job of one process, and where MPI does not allow
/// calls from several threads at once.
[[nodiscard]] MpiWatch* mpi_watch() noexcept;

/// Ends every process of the job with `status`, without return. For a failure that others would wait on.
[[noreturn]] void abort_mpi_job(int status);

/// "Open MPI v4.1.4"; does not initialise MPI.
[[nodiscard]] std::string mpi_library_version();

}  // namespace gradtool
