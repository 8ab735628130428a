// The collective cases on the mpi communicator, for `mpiexec -n N`; CTest runs it. Not a GoogleTest program: N
// processes would each report, and a failed expectation must end all of them.
#include <fmt/format.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <string>
#include <thread>

#include "lib/comm/mpi.hpp"
#include "lib/core/error.hpp"
#include "tests/comm/collectives.hpp"
#include "tests/comm/rank_memory.hpp"

namespace gradtool::test {
namespace {

using Host = Communicator<Space::host>;
constexpr std::string_view kFirstOther = "rounds_at_every_hop";

/// All cases, or those about sums: the first ones, which hold for any number of ranks and are quick.
void run_cases(int expected_size, bool all) {
  run_mpi([&](Host& comm) {
    require(comm.name() == "mpi" && comm.size() == expected_size,
            fmt::format("this is {} of {} ranks, expected mpi and {}", comm.name(), comm.size(), expected_size));
    require(mpi_place().rank == comm.rank() && mpi_place().size == comm.size(), "mpi_place disagrees with MPI");
    for (const auto& one : collective_cases<Space::host>()) {
      if (!all && std::string_view{one.name} == kFirstOther) break;
      comm.reset_traffic();
      try {
        one.run(comm, {});
      } catch (const Error& error) {
        throw Error{error.fault(), fmt::format("{}: {}", one.name, error.what())};
      }
      comm.barrier({});
      if (comm.rank() == 0) fmt::print("ok {}\n", one.name);
    }
  });
  // A second communicator in the same process, as the bench makes one per row.
  run_mpi([](Host& comm) { comm.barrier({}); });
}

void fail_in_the_middle() {
  constexpr double kLongerThanAnyClock = 1e12;
  run_mpi(
      [](Host& comm) {
        Rank<Space::host> rank{comm, {}};
        for (int step = 0; step < 10; ++step) {
          if (comm.rank() == 1 && step == 5) throw Error{Fault::data, "gone on purpose"};
          rank.all_reduce(std::vector<float>(10'000, 1.0f), Dtype::f32);
        }
      },
      kLongerThanAnyClock);
}

/// Rank 1 ends between two jobs, outside of anything that run_mpi could catch.
void exit_between_jobs() {
  run_mpi([](Host& comm) { comm.barrier({}); });
  if (mpi_place().rank == 1) std::exit(3);
  run_mpi([](Host& comm) { comm.barrier({}); });
}

/// Sizes that disagree are an error, not a wrong result.
void disagree_on_sizes() {
  run_mpi([](Host& comm) {
    std::vector<std::byte> bytes(200);
    const HostView<std::byte> view{bytes.data(), bytes.size()};
    const int other = comm.rank() ^ 1;
    comm.exchange({}, other, view.first(comm.rank() == 0 ? 96 : 100), other, view.part(100, 100));
  });
}

/// Short, so that a test takes seconds.
constexpr WatchLimits kShort{.stall = 2.0, .silence = 2.0, .period = 0.2};

/// Rank `victim` does `what` between two all-reduces of many, and the others wait for it.
template <class What>
void happens_to(int victim, What&& what) {
  run_mpi_job(
      [&](MpiCommunicator& comm) {
        Rank<Space::host> rank{comm, {}};
        for (int step = 0; step < 20; ++step) {
          if (comm.rank() == victim && step == 10) what(comm);
          rank.all_reduce(std::vector<float>(10'000, 1.0f), Dtype::f32);
        }
      },
      kShort);
}

void compute_for(std::chrono::duration<double> time) {
  const auto start = std::chrono::steady_clock::now();
  while (std::chrono::steady_clock::now() - start < time) {
  }
}

/// Every rank in turn takes most of the time-out, and all of them together many times as long.
void be_slow() {
  run_mpi_job(
      [](MpiCommunicator& comm) {
        for (int turn = 0; turn < comm.size(); ++turn) {
          if (turn == comm.rank()) compute_for(std::chrono::duration<double>{0.6 * kShort.stall});
          comm.barrier({});
        }
      },
      kShort);
  // Between two jobs a rank has longer.
  if (mpi_place().rank == 0) compute_for(std::chrono::duration<double>{1.2 * kShort.stall});
  run_mpi_job([](MpiCommunicator& comm) { comm.barrier({}); }, kShort);
}

/// Runs a fault of a rank that must not keep the others waiting; false: `what` is not one of these.
bool run_victim(const std::string& what, int victim) {
  if (what == "kill")
    happens_to(victim, [](Host&) { std::raise(SIGKILL); });
  else if (what == "stop")
    happens_to(victim, [](Host&) { std::raise(SIGSTOP); });
  else if (what == "compute")
    happens_to(victim, [](Host&) { compute_for(std::chrono::hours{1}); });
  else if (what == "leave")
    happens_to(victim, [](Host&) { std::exit(0); });
  else if (what == "mismatch")
    happens_to(victim, [](Host& comm) { comm.barrier({}); });
  else
    return false;
  return true;
}

int run(const std::string& what, const std::string& more) {
  if (!more.empty() && more != "sums" && run_victim(what, std::stoi(more))) return 0;

  if (what == "fail")
    fail_in_the_middle();
  else if (what == "exit")
    exit_between_jobs();
  else if (what == "sizes")
    disagree_on_sizes();
  else if (what == "slow")
    be_slow();
  else
    run_cases(std::stoi(what), more != "sums");
  return 0;
}

}  // namespace
}  // namespace gradtool::test

int main(int argc, char** argv) {
  try {
    if (argc < 2) {
      throw gradtool::Error{gradtool::Fault::usage,
                            "usage: comm_mpi N [sums], fail|exit|sizes|slow, or kill|stop|compute|leave|mismatch RANK"};
    }
    return gradtool::test::run(argv[1], argc > 2 ? argv[2] : "");
  } catch (const gradtool::Error& error) {
    fmt::print(stderr, "comm_mpi: {}\n", error.what());
    return exit_status(error.fault());
  }
}
