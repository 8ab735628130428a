#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "kernels/float_bits.hpp"
#include "lib/core/arena.hpp"
#include "lib/core/error.hpp"
#include "lib/core/view.hpp"

struct CUevent_st;  // cudaEvent_t is CUevent_st*

/// The CUDA runtime as the rest of gradtool sees it. This header includes no CUDA header, so lib/ may include it; it is
/// there only in builds with CUDA. Every call that fails throws Fault::backend with the text of the call and CUDA's
/// reason. Copies and fills are enqueued; nothing here synchronises except what says so.
namespace gradtool::cuda {

/// Threads of a block, unless a kernel says otherwise.
inline constexpr unsigned kThreads = 256;

/// Blocks for a grid-stride loop in which a block takes `per_block` items at a time: enough to fill any GPU a few times
/// over, and at least one.
inline unsigned blocks_for(std::size_t items, std::size_t per_block, std::size_t most = 8192) {
  return static_cast<unsigned>(std::clamp<std::size_t>((items + per_block - 1) / per_block, 1, most));
}

/// True when `pointer` allows accesses of `bytes` bytes.
GT_HD inline bool aligned_to(const void* pointer, std::size_t bytes) {
  return reinterpret_cast<std::uintptr_t>(pointer) % bytes == 0;
}

namespace detail {
/// Clears the runtime's last error, so that the next check does not report this one again, and throws Fault::backend.
[[noreturn]] void fail(int code, const char* call, const char* file, int line);
}  // namespace detail

/// `code` is a cudaError_t as int. Use through GT_CUDA, where cudaError_t is known.
inline void check(int code, const char* call, const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  if (code != 0) detail::fail(code, call, file, line);
}
/// After a kernel launch: throws when it was refused (bad configuration, no code for this GPU). Does not wait for it.
void check_launch(const char* kernel, const char* file = __builtin_FILE(), int line = __builtin_LINE());

/// GPUs that this process can use: 0 without a driver or a device, never an error.
[[nodiscard]] int device_count() noexcept;
/// True in a build whose GPU is the CPU (emulation/README.md): results count, timings do not.
[[nodiscard]] bool emulated() noexcept;
/// Why device_count() is 0, in CUDA's words; empty when there is a GPU.
[[nodiscard]] std::string no_device_reason();
/// Fault::unavailable with one sentence when GPU `device` is not here; `what` is who needs it ("the loopback
/// communicator").
void require_device(int device, std::string_view what);

/// The calling thread's GPU. Every thread starts on GPU 0.
void set_device(int device);
[[nodiscard]] int current_device();

struct DeviceInfo {
  std::string name;          ///< "NVIDIA H200"
  int major = 0, minor = 0;  ///< compute capability
  int multiprocessors = 0;
  std::size_t memory_bytes = 0;
  std::size_t l2_bytes = 0;
  std::size_t shared_bytes = 0;  ///< shared memory that one block can opt in to
  int driver = 0, runtime = 0;   ///< versions as 1000 major + 10 minor
};
[[nodiscard]] DeviceInfo device_info(int device);
/// The GPU's PCI address in NVML's form: "00000000:3B:00.0".
[[nodiscard]] std::string pci_bus_id(int device);
/// "NVIDIA H200 (sm_90, 132 SMs, 141 GB, L2 60 MiB; driver 13.0, runtime 13.0)".
[[nodiscard]] std::string describe(const DeviceInfo& info);

class Event;

/// A stream of the calling thread's device that does not synchronise with the default stream. Movable.
class Stream {
 public:
  Stream();
  ~Stream();
  Stream(Stream&& other) noexcept : stream_{std::exchange(other.stream_, nullptr)} {}
  Stream& operator=(Stream&& other) noexcept {
    std::swap(stream_, other.stream_);
    return *this;
  }
  [[nodiscard]] Queue<Space::cuda> queue() const noexcept { return {stream_}; }

 private:
  ::CUstream_st* stream_ = nullptr;
};

/// A mark in a stream. Without timing it costs less, and is what ordering between streams needs.
class Event {
 public:
  enum class Timing : bool { off, on };
  explicit Event(Timing timing = Timing::off);
  ~Event();
  Event(Event&& other) noexcept : event_{std::exchange(other.event_, nullptr)} {}
  Event& operator=(Event&& other) noexcept {
    std::swap(event_, other.event_);
    return *this;
  }

  void record(Queue<Space::cuda> queue) const;
  /// Later work on `queue` starts after what was recorded last; does nothing when nothing was. The host does not wait.
  void hold(Queue<Space::cuda> queue) const;
  [[nodiscard]] bool reached() const;  ///< what was recorded last is done
  void synchronize() const;            ///< the host waits

 private:
  friend double elapsed_seconds(const Event& start, const Event& stop);
  ::CUevent_st* event_ = nullptr;
};
/// Between two reached events with timing; resolution about half a microsecond.
[[nodiscard]] double elapsed_seconds(const Event& start, const Event& stop);

/// Device memory of the calling thread's GPU, at least 256-byte aligned, not cleared. Size 0 holds no memory.
/// Allocating and freeing synchronise the device: keep them out of timed regions.
class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  explicit DeviceBuffer(std::size_t bytes);
  ~DeviceBuffer();
  DeviceBuffer(DeviceBuffer&& other) noexcept
      : data_{std::exchange(other.data_, nullptr)}, size_{std::exchange(other.size_, 0)} {}
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }
  [[nodiscard]] std::size_t size() const noexcept { return size_; }
  [[nodiscard]] View<std::byte, Space::cuda> bytes() const noexcept { return {data_, size_}; }
  /// The whole buffer as elements of T; a remainder is left out.
  template <class T>
  [[nodiscard]] View<T, Space::cuda> as() const noexcept {
    return {reinterpret_cast<T*>(data_), size_ / sizeof(T)};
  }

 private:
  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

/// Page-locked host memory: copies from and to it are asynchronous and at full speed. Otherwise as DeviceBuffer.
class PinnedBuffer {
 public:
  PinnedBuffer() = default;
  explicit PinnedBuffer(std::size_t bytes);
  ~PinnedBuffer();
  PinnedBuffer(PinnedBuffer&& other) noexcept
      : data_{std::exchange(other.data_, nullptr)}, size_{std::exchange(other.size_, 0)} {}
  PinnedBuffer& operator=(PinnedBuffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }
  [[nodiscard]] std::size_t size() const noexcept { return size_; }
  [[nodiscard]] HostView<std::byte> bytes() const noexcept { return {data_, size_}; }
  template <class T>
  [[nodiscard]] HostView<T> as() const noexcept {
    return {reinterpret_cast<T*>(data_), size_ / sizeof(T)};
  }

 private:
  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

/// Enqueued copies; sizes are equal (Fault::usage otherwise). With pageable host memory the call returns when the host
/// side may be reused, with PinnedBuffer at once.
void copy(Queue<Space::cuda> queue, View<std::byte, Space::cuda> to, View<const std::byte, Space::cuda> from);
void copy(Queue<Space::cuda> queue, View<std::byte, Space::cuda> to, HostView<const std::byte> from);
void copy(Queue<Space::cuda> queue, HostView<std::byte> to, View<const std::byte, Space::cuda> from);
/// Copies elements: as_bytes of both sides.
template <class T, Space To, Space From>
requires(To == Space::cuda || From == Space::cuda) void copy_elements(Queue<Space::cuda> queue, View<T, To> to,
                                                                      View<const T, From> from) {
  copy(queue, as_writable_bytes(to), as_bytes(from));
}
/// Every byte of `view` becomes `value`; enqueued.
void fill(Queue<Space::cuda> queue, View<std::byte, Space::cuda> view, std::uint8_t value);

void synchronize(Queue<Space::cuda> queue);         ///< the host waits for all work on the stream
[[nodiscard]] bool idle(Queue<Space::cuda> queue);  ///< no work left on the stream; does not wait
void synchronize_device();

}  // namespace gradtool::cuda

/// Checks a CUDA runtime call; for .cu files, where cudaError_t is known.
#define GT_CUDA(call) ::gradtool::cuda::check(static_cast<int>(call), #call)

namespace gradtool {

template <>
Arena<Space::cuda>::Arena(std::size_t capacity);
template <>
void Arena<Space::cuda>::Free::operator()(std::byte* bytes) const noexcept;

}  // namespace gradtool
