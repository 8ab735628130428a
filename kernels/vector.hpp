#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "kernels/cuda/units.hpp"
#include "lib/core/dtype.hpp"
#include "lib/core/view.hpp"

/// Element-wise operations on vectors of float32, and the way of single numbers between GPU and CPU. Work is put on
/// `queue`: host work is done on return, GPU work is enqueued. Each element is rounded as on the other processor (there
/// is no fused multiply-add). GPU kernels accept any alignment of floats and are fastest where all pointers are 16-byte
/// aligned.
namespace gradtool {

/// view := 0.
void fill_zero(Queue<Space::host> queue, View<float, Space::host> view);
void fill_zero(Queue<Space::cuda> queue, View<float, Space::cuda> view);
/// out += in, element by element; sums that are not a number become format::one_nan. Equal sizes.
void add(Queue<Space::host> queue, View<const float, Space::host> in, View<float, Space::host> out);
void add(Queue<Space::cuda> queue, View<const float, Space::cuda> in, View<float, Space::cuda> out);
/// out := left - right, element by element; differences that are not a number become format::one_nan. Equal sizes.
/// `out` may be one of the others.
void subtract(Queue<Space::host> queue, View<const float, Space::host> left, View<const float, Space::host> right,
              View<float, Space::host> out);
void subtract(Queue<Space::cuda> queue, View<const float, Space::cuda> left, View<const float, Space::cuda> right,
              View<float, Space::cuda> out);
/// out += share * (to - out), element by element; results that are not a number become format::one_nan. Equal sizes.
void approach(Queue<Space::host> queue, View<const float, Space::host> to, float share, View<float, Space::host> out);
void approach(Queue<Space::cuda> queue, View<const float, Space::cuda> to, float share, View<float, Space::cuda> out);
/// view *= factor.
void scale(Queue<Space::host> queue, View<float, Space::host> view, float factor);
void scale(Queue<Space::cuda> queue, View<float, Space::cuda> view, float factor);
/// Copies to memory that the CPU can read, and waits for it. For what is not timed; otherwise see ReadBack.
void read_back(Queue<Space::host> queue, View<const std::byte, Space::host> from, void* to);
void read_back(Queue<Space::cuda> queue, View<const std::byte, Space::cuda> from, void* to);

/// Brings 64-bit numbers to where the CPU can read them: sizes of payloads, which decide what is sent next. All memory
/// is taken on construction.
template <Space S>
class ReadBack {
 public:
  /// For up to `most` numbers.
  explicit ReadBack(std::size_t most);
  ~ReadBack();
  ReadBack(const ReadBack&) = delete;
  ReadBack& operator=(const ReadBack&) = delete;

  /// Enqueues a copy of the numbers in `from` to the places from number `first` on.
  void fetch(Queue<S> queue, View<const std::byte, S> from, std::size_t first = 0);
  /// Waits for the work that was enqueued before this call, and for nothing that is enqueued later. The numbers are
  /// valid until the next fetch.
  [[nodiscard]] std::span<const std::uint64_t> wait(Queue<S> queue);

 private:
  struct Memory;
  std::unique_ptr<Memory> memory_;
};

/// Writes a number that the CPU knows to the first 8 bytes of a view, 8-byte aligned, in the order of the queue: the
/// size of a payload, which is to be sent. On a GPU the number travels with the launch, and no host memory is read.
void write_size(Queue<Space::host> queue, std::uint64_t size, View<std::byte, Space::host> to);
void write_size(Queue<Space::cuda> queue, std::uint64_t size, View<std::byte, Space::cuda> to);

/// Sum and sum of squares in float64, and the pattern of the largest magnitude (host::Moments).
struct Moments {
  double sum = 0.0;
  double squares = 0.0;
  std::uint32_t largest = 0;
};
/// Added chunk by chunk as format::sum_cut says, so that the bits do not depend on threads, nor on the processor.
[[nodiscard]] Moments moments(Queue<Space::host> queue, View<const float, Space::host> view);
/// The largest magnitude, which is a NaN where there is one, and 0 of no elements.
[[nodiscard]] float largest_magnitude(Queue<Space::host> queue, View<const float, Space::host> view);

}  // namespace gradtool

namespace gradtool::cuda {

using gradtool::scale;

/// out[i] += factor * in[i]. Equal sizes; the views do not overlap.
void add_scaled(Queue<Space::cuda> queue, View<const float, Space::cuda> in, float factor,
                View<float, Space::cuda> out);

/// Subtracts the floats of every unit's `from` from those of its `to`, all units in one launch.
void subtract(Queue<Space::cuda> queue, std::span<const Unit> units);

/// to[positions[i]] := values[i].
void scatter_at(Queue<Space::cuda> queue, View<const std::uint32_t, Space::cuda> positions, const float* values,
                float* to);
/// x[p] := 0, and also[p] := 0 where `also` is not null, for the first *count of the positions p, or for `most` of them
/// where `count` is null. `count` is on the GPU.
void zero_at(Queue<Space::cuda> queue, const std::uint32_t* positions, const std::uint32_t* count, std::size_t most,
             float* x, float* also = nullptr);

/// sum[i] := sum[i] + addend[i] for elements of `dtype`. float16 and bfloat16 are widened, added in float32 and rounded
/// to nearest even with the arithmetic of kernels/float_bits.hpp, so that finite results are those of the CPU. Equal
/// sizes, a multiple of size_of(dtype); pointers aligned to the element; the views do not overlap. Reads 2 and writes 1
/// times the size, and is fastest where both pointers have the same address modulo 16.
void sum_into(Queue<Space::cuda> queue, View<std::byte, Space::cuda> sum, View<const std::byte, Space::cuda> addend,
              Dtype dtype);

}  // namespace gradtool::cuda
