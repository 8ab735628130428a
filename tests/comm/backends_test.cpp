#include <gtest/gtest.h>

#include <cstdlib>

#include "lib/comm/launch.hpp"
#include "lib/core/error.hpp"

namespace gradtool::test {
namespace {

TEST(Backends, ListsAllFiveWithAReason) {
  const auto backends = comm_backends();
  std::vector<std::string> names;
  for (const auto& backend : backends) {
    names.push_back(backend.name);
    EXPECT_FALSE(backend.detail.empty()) << backend.name;
  }
  EXPECT_EQ(names, (std::vector<std::string>{"threads", "mpi", "udp", "nccl", "loopback"}));
  EXPECT_TRUE(backends.front().available);
}

/// A backend listed as unavailable answers with exit status 77, and one listed as available does not.
TEST(Backends, UnavailableOnesSaySo) {
  for (const auto& backend : comm_backends()) {
    if (backend.name != "nccl" && backend.name != "loopback") continue;
    bool ran = false;
    const auto body = [&](Communicator<Space::cuda>&, Queue<Space::cuda>) { ran = true; };
    try {
      if (backend.name == "nccl")
        run_nccl(1, body);
      else
        run_loopback(1, 0, body);
      EXPECT_TRUE(backend.available && ran) << backend.name;
    } catch (const Error& error) {
      EXPECT_FALSE(backend.available) << error.what();
      EXPECT_EQ(error.fault(), Fault::unavailable) << error.what();
      EXPECT_EQ(std::string{error.what()}.find('\n'), std::string::npos);
    }
  }
}

class Place : public testing::Test {
 protected:
  static constexpr const char* kNames[] = {"OMPI_COMM_WORLD_RANK",
                                           "OMPI_COMM_WORLD_SIZE",
                                           "PMI_RANK",
                                           "PMI_SIZE",
                                           "MV2_COMM_WORLD_RANK",
                                           "MV2_COMM_WORLD_SIZE",
                                           "SLURM_PROCID",
                                           "SLURM_NTASKS",
                                           "SLURM_STEP_NUM_TASKS",
                                           "RANK",
                                           "WORLD_SIZE",
                                           "MASTER_ADDR"};
  void SetUp() override { clear(); }
  void TearDown() override { clear(); }
  static void clear() {
    for (const char* name : kNames) unsetenv(name);
  }
  static void expect(int rank, int size) {
    const MpiPlace place = mpi_place();
    EXPECT_EQ(place.rank, rank);
    EXPECT_EQ(place.size, size);
  }
};

TEST_F(Place, AsTorchDistributedHasItWhereNoOtherLauncherSpeaks) {
  setenv("RANK", "2", 1);
  setenv("WORLD_SIZE", "4", 1);
  expect(0, 1);
  setenv("MASTER_ADDR", "127.0.0.1", 1);
  expect(2, 4);
  EXPECT_TRUE(mpi_place().by_environment);
  setenv("OMPI_COMM_WORLD_RANK", "1", 1);
  setenv("OMPI_COMM_WORLD_SIZE", "3", 1);
  expect(1, 3);
  EXPECT_FALSE(mpi_place().by_environment);
}

TEST_F(Place, AloneWithoutALauncher) {
  expect(0, 1);
}

TEST_F(Place, FromEachLauncher) {
  const char* pairs[][2] = {{"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"},
                            {"PMI_RANK", "PMI_SIZE"},
                            {"MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE"},
                            {"SLURM_PROCID", "SLURM_STEP_NUM_TASKS"}};
  for (const auto& [rank, size] : pairs) {
    clear();
    setenv(rank, "3", 1);
    setenv(size, "8", 1);
    expect(3, 8);
  }
}

TEST_F(Place, ABatchScriptIsNotAStep) {
  setenv("SLURM_PROCID", "0", 1);
  setenv("SLURM_NTASKS", "8", 1);
  expect(0, 1);
}

TEST_F(Place, NonsenseIsIgnored) {
  for (const char* text : {"", "x", "-1", "8", "99999999999", "1 "}) {
    setenv("OMPI_COMM_WORLD_RANK", text, 1);
    setenv("OMPI_COMM_WORLD_SIZE", "8", 1);
    expect(0, 1);
  }
}

}  // namespace
}  // namespace gradtool::test
