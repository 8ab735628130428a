#include "kernels/cuda/runtime.hpp"

#include <cuda_runtime.h>

#include <cstdlib>

namespace gradtool::cuda {
namespace {

// Kernels are loaded when CUDA starts. By default each is loaded by its first launch, which may wait for the GPU:
// inside of timed regions, and for ever behind a collective whose other ranks wait for this one. Before main, because
// CUDA reads it once; a user's own setting stays.
const bool kLoadsEagerly = (setenv("CUDA_MODULE_LOADING", "EAGER", 0) == 0);

}  // namespace

namespace detail {

void fail(int code, const char* call, const char* file, int line) {
  const auto error = static_cast<cudaError_t>(code);
  cudaGetLastError();
  throw Error{
      Fault::backend,
      std::string{"CUDA: "} + call + " failed: " + cudaGetErrorString(error) + " (" + cudaGetErrorName(error) + ")",
      file, line};
}

}  // namespace detail

void check_launch(const char* kernel, const char* file, int line) {
  const cudaError_t error = cudaGetLastError();
  if (error == cudaSuccess) return;
  const std::string call = std::string{"launch of "} + kernel;
  detail::fail(static_cast<int>(error), call.c_str(), file, line);
}

int device_count() noexcept {
  static_cast<void>(kLoadsEagerly);
  int count = 0;
  if (cudaGetDeviceCount(&count) == cudaSuccess) return count;
  cudaGetLastError();
  return 0;
}

bool emulated() noexcept {
#if defined(GT_EMULATED_CUDA)
  return true;
#else
  return false;
#endif
}

std::string no_device_reason() {
  // Without a driver the runtime speaks of an insufficient one.
  int driver = 0;
  if (cudaDriverGetVersion(&driver) == cudaSuccess && driver == 0) return "no NVIDIA driver is installed";
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  cudaGetLastError();
  if (error != cudaSuccess) return cudaGetErrorString(error);
  return count > 0 ? "" : "no CUDA-capable device is detected";
}

void require_device(int device, std::string_view what) {
  const int count = device_count();
  if (device >= 0 && device < count) return;
  std::string message{what};
  if (count == 0) {
    message += " needs a CUDA GPU, and there is none here: " + no_device_reason();
  } else {
    message += " needs GPU " + std::to_string(device) + ", and this machine has GPUs 0 to " + std::to_string(count - 1);
  }
  throw Error{Fault::unavailable, message};
}

void set_device(int device) {
  GT_CUDA(cudaSetDevice(device));
}

int current_device() {
  int device = 0;
  GT_CUDA(cudaGetDevice(&device));
  return device;
}

DeviceInfo device_info(int device) {
  cudaDeviceProp properties{};
  GT_CUDA(cudaGetDeviceProperties(&properties, device));
  DeviceInfo info;
  info.name = properties.name;
  info.major = properties.major;
  info.minor = properties.minor;
  info.multiprocessors = properties.multiProcessorCount;
  info.memory_bytes = properties.totalGlobalMem;
  info.l2_bytes = static_cast<std::size_t>(properties.l2CacheSize);
  info.shared_bytes = properties.sharedMemPerBlockOptin;
  GT_CUDA(cudaDriverGetVersion(&info.driver));
  GT_CUDA(cudaRuntimeGetVersion(&info.runtime));
  return info;
}

std::string pci_bus_id(int device) {
  char id[32] = {};
  GT_CUDA(cudaDeviceGetPCIBusId(id, static_cast<int>(sizeof id), device));
  return id;
}

std::string describe(const DeviceInfo& info) {
  const auto version = [](int v) { return std::to_string(v / 1000) + "." + std::to_string(v % 1000 / 10); };
  return info.name + " (sm_" + std::to_string(info.major) + std::to_string(info.minor) + ", " +
         std::to_string(info.multiprocessors) + " SMs, " + std::to_string(info.memory_bytes / 1'000'000'000) +
         " GB, L2 " + std::to_string(info.l2_bytes >> 20) + " MiB; driver " + version(info.driver) + ", runtime " +
         version(info.runtime) + ")";
}

// Destructors ignore errors: the driver may already be gone at exit, and a failed kernel was reported by its caller.
Stream::Stream() {
  GT_CUDA(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
}
Stream::~Stream() {
  if (stream_ != nullptr) cudaStreamDestroy(stream_);
}

Event::Event(Timing timing) {
  GT_CUDA(cudaEventCreateWithFlags(&event_, timing == Timing::on ? cudaEventDefault : cudaEventDisableTiming));
}
Event::~Event() {
  if (event_ != nullptr) cudaEventDestroy(event_);
}
void Event::record(Queue<Space::cuda> queue) const {
  GT_CUDA(cudaEventRecord(event_, queue.stream));
}
void Event::hold(Queue<Space::cuda> queue) const {
  GT_CUDA(cudaStreamWaitEvent(queue.stream, event_, 0));
}
bool Event::reached() const {
  const cudaError_t error = cudaEventQuery(event_);
  if (error == cudaErrorNotReady) {
    cudaGetLastError();
    return false;
  }
  GT_CUDA(error);
  return true;
}
void Event::synchronize() const {
  GT_CUDA(cudaEventSynchronize(event_));
}

double elapsed_seconds(const Event& start, const Event& stop) {
  float milliseconds = 0;
  GT_CUDA(cudaEventElapsedTime(&milliseconds, start.event_, stop.event_));
  return static_cast<double>(milliseconds) * 1e-3;
}

DeviceBuffer::DeviceBuffer(std::size_t bytes) : size_{bytes} {
  if (bytes > 0) GT_CUDA(cudaMalloc(&data_, bytes));
}
DeviceBuffer::~DeviceBuffer() {
  if (data_ != nullptr) cudaFree(data_);
}

PinnedBuffer::PinnedBuffer(std::size_t bytes) : size_{bytes} {
  if (bytes > 0) GT_CUDA(cudaMallocHost(&data_, bytes));
}
PinnedBuffer::~PinnedBuffer() {
  if (data_ != nullptr) cudaFreeHost(data_);
}

namespace {

void copy_bytes(Queue<Space::cuda> queue, std::byte* to, std::size_t to_size, const std::byte* from,
                std::size_t from_size, cudaMemcpyKind kind) {
  expects(to_size == from_size, "a copy needs two views of the same size");
  if (to_size > 0) GT_CUDA(cudaMemcpyAsync(to, from, to_size, kind, queue.stream));
}

}  // namespace

void copy(Queue<Space::cuda> queue, View<std::byte, Space::cuda> to, View<const std::byte, Space::cuda> from) {
  copy_bytes(queue, to.data(), to.size(), from.data(), from.size(), cudaMemcpyDeviceToDevice);
}
void copy(Queue<Space::cuda> queue, View<std::byte, Space::cuda> to, HostView<const std::byte> from) {
  copy_bytes(queue, to.data(), to.size(), from.data(), from.size(), cudaMemcpyHostToDevice);
}
void copy(Queue<Space::cuda> queue, HostView<std::byte> to, View<const std::byte, Space::cuda> from) {
  copy_bytes(queue, to.data(), to.size(), from.data(), from.size(), cudaMemcpyDeviceToHost);
}

void fill(Queue<Space::cuda> queue, View<std::byte, Space::cuda> view, std::uint8_t value) {
  if (!view.empty()) GT_CUDA(cudaMemsetAsync(view.data(), value, view.size(), queue.stream));
}

void synchronize(Queue<Space::cuda> queue) {
  GT_CUDA(cudaStreamSynchronize(queue.stream));
}

bool idle(Queue<Space::cuda> queue) {
  const cudaError_t error = cudaStreamQuery(queue.stream);
  if (error == cudaErrorNotReady) {
    cudaGetLastError();
    return false;
  }
  GT_CUDA(error);
  return true;
}

void synchronize_device() {
  GT_CUDA(cudaDeviceSynchronize());
}

}  // namespace gradtool::cuda

namespace gradtool {

template <>
Arena<Space::cuda>::Arena(std::size_t capacity) : capacity_{padded_size(capacity)} {
  // One more alignment unit, as on the host: an empty arena still has a base.
  std::byte* base = nullptr;
  GT_CUDA(cudaMalloc(&base, capacity_ + kAlignment));
  base_.reset(base);
}

template <>
void Arena<Space::cuda>::Free::operator()(std::byte* bytes) const noexcept {
  cudaFree(bytes);
}

template class Arena<Space::cuda>;

}  // namespace gradtool
