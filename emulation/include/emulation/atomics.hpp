#pragma once

#include <atomic>
#include <type_traits>

#include "emulation/dialect.hpp"

namespace emulation {

void fence();

/// *at := next(*at); returns the previous value. It is atomic because threads take turns, and relaxed as in CUDA.
template <class T, class Next>
T atomically(T* at, Next next) {
  const std::atomic_ref<T> cell{*at};
  const T before = cell.load(std::memory_order_relaxed);
  cell.store(next(before), std::memory_order_relaxed);
  return before;
}

}  // namespace emulation

template <class T>
T atomicAdd(T* at, std::type_identity_t<T> value) {
  return emulation::atomically(at, [=](T before) { return static_cast<T>(before + value); });
}
template <class T>
T atomicSub(T* at, std::type_identity_t<T> value) {
  return emulation::atomically(at, [=](T before) { return static_cast<T>(before - value); });
}
template <class T>
T atomicMax(T* at, std::type_identity_t<T> value) {
  return emulation::atomically(at, [=](T before) { return value > before ? value : before; });
}
template <class T>
T atomicMin(T* at, std::type_identity_t<T> value) {
  return emulation::atomically(at, [=](T before) { return value < before ? value : before; });
}
template <class T>
T atomicOr(T* at, std::type_identity_t<T> value) {
  return emulation::atomically(at, [=](T before) { return before | value; });
}
template <class T>
T atomicCAS(T* at, std::type_identity_t<T> compare, std::type_identity_t<T> value) {
  return emulation::atomically(at, [=](T before) { return before == compare ? value : before; });
}
inline void __threadfence() {
  emulation::fence();
}
