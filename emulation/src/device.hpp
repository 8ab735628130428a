#pragma once

#include <cstddef>
#include <cstdint>

struct CUstream_st;

namespace emulation {

inline constexpr std::size_t kSharedBytes = 227 * 1024;  ///< shared memory of a block, as with compute capability 9.0

/// The seed for the order of threads and streams: the variable GRADTOOL_EMULATION_SEED, or 1 when it is not set.
[[nodiscard]] std::uint32_t order_seed();

[[nodiscard]] int current_device();  ///< the device of the calling thread
/// Makes the host wait until all work on the current device's streams is done.
void finish_device();
/// True when no work is left. Otherwise it runs one task, so that a loop that polls comes to an end.
[[nodiscard]] bool advance(CUstream_st* stream);

/// A position in a stream, at which an event was recorded.
struct Mark {
  CUstream_st* stream;
  std::uint64_t position;  ///< number of the stream's tasks before it
};
[[nodiscard]] Mark mark_here(CUstream_st* stream);
void finish(const Mark& mark);
[[nodiscard]] bool reached(const Mark& mark);
/// Lets tasks that wait check again whether they can continue.
void wake();
/// Makes later tasks of the stream wait until the mark is reached.
void hold(CUstream_st* stream, const Mark& mark);

}  // namespace emulation
