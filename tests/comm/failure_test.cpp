#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <latch>
#include <thread>

#include "lib/comm/launch.hpp"
#include "tests/comm/rank_memory.hpp"

/// Ranks that fail, stall or leave: the others are told, and soon.
namespace gradtool::test {
namespace {

using Host = Communicator<Space::host>;
using std::chrono::milliseconds;

/// A time-out that a test does not live to see: ranks that are not told of a failure wait until CTest ends them.
constexpr double kForever = 1e6;

/// The error that `run_threads` ends with.
template <class Body>
Error error_of(int ranks, Body&& body, double timeout_seconds = kForever) {
  try {
    run_threads(ranks, body, timeout_seconds);
  } catch (const Error& error) {
    return error;
  }
  return Error{Fault::check, "nothing was thrown"};
}

void reduce(Host& comm, std::size_t elements = 4096) {
  Rank<Space::host> rank{comm, {}};
  rank.all_reduce(std::vector<float>(elements, 1.0f), Dtype::f32);
}

TEST(Failure, BeforeTheFirstCollective) {
  std::atomic<int> told{0};
  const Error error = error_of(5, [&](Host& comm) {
    if (comm.rank() == 2) throw Error{Fault::data, "the file ends here"};
    try {
      reduce(comm);
    } catch (const Error& other) {
      if (other.fault() == Fault::backend && std::string{other.what()} == "rank 2 failed: the file ends here") ++told;
      throw;
    }
  });
  EXPECT_EQ(error.fault(), Fault::data);
  EXPECT_STREQ(error.what(), "the file ends here");
  EXPECT_EQ(told, 4);
}

TEST(Failure, BetweenCollectivesInEveryKindOfWait) {
  for (int kind = 0; kind < 9; ++kind) {
    const Error error = error_of(4, [&](Host& comm) {
      reduce(comm);
      if (comm.rank() == 3) {
        std::this_thread::sleep_for(milliseconds{20});  // let the others wait
        throw Error{Fault::check, "no more"};
      }
      std::vector<std::byte> bytes(64);
      const HostView<std::byte> view{bytes.data(), bytes.size()};
      double value[1] = {0};
      if (kind == 0) reduce(comm);
      if (kind == 1) comm.barrier({});
      if (kind == 2) comm.agree_max(value);
      if (kind == 3) comm.broadcast({}, view, 3);
      if (kind == 4 && comm.rank() == 0) comm.exchange({}, 3, view, 0, {});  // only sends
      const HostView<std::byte> scratch = view.part(32, 32);
      if (kind == 5) comm.reduce_scatter_sum({}, view.first(32), Dtype::f32, scratch);
      if (kind == 6) comm.all_to_all({}, view.first(32), scratch);
      if (kind == 7 && comm.rank() == 2) comm.recv({}, 3, view);
      if (kind == 8) {
        comm.set_all_reduce(AllReduce::doubling);
        comm.all_reduce_sum({}, view.first(32), Dtype::f32, scratch);
      }
      comm.barrier({});
    });
    EXPECT_EQ(error.fault(), Fault::check) << "kind " << kind;
    EXPECT_STREQ(error.what(), "no more");
  }
}

TEST(Failure, KeepsTheTypeOfTheFirstException) {
  struct Odd : std::exception {
    [[nodiscard]] const char* what() const noexcept override { return "odd"; }
  };
  const auto run = [] {
    run_threads(
        3,
        [](Host& comm) {
          if (comm.rank() == 1) throw Odd{};
          comm.barrier({});
        },
        kForever);
  };
  EXPECT_THROW(run(), Odd);
  EXPECT_THROW(run_threads(
                   2,
                   [](Host& comm) {
                     if (comm.rank() == 0) throw 7;
                     comm.barrier({});
                   },
                   kForever),
               int);
}

TEST(Failure, AStalledRankIsNamed) {
  for (const bool at_barrier : {false, true}) {
    std::latch given_up{3};
    const Error error = error_of(
        4,
        [&](Host& comm) {
          if (comm.rank() == 1) return given_up.wait();
          try {
            if (at_barrier)
              comm.barrier({});
            else
              reduce(comm);
          } catch (const Error&) {
            given_up.count_down();
            throw;
          }
        },
        3.0);
    EXPECT_EQ(error.fault(), Fault::backend);
    EXPECT_NE(std::string{error.what()}.find("waited 3 s for rank 1"), std::string::npos) << error.what();
  }
}

TEST(Failure, ARankThatHasFinishedIsNamedAtOnce) {
  for (const bool at_barrier : {false, true}) {
    const Error error = error_of(3, [&](Host& comm) {
      if (comm.rank() == 2) return;
      if (at_barrier)
        comm.barrier({});
      else
        comm.exchange({}, 2, {}, 2, {});
      std::byte byte{};
      comm.exchange({}, 0, {}, 2, HostView<std::byte>{&byte, 1});
    });
    EXPECT_EQ(error.fault(), Fault::backend);
    EXPECT_NE(std::string{error.what()}.find("waits for rank 2, which has already finished"), std::string::npos)
        << error.what();
  }
}

TEST(Failure, SizesThatDoNotMatch) {
  const Error bytes = error_of(2, [](Host& comm) {
    std::vector<std::byte> memory(200);
    const HostView<std::byte> view{memory.data(), memory.size()};
    comm.exchange({}, 1 - comm.rank(), view.first(100), 1 - comm.rank(), view.part(100, comm.rank() == 0 ? 100 : 96));
  });
  EXPECT_EQ(bytes.fault(), Fault::usage);
  EXPECT_STREQ(bytes.what(), "rank 0 sent 100 bytes to rank 1, which expected 96: the ranks' calls do not match");
  const Error values = error_of(3, [](Host& comm) {
    std::vector<double> maxima(comm.rank() == 1 ? 2 : 3);
    comm.agree_max(maxima);
  });
  EXPECT_EQ(values.fault(), Fault::internal);
}

// Whoever fails while a peer reads its memory must hold on until the peer is done; ASan and TSan watch the buffers
// here.
TEST(Failure, AtRandomMomentsUnderLoad) {
  for (int round = 0; round < 40; ++round) {
    const Error error = error_of(6, [&](Host& comm) {
      for (int step = 0; step < 12; ++step) {
        if (comm.rank() == round % 6 && step == round % 11) throw Error{Fault::data, "gone"};
        reduce(comm, 20'000);
      }
    });
    EXPECT_EQ(error.fault(), Fault::data);
  }
}

}  // namespace
}  // namespace gradtool::test
