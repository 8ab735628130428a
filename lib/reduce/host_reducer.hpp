#pragma once

#include <cstdint>

#include "lib/core/arena.hpp"
#include "lib/reduce/codec_reducer.hpp"
#include "lib/reduce/own_reducer.hpp"

namespace gradtool {

/// What reducers of their own share: sizes and the counts of the last step.
template <Space S>
class CountingReducer : public Reducer<S> {
 public:
  [[nodiscard]] std::uint64_t payload_bytes() const override { return payload_bytes_; }
  [[nodiscard]] std::uint64_t values_sent(Queue<S> /*queue*/) const override { return values_sent_; }

 protected:
  CountingReducer(std::size_t n, int ranks) : n_{n}, ranks_{static_cast<std::size_t>(ranks)} {}

  static constexpr std::size_t padded(std::size_t bytes) { return Arena<S>::padded_size(bytes); }

  std::size_t n_;
  std::size_t ranks_;
  std::uint64_t payload_bytes_ = 0;
  std::uint64_t values_sent_ = 0;
};

using HostReducer = CountingReducer<Space::host>;

/// A piece of a workspace as `count` elements of T.
template <class T, Space S>
[[nodiscard]] View<T, S> take(Carver<S>& carve, std::size_t count) {
  return {reinterpret_cast<T*>(carve.take(count * sizeof(T)).data()), count};
}

}  // namespace gradtool
