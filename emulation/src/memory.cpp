#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>

#include "emulation/api.hpp"
#include "emulation/launch.hpp"
#include "src/device.hpp"

namespace {

constexpr std::size_t kAlignment = 256;

/// The sizes of page-locked blocks of host memory, by their first byte.
class Pinned {
 public:
  void add(const void* memory, std::size_t bytes) {
    const std::lock_guard lock{mutex_};
    ranges_[static_cast<const std::byte*>(memory)] = bytes;
  }
  void remove(const void* memory) {
    const std::lock_guard lock{mutex_};
    ranges_.erase(static_cast<const std::byte*>(memory));
  }
  [[nodiscard]] bool holds(const void* memory) {
    const std::lock_guard lock{mutex_};
    const auto* at = static_cast<const std::byte*>(memory);
    auto range = ranges_.upper_bound(at);
    return range != ranges_.begin() && at < (--range)->first + range->second;
  }

 private:
  std::mutex mutex_;
  std::map<const std::byte*, std::size_t> ranges_;
};
Pinned& pinned() {
  static auto* const instance = new Pinned;
  return *instance;
}

void* take(std::size_t bytes) {
  void* memory = std::aligned_alloc(kAlignment, (bytes + kAlignment - 1) / kAlignment * kAlignment);
  if (memory != nullptr) std::memset(memory, 0xA7, bytes);  // a GPU does not clear memory either
  return memory;
}

}  // namespace

cudaError_t cudaMalloc(void** memory, std::size_t bytes) {
  *memory = take(bytes);
  return *memory == nullptr ? cudaErrorMemoryAllocation : cudaSuccess;
}
cudaError_t cudaFree(void* memory) {
  emulation::finish_device();
  std::free(memory);
  return cudaSuccess;
}
cudaError_t cudaMallocHost(void** memory, std::size_t bytes) {
  *memory = take(bytes);
  if (*memory == nullptr) return cudaErrorMemoryAllocation;
  pinned().add(*memory, bytes);
  return cudaSuccess;
}
cudaError_t cudaFreeHost(void* memory) {
  emulation::finish_device();
  pinned().remove(memory);
  std::free(memory);
  return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind, cudaStream_t stream) {
  if (kind == cudaMemcpyHostToDevice && !pinned().holds(from)) {
    // Memory that is not page-locked is copied before the call returns, as in CUDA.
    void* staged = std::malloc(bytes == 0 ? 1 : bytes);
    if (staged == nullptr) return cudaErrorMemoryAllocation;
    std::memcpy(staged, from, bytes);
    emulation::enqueue(stream, [=] {
      std::memcpy(to, staged, bytes);
      std::free(staged);
    });
    return cudaSuccess;
  }
  emulation::enqueue(stream, [=] { std::memmove(to, from, bytes); });
  if (kind == cudaMemcpyDeviceToHost && !pinned().holds(to)) return cudaStreamSynchronize(stream);
  return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void* memory, int value, std::size_t bytes, cudaStream_t stream) {
  emulation::enqueue(stream, [=] { std::memset(memory, value, bytes); });
  return cudaSuccess;
}
