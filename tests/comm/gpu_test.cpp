#include <gtest/gtest.h>

#include "lib/comm/launch.hpp"
#include "lib/core/error.hpp"
#include "tests/comm/collectives.hpp"
#include "tests/comm/rank_memory.hpp"

/// The communicators of the GPU run the cases of the others. Without CUDA, or without enough GPUs, they are skipped by
/// name, with the sentence that the launcher threw.
namespace gradtool::test {
namespace {

void run_all_cases(Communicator<Space::cuda>& comm, Queue<Space::cuda> queue, std::string_view name) {
#ifdef GT_WITH_CUDA
  require(comm.name() == name, "not the communicator that was asked for");
  for (const auto& one : collective_cases<Space::cuda>()) {
    comm.reset_traffic();
    try {
      one.run(comm, queue);
    } catch (const Error& error) {
      throw Error{error.fault(), std::string{one.name} + ": " + error.what()};
    }
    comm.barrier(queue);
  }
#else
  static_cast<void>(queue);
  throw Error{Fault::check, std::string{name} + " ran without CUDA, as " + std::string{comm.name()}};
#endif
}

/// Runs `launch`; the reason when it is not available here, else empty.
template <class Launch>
std::string unavailable(Launch&& launch) {
  try {
    launch();
  } catch (const Error& error) {
    if (error.fault() != Fault::unavailable) throw;
    return error.what();
  }
  return "";
}

std::string param_name(const testing::TestParamInfo<int>& info) {
  return std::to_string(info.param) + "_ranks";
}

class Loopback : public testing::TestWithParam<int> {};
TEST_P(Loopback, Collectives) {
  const std::string reason = unavailable(
      [] { run_loopback(GetParam(), 0, [](auto& comm, auto queue) { run_all_cases(comm, queue, "loopback"); }); });
  if (!reason.empty()) GTEST_SKIP() << reason;
}
INSTANTIATE_TEST_SUITE_P(Ranks, Loopback, testing::Values(1, 2, 3, 8), param_name);

class Nccl : public testing::TestWithParam<int> {};
TEST_P(Nccl, Collectives) {
  const std::string reason =
      unavailable([] { run_nccl(GetParam(), [](auto& comm, auto queue) { run_all_cases(comm, queue, "nccl"); }); });
  if (!reason.empty()) GTEST_SKIP() << reason;
}
INSTANTIATE_TEST_SUITE_P(Gpus, Nccl, testing::Values(1, 2, 4, 8), param_name);

/// A failing rank releases ranks whose streams wait for it.
template <class Launch>
void expect_failure_reaches_all(Launch&& launch) {
  const auto body = [](Communicator<Space::cuda>& comm, Queue<Space::cuda> queue) {
#ifdef GT_WITH_CUDA
    Rank<Space::cuda> rank{comm, queue};
    rank.all_reduce(std::vector<float>(1000, 1.0f), Dtype::f32);
    if (comm.rank() == 1) throw Error{Fault::data, "gone"};
    rank.all_reduce(std::vector<float>(1000, 1.0f), Dtype::f32);
    comm.barrier(queue);
#else
    static_cast<void>(comm);
    static_cast<void>(queue);
#endif
  };
  try {
    launch(body);
    FAIL() << "nothing was thrown";
  } catch (const Error& error) {
    if (error.fault() == Fault::unavailable) GTEST_SKIP() << error.what();
    EXPECT_EQ(error.fault(), Fault::data) << error.what();
  }
}
TEST(LoopbackFailure, ReachesTheOthers) {
  expect_failure_reaches_all([](const CudaBody& body) { run_loopback(4, 0, body); });
}
TEST(NcclFailure, ReachesTheOthers) {
  expect_failure_reaches_all([](const CudaBody& body) { run_nccl(2, body); });
}

}  // namespace
}  // namespace gradtool::test
