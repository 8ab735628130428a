#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>

struct CUstream_st;  // cudaStream_t is CUstream_st*; lib/ includes no CUDA header

namespace gradtool {

class TaskPool;

/// The memory in which bytes live and the processor on which work runs. It is part of the type, so mixing the two does
/// not compile.
enum class Space : std::uint8_t { host, cuda };

/// A span that knows its space. Non-owning and trivially copyable; data() may be null when size() is 0.
template <class T, Space S>
class View {
 public:
  constexpr View() = default;
  constexpr View(T* data, std::size_t size) : data_{data}, size_{size} {}
  template <class U>
  requires std::convertible_to<U (*)[], T (*)[]>
  constexpr View(View<U, S> other) : data_{other.data()}, size_{other.size()} {}
  constexpr View(std::span<T> span) requires(S == Space::host) : data_{span.data()}, size_{span.size()} {}

  [[nodiscard]] constexpr T* data() const { return data_; }
  [[nodiscard]] constexpr std::size_t size() const { return size_; }
  [[nodiscard]] constexpr bool empty() const { return size_ == 0; }
  [[nodiscard]] constexpr std::size_t bytes() const { return size_ * sizeof(T); }

  /// Elements [first, first + count). The caller keeps it inside.
  [[nodiscard]] constexpr View part(std::size_t first, std::size_t count) const { return {data_ + first, count}; }
  [[nodiscard]] constexpr View first(std::size_t count) const { return {data_, count}; }

  [[nodiscard]] constexpr std::span<T> span() const requires(S == Space::host) { return {data_, size_}; }
  [[nodiscard]] constexpr T& operator[](std::size_t i) const requires(S == Space::host) { return data_[i]; }

 private:
  T* data_ = nullptr;
  std::size_t size_ = 0;
};

template <class T>
using HostView = View<T, Space::host>;

/// The view's memory as bytes.
template <class T, Space S>
[[nodiscard]] View<std::byte, S> as_writable_bytes(View<T, S> view) requires(!std::is_const_v<T>) {
  return {reinterpret_cast<std::byte*>(view.data()), view.bytes()};
}
template <class T, Space S>
[[nodiscard]] View<const std::byte, S> as_bytes(View<T, S> view) {
  return {reinterpret_cast<const std::byte*>(view.data()), view.bytes()};
}

/// The place to which work is submitted. Host work is done on return; CUDA work is ordered on `stream`.
template <Space S>
struct Queue;

template <>
struct Queue<Space::host> {
  TaskPool* pool = nullptr;  ///< null: the calling thread alone
};

template <>
struct Queue<Space::cuda> {
  ::CUstream_st* stream = nullptr;
};

}  // namespace gradtool
