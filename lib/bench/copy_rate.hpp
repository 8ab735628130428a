#pragma once

#include <cstddef>

#include "lib/core/view.hpp"

namespace gradtool {

/// memcpy's rate: bytes copied a second (each is read and written once), median of several copies between buffers of
/// `bytes`, cut over the queue's threads. Buffers larger than the last-level cache give the memory's rate.
[[nodiscard]] double measure_copy_rate(Queue<Space::host> queue, std::size_t bytes);

/// The size of the buffers between which copying gives the memory's rate: twice what all last-level caches of the
/// machine hold together, from 16 to 128 MiB; 128 MiB where the system does not say. They are no larger, because making
/// their pages takes longer than the copies.
[[nodiscard]] std::size_t copy_block_bytes();

/// Bytes of gradient for which waking one more thread of `pool` pays: four times what memcpy moves on one thread while
/// the pool starts and ends an empty loop, so that at most a quarter of a thread's time is spent on that. Every codec
/// is slower than memcpy, so it is no less than this.
[[nodiscard]] double measure_thread_bytes(TaskPool& pool);

/// The copy rate between two buffers of a GPU at its full clock: median of five times ten copies, after half a second
/// of copies. Only in builds with CUDA.
[[nodiscard]] double measure_device_copy_rate(int device, std::size_t bytes);

/// Drives `view` out of all caches, so that the next reader finds it in memory. Exact on x86-64 (one CLFLUSH for each
/// line); elsewhere a block of 64 MB is written over the caches.
void evict_from_caches(HostView<const std::byte> view);

}  // namespace gradtool
