#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "lib/core/view.hpp"

namespace gradtool {

// Vector operations that reducers need in both spaces. Work is put on `queue`; host work is done on return.

/// view := 0.
void fill_zero(Queue<Space::host> queue, View<float, Space::host> view);
void fill_zero(Queue<Space::cuda> queue, View<float, Space::cuda> view);
/// out += in, element by element; law::one_nan for what is not a number.
void add(Queue<Space::host> queue, View<const float, Space::host> in, View<float, Space::host> out);
void add(Queue<Space::cuda> queue, View<const float, Space::cuda> in, View<float, Space::cuda> out);
/// view *= factor.
void scale(Queue<Space::host> queue, View<float, Space::host> view, float factor);
void scale(Queue<Space::cuda> queue, View<float, Space::cuda> view, float factor);
/// Copies to memory that the processor can read and waits for it. For what is not timed; see ReadBack.
void read_back(Queue<Space::host> queue, View<const std::byte, Space::host> from, void* to);
void read_back(Queue<Space::cuda> queue, View<const std::byte, Space::cuda> from, void* to);

/// Whole numbers brought to where the processor can read them: sizes of payloads, which decide what is sent next. All
/// memory is taken on construction.
template <Space S>
class ReadBack {
 public:
  explicit ReadBack(std::size_t most);
  ~ReadBack();
  ReadBack(const ReadBack&) = delete;
  ReadBack& operator=(const ReadBack&) = delete;

  /// Enqueues the copy of the uint64 that lie in `from` to the places behind `at`.
  void fetch(Queue<S> queue, View<const std::byte, S> from, std::size_t at = 0);
  /// Waits for what was enqueued before, and for nothing that comes behind it. Valid until the next fetch.
  [[nodiscard]] std::span<const std::uint64_t> wait(Queue<S> queue);

 private:
  struct Memory;
  std::unique_ptr<Memory> memory_;
};

/// Writes a number that the processor knows into a view, in the order of the queue: a payload's size, to be sent.
void write_size(Queue<Space::host> queue, std::uint64_t size, View<std::byte, Space::host> to);
void write_size(Queue<Space::cuda> queue, std::uint64_t size, View<std::byte, Space::cuda> to);

/// Sum and sum of squares in double, chunk by chunk of law::sum_cut: neither threads nor a GPU change the bits.
struct Moments {
  double sum = 0.0;
  double squares = 0.0;
};
[[nodiscard]] Moments moments(Queue<Space::host> queue, View<const float, Space::host> view);

}  // namespace gradtool
