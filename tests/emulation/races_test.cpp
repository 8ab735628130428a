// With ThreadSanitizer the emulated GPU shows races, and calls nothing one that CUDA orders.
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <vector>

namespace {

constexpr unsigned kThreads = 64;
constexpr unsigned kAll = 0xffffffffu;

enum class Order { none, barrier, warp, shuffle };

/// Reads what the neighbour in the warp wrote.
template <Order O>
void read_neighbour(int* out) {
  __shared__ int block[kThreads];
  const unsigned i = threadIdx.x;
  block[i] = static_cast<int>(i);
  if constexpr (O == Order::barrier) __syncthreads();
  if constexpr (O == Order::warp) __syncwarp();
  if constexpr (O == Order::shuffle) static_cast<void>(__shfl_xor_sync(kAll, 1, 1));
  out[blockIdx.x * kThreads + i] = block[i ^ 1u];
}

/// Thread 0 of every block writes the same place.
void write_one_place(int* out) {
  if (threadIdx.x == 0) out[0] = 1;
}
/// Barriers of a block do not order what other blocks do.
void read_other_block(int* out) {
  if (threadIdx.x == 0) out[1 + blockIdx.x] = 1;
  __syncthreads();
  __syncwarp();
  if (threadIdx.x == 0) out[100 + blockIdx.x] = out[1 + (blockIdx.x + 1) % gridDim.x];
}
void count_in_one_place(int* out) {
  atomicAdd(&out[0], 1);
}
/// The last block to arrive reads what all wrote.
template <bool Fence>
void add_in_last_block(int* out, unsigned* ticket) {
  if (threadIdx.x != 0) return;
  out[1 + blockIdx.x] = 1;
  if (Fence) __threadfence();
  if (atomicAdd(ticket, 1u) + 1 != gridDim.x) return;
  if (Fence) __threadfence();
  int sum = 0;
  for (unsigned b = 0; b < gridDim.x; ++b) sum += out[1 + b];
  out[0] = sum;
}

template <class Kernel>
void play(unsigned blocks, Kernel kernel) {
  emulation::launch(nullptr, "race", {blocks, 1, 1}, {kThreads, 1, 1}, 0, kernel);
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
}

/// ThreadSanitizer's report on a program that runs `kernel` alone.
class EmulatedRaces : public testing::Test {
 protected:
  void SetUp() override {
    testing::GTEST_FLAG(death_test_style) = "threadsafe";
    setenv("TSAN_OPTIONS", "halt_on_error=1:exitcode=66", 1);
  }
  void TearDown() override { unsetenv("GRADTOOL_EMULATION_RACES"); }

  template <class Kernel>
  void expect(bool race, unsigned blocks, Kernel kernel) {
    const auto run = [&] {
      play(blocks, kernel);
      std::_Exit(0);
    };
    if (race) {
      EXPECT_EXIT(run(), testing::ExitedWithCode(66), "data race");
    } else {
      EXPECT_EXIT(run(), testing::ExitedWithCode(0), "");
    }
  }
  std::vector<int> out_ = std::vector<int>(1024);
  unsigned ticket_ = 0;
};

TEST_F(EmulatedRaces, WithinABlockNeedABarrierOrOneOfTheWarp) {
  int* out = out_.data();
  expect(true, 1, [=] { read_neighbour<Order::none>(out); });
  expect(true, 1, [=] { read_neighbour<Order::shuffle>(out); });
  expect(false, 5, [=] { read_neighbour<Order::warp>(out); });
  expect(false, 5, [=] { read_neighbour<Order::barrier>(out); });
}

TEST_F(EmulatedRaces, BetweenBlocksShowWhereAskedFor) {
  int* out = out_.data();
  expect(false, 5, [=] { write_one_place(out); });
  setenv("GRADTOOL_EMULATION_RACES", "blocks", 1);
  expect(true, 5, [=] { write_one_place(out); });
  expect(true, 5, [=] { read_other_block(out); });
  expect(false, 5, [=] { count_in_one_place(out); });
  expect(false, 5, [=] { read_neighbour<Order::barrier>(out); });
}

TEST_F(EmulatedRaces, FencesOrderWhatATicketTells) {
  setenv("GRADTOOL_EMULATION_RACES", "blocks", 1);
  expect(false, 5, [this] { add_in_last_block<true>(out_.data(), &ticket_); });
  expect(true, 5, [this] { add_in_last_block<false>(out_.data(), &ticket_); });
}

}  // namespace
