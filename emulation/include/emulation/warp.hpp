#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "emulation/dialect.hpp"

#if defined(GT_EMULATION_RACES)
extern "C" {
void AnnotateIgnoreReadsBegin(const char* file, int line);
void AnnotateIgnoreReadsEnd(const char* file, int line);
}
#endif

namespace emulation {

/// The values that the lanes of a warp brought to a meeting.
using Lanes = std::array<std::uint64_t, 32>;

/// Waits until all lanes of `mask` have brought their values and returns them. The reference is valid until the lane's
/// next meeting. Of CUDA's warp functions only __syncwarp orders accesses to memory.
const Lanes& meet(unsigned mask, std::uint64_t value, bool in_order = false);
/// The barrier of a block; returns how many of its threads voted.
int meet_block(bool vote);
[[nodiscard]] inline unsigned lane_id() {
  return threadIdx.x % 32;
}

template <class T>
std::uint64_t packed(const T& value) {
  static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= 8);
  std::uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof value);
  return bits;
}
template <class T>
T unpacked(std::uint64_t bits) {
  T value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}
/// Reads a value of a meeting without telling ThreadSanitizer, because these values are not memory of the GPU.
#if defined(GT_EMULATION_RACES)
class Looking {
 public:
  Looking() { AnnotateIgnoreReadsBegin(__FILE__, __LINE__); }
  ~Looking() { AnnotateIgnoreReadsEnd(__FILE__, __LINE__); }
  Looking(const Looking&) = delete;
  Looking& operator=(const Looking&) = delete;
};
#else
struct Looking {
  Looking() {}
};
#endif
/// The value of `lane` in this thread's segment of `width` lanes when `inside`, else the thread's own value.
template <class T>
T shuffled(unsigned mask, const T& value, unsigned lane, bool inside) {
  const Lanes& lanes = meet(mask, packed(value));
  const Looking looking;
  return inside ? unpacked<T>(lanes[lane % 32]) : value;
}
/// Joins the values of all lanes in `mask`, in lane order.
template <class T, class Join>
T joined(unsigned mask, const T& value, Join join) {
  const Lanes& lanes = meet(mask, packed(value));
  const Looking looking;
  unsigned left = mask;
  T all = unpacked<T>(lanes[static_cast<unsigned>(std::countr_zero(left))]);
  for (left &= left - 1; left != 0; left &= left - 1)
    all = join(all, unpacked<T>(lanes[static_cast<unsigned>(std::countr_zero(left))]));
  return all;
}

}  // namespace emulation

inline void __syncthreads() {
  emulation::meet_block(false);
}
inline int __syncthreads_count(int vote) {
  return emulation::meet_block(vote != 0);
}
inline void __syncwarp(unsigned mask = 0xffffffffu) {
  emulation::meet(mask, 0, true);
}

template <class T>
T __shfl_sync(unsigned mask, T value, int source, int width = 32) {
  const unsigned w = static_cast<unsigned>(width);
  return emulation::shuffled(mask, value, (emulation::lane_id() & ~(w - 1)) | (static_cast<unsigned>(source) & (w - 1)),
                             true);
}
template <class T>
T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32) {
  const unsigned lane = emulation::lane_id();
  return emulation::shuffled(mask, value, lane - delta, lane % static_cast<unsigned>(width) >= delta);
}
template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32) {
  const unsigned lane = emulation::lane_id();
  const unsigned w = static_cast<unsigned>(width);
  return emulation::shuffled(mask, value, lane + delta, lane % w + delta < w);
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int bits, int width = 32) {
  const unsigned lane = emulation::lane_id();
  const unsigned other = lane ^ static_cast<unsigned>(bits);
  // Lanes of later segments keep their own value, as CUDA has it.
  return emulation::shuffled(mask, value, other,
                             other / static_cast<unsigned>(width) <= lane / static_cast<unsigned>(width));
}
inline unsigned __ballot_sync(unsigned mask, int vote) {
  const auto& lanes = emulation::meet(mask, vote != 0 ? 1u : 0u);
  const emulation::Looking looking;
  unsigned votes = 0;
  for (unsigned lane = 0; lane < 32; ++lane)
    if ((mask >> lane & 1u) != 0 && lanes[lane] != 0) votes |= 1u << lane;
  return votes;
}
inline int __any_sync(unsigned mask, int vote) {
  return __ballot_sync(mask, vote) != 0 ? 1 : 0;
}
template <class T>
unsigned __match_any_sync(unsigned mask, T value) {
  const std::uint64_t own = emulation::packed(value);
  const auto& lanes = emulation::meet(mask, own);
  const emulation::Looking looking;
  unsigned same = 0;
  for (unsigned lane = 0; lane < 32; ++lane)
    if ((mask >> lane & 1u) != 0 && lanes[lane] == own) same |= 1u << lane;
  return same;
}
#define GT_EMULATED_REDUCE(type)                                                                    \
  inline type __reduce_add_sync(unsigned mask, type value) {                                        \
    return emulation::joined(mask, value, [](type a, type b) { return static_cast<type>(a + b); }); \
  }                                                                                                 \
  inline type __reduce_max_sync(unsigned mask, type value) {                                        \
    return emulation::joined(mask, value, [](type a, type b) { return a < b ? b : a; });            \
  }
GT_EMULATED_REDUCE(unsigned)
GT_EMULATED_REDUCE(int)
#undef GT_EMULATED_REDUCE
