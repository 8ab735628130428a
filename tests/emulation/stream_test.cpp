// Streams are lazy: what was not waited for is not done.
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <chrono>
#include <thread>
#include <vector>

namespace {

struct Streams {
  Streams() {
    cudaStreamCreateWithFlags(&a, cudaStreamNonBlocking);
    cudaStreamCreateWithFlags(&b, cudaStreamNonBlocking);
    cudaEventCreateWithFlags(&event, cudaEventDefault);
  }
  ~Streams() {
    cudaEventDestroy(event);
    cudaStreamDestroy(a);
    cudaStreamDestroy(b);
  }
  cudaStream_t a = nullptr, b = nullptr;
  cudaEvent_t event = nullptr;
};

TEST(EmulatedStream, ShowsAMissingWaitAndKeepsOneThatIsThere) {
  for (const bool waits : {false, true}) {
    const Streams on;
    int value = 0;
    int read = -1;
    emulation::enqueue(on.a, [&] { value = 7; });
    cudaEventRecord(on.event, on.a);
    if (waits) cudaStreamWaitEvent(on.b, on.event, 0);
    emulation::enqueue(on.b, [&] { read = value; });
    cudaStreamSynchronize(on.b);
    EXPECT_EQ(read, waits ? 7 : 0);
    cudaStreamSynchronize(on.a);
    EXPECT_EQ(value, 7);
  }
}

TEST(EmulatedStream, PollingComesToAnEnd) {
  const Streams on;
  int done = 0;
  for (int i = 0; i < 3; ++i) emulation::enqueue(on.a, [&] { ++done; });
  cudaEventRecord(on.event, on.a);
  EXPECT_EQ(cudaEventQuery(on.event), cudaErrorNotReady);
  while (cudaEventQuery(on.event) == cudaErrorNotReady) {
  }
  EXPECT_EQ(done, 3);
  EXPECT_EQ(cudaStreamQuery(on.a), cudaSuccess);
}

TEST(EmulatedStream, PageableCopiesAreStagedAndPinnedOnesAreNot) {
  const Streams on;
  int* device = nullptr;
  int* pinned = nullptr;
  ASSERT_EQ(cudaMalloc(&device, 2 * sizeof(int)), cudaSuccess);
  ASSERT_EQ(cudaMallocHost(&pinned, sizeof(int)), cudaSuccess);
  int pageable = *pinned = 1;
  cudaMemcpyAsync(device, &pageable, sizeof(int), cudaMemcpyHostToDevice, on.a);
  cudaMemcpyAsync(device + 1, pinned, sizeof(int), cudaMemcpyHostToDevice, on.a);
  pageable = *pinned = 2;  // too early for the second copy
  int back[2] = {0, 0};
  cudaMemcpyAsync(back, device, sizeof back, cudaMemcpyDeviceToHost, on.a);
  EXPECT_EQ(back[0], 1);
  EXPECT_EQ(back[1], 2);
  cudaFree(device);
  cudaFreeHost(pinned);
}

TEST(EmulatedStream, ServesSeveralThreads) {
  std::vector<std::thread> threads;
  std::vector<int> sums(4, 0);
  for (std::size_t t = 0; t < sums.size(); ++t) {
    threads.emplace_back([&sums, t] {
      const Streams on;
      for (int i = 0; i < 500; ++i) {
        emulation::enqueue(on.a, [&sums, t] { ++sums[t]; });
        if (i % 7 == 0) cudaStreamSynchronize(on.a);
      }
      cudaStreamSynchronize(on.a);
    });
  }
  for (auto& thread : threads) thread.join();
  for (const int sum : sums) EXPECT_EQ(sum, 500);
}

TEST(EmulatedStream, EventsTellTheTime) {
  const Streams on;
  cudaEvent_t stop = nullptr;
  cudaEventCreateWithFlags(&stop, cudaEventDefault);
  cudaEventRecord(on.event, on.a);
  emulation::enqueue(on.a, [] { std::this_thread::sleep_for(std::chrono::milliseconds{3}); });
  cudaEventRecord(stop, on.a);
  float milliseconds = 0.0F;
  EXPECT_EQ(cudaEventElapsedTime(&milliseconds, on.event, stop), cudaErrorNotReady);
  cudaStreamSynchronize(on.a);
  EXPECT_EQ(cudaEventElapsedTime(&milliseconds, on.event, stop), cudaSuccess);
  EXPECT_GE(milliseconds, 3.0F);
  cudaEventDestroy(stop);
}

}  // namespace
