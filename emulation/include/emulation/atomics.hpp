#pragma once

#include <type_traits>

#include "emulation/dialect.hpp"

// All threads of the emulated GPU take turns on one thread of the CPU, so that plain accesses are atomic.
template <class T>
T atomicAdd(T* at, std::type_identity_t<T> value) {
  const T before = *at;
  *at = static_cast<T>(before + value);
  return before;
}
template <class T>
T atomicSub(T* at, std::type_identity_t<T> value) {
  const T before = *at;
  *at = static_cast<T>(before - value);
  return before;
}
template <class T>
T atomicMax(T* at, std::type_identity_t<T> value) {
  const T before = *at;
  if (value > before) *at = value;
  return before;
}
template <class T>
T atomicMin(T* at, std::type_identity_t<T> value) {
  const T before = *at;
  if (value < before) *at = value;
  return before;
}
template <class T>
T atomicOr(T* at, std::type_identity_t<T> value) {
  const T before = *at;
  *at = before | value;
  return before;
}
template <class T>
T atomicAnd(T* at, std::type_identity_t<T> value) {
  const T before = *at;
  *at = before & value;
  return before;
}
template <class T>
T atomicXor(T* at, std::type_identity_t<T> value) {
  const T before = *at;
  *at = before ^ value;
  return before;
}
template <class T>
T atomicExch(T* at, std::type_identity_t<T> value) {
  const T before = *at;
  *at = value;
  return before;
}
template <class T>
T atomicCAS(T* at, std::type_identity_t<T> compare, std::type_identity_t<T> value) {
  const T before = *at;
  if (before == compare) *at = value;
  return before;
}
inline void __threadfence() {}
inline void __threadfence_block() {}
inline void __threadfence_system() {}
