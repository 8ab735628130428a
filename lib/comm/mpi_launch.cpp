#include <fmt/format.h>

#include <cstdio>
#include <exception>

#include "lib/comm/launch.hpp"
#include "lib/comm/mpi.hpp"

namespace gradtool {

void run_mpi_job(const std::function<void(MpiCommunicator&)>& body, const WatchLimits& limits) {
  MpiCommunicator communicator{limits};
  const auto end_job = [&](const char* what, int status) {
    fmt::print(stderr, "gradtool: rank {}: {}\n", communicator.rank(), what);
    std::fflush(nullptr);
    abort_mpi_job(status);
  };
  try {
    body(communicator);
  } catch (const Error& error) {
    if (communicator.size() == 1) throw;
    end_job(error.what(), static_cast<int>(error.fault()));
  } catch (const std::exception& error) {
    if (communicator.size() == 1) throw;
    end_job(error.what(), static_cast<int>(Fault::backend));
  } catch (...) {
    if (communicator.size() == 1) throw;
    end_job("an exception of an unknown type", static_cast<int>(Fault::backend));
  }
}

void run_mpi(const HostBody& body, double timeout_seconds) {
  expects(timeout_seconds > 0, "the timeout of an MPI job is a positive number of seconds");
  run_mpi_job(body, {.stall = timeout_seconds});
}

MpiPlace mpi_world(double timeout_seconds) {
  return start_mpi_job({.stall = timeout_seconds});
}

}  // namespace gradtool
