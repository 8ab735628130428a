// The collective cases on the mpi communicator, for `mpiexec -n N`; CTest runs it. Not a GoogleTest program: N
// processes would each report, and a failed expectation must end all of them.
#include <fmt/format.h>

#include <chrono>
#include <cstdlib>
#include <string>
#include <thread>

#include "lib/comm/launch.hpp"
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
  run_mpi([](Host& comm) {
    Rank<Space::host> rank{comm, {}};
    for (int step = 0; step < 10; ++step) {
      if (comm.rank() == 1 && step == 5) throw Error{Fault::data, "gone on purpose"};
      rank.all_reduce(std::vector<float>(10'000, 1.0f), Dtype::f32);
    }
  });
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

int run(const std::string& what, bool all) {
  if (what == "fail")
    fail_in_the_middle();
  else if (what == "exit")
    exit_between_jobs();
  else if (what == "sizes")
    disagree_on_sizes();
  else
    run_cases(std::stoi(what), all);
  return 0;
}

}  // namespace
}  // namespace gradtool::test

int main(int argc, char** argv) {
  try {
    const bool sums = argc == 3 && std::string{argv[2]} == "sums";
    if (argc != 2 && !sums) throw gradtool::Error{gradtool::Fault::usage, "usage: comm_mpi N|fail|exit|sizes [sums]"};
    return gradtool::test::run(argv[1], !sums);
  } catch (const gradtool::Error& error) {
    fmt::print(stderr, "comm_mpi: {}\n", error.what());
    return static_cast<int>(error.fault());
  }
}
