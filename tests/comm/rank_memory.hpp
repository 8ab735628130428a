#pragma once

#include <algorithm>
#include <cstring>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "lib/comm/communicator.hpp"
#include "lib/core/error.hpp"
#ifdef GT_WITH_CUDA
#include "kernels/cuda/runtime.hpp"
#endif

namespace gradtool::test {

/// Memory of one rank in either space, filled from and read back to std::vector, so that one test serves all backends.
template <Space S>
class RankMemory;

template <>
class RankMemory<Space::host> {
 public:
  explicit RankMemory(std::size_t bytes) : bytes_(bytes) {}
  [[nodiscard]] HostView<std::byte> view() { return {bytes_.data(), bytes_.size()}; }
  void write(Queue<Space::host> /*queue*/, std::span<const std::byte> from) {
    if (!from.empty()) std::memcpy(bytes_.data(), from.data(), from.size());
  }
  void read(Queue<Space::host> /*queue*/, std::span<std::byte> to) {
    if (!to.empty()) std::memcpy(to.data(), bytes_.data(), to.size());
  }

 private:
  std::vector<std::byte> bytes_;
};

#ifdef GT_WITH_CUDA
template <>
class RankMemory<Space::cuda> {
 public:
  explicit RankMemory(std::size_t bytes) : bytes_{bytes} {}
  [[nodiscard]] View<std::byte, Space::cuda> view() { return bytes_.bytes(); }
  void write(Queue<Space::cuda> queue, std::span<const std::byte> from) {
    cuda::copy(queue, view().first(from.size()), HostView<const std::byte>{from});
    cuda::synchronize(queue);
  }
  void read(Queue<Space::cuda> queue, std::span<std::byte> to) {
    cuda::copy(queue, HostView<std::byte>{to}, view().first(to.size()));
    cuda::synchronize(queue);
  }

 private:
  cuda::DeviceBuffer bytes_;
};
#endif

/// One rank's side of a test: its communicator, its queue, and collectives over plain vectors.
template <Space S>
struct Rank {
  Communicator<S>& comm;
  Queue<S> queue;

  [[nodiscard]] int rank() const { return comm.rank(); }
  [[nodiscard]] int size() const { return comm.size(); }

  template <class T>
  std::vector<T> all_reduce(std::vector<T> values, Dtype dtype) {
    const auto bytes = std::as_writable_bytes(std::span{values});
    RankMemory<S> memory{bytes.size()};
    RankMemory<S> scratch{comm.scratch_bytes(bytes.size())};
    memory.write(queue, bytes);
    comm.all_reduce_sum(queue, memory.view(), dtype, scratch.view());
    memory.read(queue, bytes);
    return values;
  }

  /// Rank r's values stand at r * values.size().
  template <class T>
  std::vector<T> all_gather(const std::vector<T>& values, bool in_place = false) {
    const auto mine = std::as_bytes(std::span{values});
    std::vector<T> all(values.size() * static_cast<std::size_t>(size()));
    const auto bytes = std::as_writable_bytes(std::span{all});
    RankMemory<S> memory{bytes.size()};
    RankMemory<S> apart{mine.size()};
    auto part = memory.view().part(mine.size() * static_cast<std::size_t>(rank()), mine.size());
    if (in_place) {
      std::copy(mine.begin(), mine.end(), bytes.begin() + static_cast<std::ptrdiff_t>(mine.size()) * rank());
      memory.write(queue, bytes);
    } else {
      apart.write(queue, mine);
      part = apart.view();
    }
    comm.all_gather(queue, part, memory.view());
    memory.read(queue, bytes);
    return all;
  }

  /// Sends `out`, returns the `in_size` bytes that came.
  std::vector<std::byte> exchange(int to, const std::vector<std::byte>& out, int from, std::size_t in_size) {
    RankMemory<S> sent{out.size()};
    RankMemory<S> received{in_size};
    sent.write(queue, out);
    comm.exchange(queue, to, sent.view(), from, received.view());
    std::vector<std::byte> in(in_size);
    received.read(queue, in);
    return in;
  }
};

/// Throws Fault::check, which ends the test on every rank of every backend.
inline void require(bool condition, const std::string& what) {
  if (!condition) throw Error{Fault::check, what};
}

}  // namespace gradtool::test
