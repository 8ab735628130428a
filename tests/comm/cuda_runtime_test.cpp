#include <gtest/gtest.h>

#include "kernels/cuda/runtime.hpp"
#include "kernels/vector.hpp"
#include "lib/comm/host_sum.hpp"

namespace gradtool::test {
namespace {

TEST(CudaRuntime, CountsDevicesWithoutThrowing) {
  const int count = cuda::device_count();
  EXPECT_GE(count, 0);
  EXPECT_EQ(count == 0, !cuda::no_device_reason().empty());
}

TEST(CudaRuntime, MissingDevicesAreUnavailable) {
  for (const int device : {-1, cuda::device_count(), 99}) {
    try {
      cuda::require_device(device, "this test");
      FAIL() << "device " << device << " was accepted";
    } catch (const Error& error) {
      EXPECT_EQ(error.fault(), Fault::unavailable);
      EXPECT_EQ(std::string{error.what()}.find("this test needs "), 0u) << error.what();
    }
  }
}

TEST(CudaRuntime, ErrorsNameTheCallAndDoNotStick) {
  for (int i = 0; i < 2; ++i) {
    try {
      cuda::set_device(1000);
      FAIL() << "GPU 1000 was accepted";
    } catch (const Error& error) {
      EXPECT_EQ(error.fault(), Fault::backend);
      EXPECT_NE(std::string{error.what()}.find("cudaSetDevice(device) failed"), std::string::npos) << error.what();
    }
    // Without a driver every call fails again, this one too.
    if (cuda::device_count() > 0) EXPECT_NO_THROW(cuda::check_launch("nothing"));
  }
}

class OnGpu : public testing::Test {
 protected:
  void SetUp() override {
    if (cuda::device_count() == 0) GTEST_SKIP() << "no GPU here: " << cuda::no_device_reason();
  }
};

TEST_F(OnGpu, CopiesFillsAndOrdersStreams) {
  const cuda::Stream first;
  const cuda::Stream second;
  cuda::DeviceBuffer a{100'000};
  Arena<Space::cuda> arena{100'000};
  const auto b = arena.take<std::byte>(100'000);
  cuda::PinnedBuffer host{100'000};
  cuda::Event start{cuda::Event::Timing::on};
  cuda::Event stop{cuda::Event::Timing::on};
  cuda::Event filled;
  start.record(first.queue());
  cuda::fill(first.queue(), a.bytes(), 0x5a);
  filled.record(first.queue());
  filled.hold(second.queue());
  cuda::copy(second.queue(), b, a.bytes());
  cuda::copy(second.queue(), host.bytes(), b);
  cuda::synchronize(second.queue());
  stop.record(first.queue());
  stop.synchronize();
  EXPECT_TRUE(stop.reached() && cuda::idle(first.queue()));
  EXPECT_GE(cuda::elapsed_seconds(start, stop), 0);
  for (const std::byte x : host.bytes().span()) ASSERT_EQ(x, std::byte{0x5a});
  EXPECT_NE(cuda::describe(cuda::device_info(cuda::current_device())).find("sm_"), std::string::npos);
}

/// The GPU's sums are the CPU's, bit for bit, at every alignment and for every finite f16 and bf16 pattern.
TEST_F(OnGpu, SumsLikeTheCpu) {
  const cuda::Stream stream;
  constexpr std::size_t kBytes = 300'000;
  std::vector<std::uint32_t> pattern(kBytes / 4 + 8);
  std::uint32_t state = 1;
  for (auto& word : pattern) {
    state = state * 1664525u + 1013904223u;
    word = (state & 0xbfffbfffu) ^ (state >> 16 & 0x3fffu);  // exponents stay below the non-finite ones
  }
  const auto source = as_bytes(HostView<const std::uint32_t>{pattern.data(), pattern.size()});
  cuda::DeviceBuffer sum{kBytes + 32};
  cuda::DeviceBuffer addend{kBytes + 32};
  for (const Dtype dtype : {Dtype::f32, Dtype::f16, Dtype::bf16}) {
    for (const std::size_t shift : {0, 4, 12}) {
      for (const std::size_t size : {std::size_t{0}, std::size_t{4}, std::size_t{20}, kBytes - 4}) {
        std::vector<std::uint32_t> expected(pattern.begin(), pattern.begin() + static_cast<std::ptrdiff_t>(size / 4));
        const HostView<std::byte> host{reinterpret_cast<std::byte*>(expected.data()), size};
        cuda::copy(stream.queue(), sum.bytes().part(shift, size), HostView<const std::byte>{host});
        cuda::copy(stream.queue(), addend.bytes().part(4, size), source.part(16, size));
        sum_into({}, host, source.part(16, size), dtype);
        cuda::sum_into(stream.queue(), sum.bytes().part(shift, size), addend.bytes().part(4, size), dtype);
        std::vector<std::uint32_t> found(size / 4);
        cuda::copy(stream.queue(), HostView<std::byte>{reinterpret_cast<std::byte*>(found.data()), size},
                   sum.bytes().part(shift, size));
        cuda::synchronize(stream.queue());
        EXPECT_EQ(found, expected) << name_of(dtype) << ", shift " << shift << ", " << size << " bytes";
      }
    }
  }
}

}  // namespace
}  // namespace gradtool::test
