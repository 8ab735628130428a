#include "lib/comm/mpi_job.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <string>
#include <thread>

#include "lib/comm/mpi_check.hpp"
#include "lib/core/error.hpp"

namespace gradtool {
namespace {

/// How long a process that ends in failure waits for the others to end too, before it ends them.
constexpr std::chrono::seconds kGrace{10};
/// How long the end of MPI itself may take, once every process has got there.
constexpr double kFinalizeSeconds = 60.0;
constexpr double kAbortSeconds = 3.0;

MpiWatch* watch = nullptr;  // deleted by finalize_at_exit; an abort leaves it where it is
std::atomic<bool> aborting{false};

/// Waits until every process of the job gets here; at most `patience`, false then.
bool all_are_leaving(std::chrono::steady_clock::duration patience) {
  MPI_Request request = MPI_REQUEST_NULL;
  if (MPI_Ibarrier(MPI_COMM_WORLD, &request) != MPI_SUCCESS) return false;
  const auto start = std::chrono::steady_clock::now();
  for (;;) {
    int done = 0;
    if (MPI_Test(&request, &done, MPI_STATUS_IGNORE) != MPI_SUCCESS) return false;
    if (done != 0) return true;
    if (std::chrono::steady_clock::now() - start > patience) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds{2});
  }
}

/// MPI_Finalize waits for all processes. One that ends because it failed must not wait for ever for others that wait
/// for it.
void finalize_at_exit(int status, void* /*unused*/) {
  int finalized = 0;
  if (aborting || MPI_Finalized(&finalized) != MPI_SUCCESS || finalized != 0) return;
  if (watch != nullptr) watch->set_phase(status == 0 ? WatchPhase::ended : WatchPhase::failed);
  const auto patience = status == 0 ? std::chrono::steady_clock::duration::max() : kGrace;
  if (!all_are_leaving(patience) && status != 0) abort_mpi_job(status);
  const ExitTimer timer{kFinalizeSeconds, "MPI does not end, though every process has come to its end"};
  delete watch;
  watch = nullptr;
  MPI_Finalize();
}

/// What this launcher started and what MPI made of it: a launcher that does not speak MPI's protocol starts as many
/// jobs of one process, each of which would replay rank 0.
void compare_with_launcher(const MpiPlace& mpi) {
  const MpiPlace launcher = mpi_place();
  if (launcher.size == 1 || launcher.size == mpi.size) return;
  throw Error{Fault::backend,
              fmt::format("the launcher started {} processes, but {} sees {}: it does not speak that launcher's "
                          "protocol; use the mpirun of that MPI, or with Slurm srun --mpi=pmix (srun --mpi=list)",
                          launcher.size, mpi_library_version(), mpi.size)};
}

MpiPlace world() {
  MpiPlace place;
  GT_MPI(MPI_Comm_rank(MPI_COMM_WORLD, &place.rank));
  GT_MPI(MPI_Comm_size(MPI_COMM_WORLD, &place.size));
  return place;
}

}  // namespace

void check_mpi(int code, const char* call, const char* file, int line) {
  if (code == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING] = "unknown error";
  int length = 0;
  MPI_Error_string(code, text, &length);
  throw Error{Fault::backend, fmt::format("MPI: {} failed: {}", call, text), file, line};
}

MpiPlace start_mpi_job(const WatchLimits& limits) {
  int initialized = 0;
  GT_MPI(MPI_Initialized(&initialized));
  if (initialized != 0) return world();
  const double patience = 10.0 * limits.stall;
  const ExitTimer timer{patience, fmt::format("rank {} has waited {:.0f} s for all {} processes to start MPI; one of "
                                              "them did not get there",
                                              mpi_place().rank, patience, mpi_place().size)};
  int provided = 0;
  GT_MPI(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &provided));
  on_exit(finalize_at_exit, nullptr);
  if (provided < MPI_THREAD_SERIALIZED) {
    throw Error{
        Fault::backend,
        fmt::format("{} cannot be called from more than one thread (MPI_THREAD_SERIALIZED), which gradtool needs",
                    mpi_library_version())};
  }
  GT_MPI(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN));
  const MpiPlace place = world();
  compare_with_launcher(place);
  if (place.size == 1) return place;
  if (provided == MPI_THREAD_MULTIPLE) {
    watch = new MpiWatch;
    watch->set_limits(limits);
  } else if (place.rank == 0) {
    fmt::print(stderr,
               "gradtool: {} was built without MPI_THREAD_MULTIPLE: a process that stalls will not be noticed\n",
               mpi_library_version());
  }
  return place;
}

MpiWatch* mpi_watch() noexcept {
  return watch;
}

void abort_mpi_job(int status) {
  if (aborting.exchange(true)) {
    // Another thread is at it, and the process ends with it.
    for (;;) std::this_thread::sleep_for(std::chrono::seconds{1});
  }
  const ExitTimer timer{kAbortSeconds, {}, status};
  MPI_Abort(MPI_COMM_WORLD, status);
  std::_Exit(status);
}

std::string mpi_library_version() {
  char text[MPI_MAX_LIBRARY_VERSION_STRING] = "";
  int length = 0;
  GT_MPI(MPI_Get_library_version(text, &length));
  const std::string version{text};
  return version.substr(0, version.find_first_of(",\n"));
}

}  // namespace gradtool
