#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "kernels/law/hd.hpp"

/// Schedules: who does what in a warp, written once against a Warp and run twice. DeviceWarp
/// (kernels/cuda/device_warp.hpp) is 32 threads of a GPU; HostWarp plays them one after the other, so that tests see a
/// kernel's indices, bytes and races without a GPU and under sanitizers.
///
/// A Warp has
///   each(f)          calls f(lane) for 32 lanes, then a barrier: what a lane wrote is visible to all in the next
///   phase; Own<T>           a variable that every lane has for itself, own[lane]; never read by another lane; max,
///   sum, sum_before, ballot, tree_sum   of an Own, with the same value for all lanes (sum_before: an Own again);
///   max_among, or_among     of `lanes` neighbours (a power of two): an Own with the same value for all of them;
///   from                    own[source[lane]] of another lane.
/// Code outside of `each` runs in all lanes alike: what it branches on is the same for all of them.
#if defined(__CUDACC__)
#define GT_SCHEDULE __device__
/// In front of a loop over an array that is to stay in registers, where nothing is indexed by a variable.
#define GT_UNROLL _Pragma("unroll")
#else
#define GT_SCHEDULE
#define GT_UNROLL
#endif

namespace gradtool::schedule {

inline constexpr std::uint32_t kLanes = 32;

/// The lanes below `lane` as a mask of bits.
GT_HD constexpr std::uint32_t lanes_below(std::uint32_t lane) {
  return (1u << lane) - 1u;
}

GT_SCHEDULE inline std::uint32_t bits_set(std::uint32_t word) {
#if defined(__CUDA_ARCH__)
  return static_cast<std::uint32_t>(__popc(word));
#else
  return static_cast<std::uint32_t>(std::popcount(word));
#endif
}

/// 16 bytes that one access moves.
template <class T>
struct alignas(16) Four {
  T value[4];
};
/// 8 bytes that one access moves: a complex number.
struct alignas(8) Pair {
  float re, im;
};

#if !defined(__CUDACC__)

/// A warp on the CPU. Lanes run in the given order; no result may depend on it.
class HostWarp {
 public:
  using Order = std::array<std::uint8_t, kLanes>;

  template <class T>
  class Own {
   public:
    static_assert(std::is_trivially_copyable_v<T>);
    Own() { std::memset(value_, 0xA5, sizeof value_); }  // a lane that reads what it never wrote shows
    T& operator[](std::uint32_t lane) { return value_[lane]; }
    const T& operator[](std::uint32_t lane) const { return value_[lane]; }

   private:
    T value_[kLanes];
  };

  explicit HostWarp(const Order& order) : order_{order} {}

  template <class F>
  void each(const F& f) const {
    for (const std::uint32_t lane : order_) f(lane);
  }
  [[nodiscard]] std::uint32_t max(const Own<std::uint32_t>& own) const {
    std::uint32_t largest = 0;
    for (std::uint32_t lane = 0; lane < kLanes; ++lane) largest = own[lane] > largest ? own[lane] : largest;
    return largest;
  }
  [[nodiscard]] Own<std::uint32_t> max_among(std::uint32_t lanes, const Own<std::uint32_t>& own) const {
    return among(lanes, own, [](std::uint32_t a, std::uint32_t b) { return a > b ? a : b; });
  }
  [[nodiscard]] Own<std::uint32_t> or_among(std::uint32_t lanes, const Own<std::uint32_t>& own) const {
    return among(lanes, own, [](std::uint32_t a, std::uint32_t b) { return a | b; });
  }
  template <class T>
  [[nodiscard]] Own<T> from(const Own<T>& own, const Own<std::uint32_t>& source) const {
    Own<T> got;
    for (std::uint32_t lane = 0; lane < kLanes; ++lane) got[lane] = own[source[lane]];
    return got;
  }
  [[nodiscard]] std::uint32_t sum(const Own<std::uint32_t>& own) const {
    std::uint32_t total = 0;
    for (std::uint32_t lane = 0; lane < kLanes; ++lane) total += own[lane];
    return total;
  }
  /// For every lane the sum over the lanes below it.
  [[nodiscard]] Own<std::uint32_t> sum_before(const Own<std::uint32_t>& own) const {
    Own<std::uint32_t> before;
    std::uint32_t total = 0;
    for (std::uint32_t lane = 0; lane < kLanes; ++lane) {
      before[lane] = total;
      total += own[lane];
    }
    return before;
  }
  /// Bit l: own[l] is not 0.
  [[nodiscard]] std::uint32_t ballot(const Own<std::uint32_t>& own) const {
    std::uint32_t mask = 0;
    for (std::uint32_t lane = 0; lane < kLanes; ++lane) mask |= (own[lane] != 0 ? 1u : 0u) << lane;
    return mask;
  }
  /// The tree of law::kNormLanes: lane j += lane j + half for half = 16, 8, 4, 2, 1; lane 0 is the result.
  [[nodiscard]] float tree_sum(Own<float> own) const {
    for (std::uint32_t half = kLanes / 2; half > 0; half /= 2) {
      for (std::uint32_t lane = 0; lane < half; ++lane) own[lane] += own[lane + half];
    }
    return own[0];
  }

 private:
  template <class Join>
  static Own<std::uint32_t> among(std::uint32_t lanes, const Own<std::uint32_t>& own, const Join& join) {
    Own<std::uint32_t> joined;
    for (std::uint32_t first = 0; first < kLanes; first += lanes) {
      std::uint32_t all = own[first];
      for (std::uint32_t lane = first + 1; lane < first + lanes; ++lane) all = join(all, own[lane]);
      for (std::uint32_t lane = first; lane < first + lanes; ++lane) joined[lane] = all;
    }
    return joined;
  }

  Order order_;
};

#endif

}  // namespace gradtool::schedule
