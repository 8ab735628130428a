#pragma once

#include <cstddef>
#include <cstdint>

struct CUstream_st;

namespace emulation {

inline constexpr std::size_t kSharedBytes = 227 * 1024;  ///< of a block, as on compute capability 9.0

/// From GRADTOOL_EMULATION_SEED, 1 without: which orders of threads and streams are played.
[[nodiscard]] std::uint32_t order_seed();

[[nodiscard]] int current_device();  ///< of the calling thread
/// The host waits until all work is done on the current device's streams.
void finish_device();
/// True when no work is left. Plays one task when there is some, so that polling comes to an end.
[[nodiscard]] bool advance(CUstream_st* stream);

/// A mark in a stream: the state of an event when it was recorded.
struct Mark {
  CUstream_st* stream;
  std::uint64_t position;  ///< tasks of the stream up to it
};
[[nodiscard]] Mark mark_here(CUstream_st* stream);
void finish(const Mark& mark);
[[nodiscard]] bool reached(const Mark& mark);
/// Tasks that wait are asked again.
void wake();
/// Later tasks of the stream are played after the mark is reached.
void hold(CUstream_st* stream, const Mark& mark);

}  // namespace emulation
