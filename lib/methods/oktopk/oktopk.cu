#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <span>
#include <vector>

#include "kernels/cuda/launch.hpp"
#include "kernels/cuda/warp.hpp"
#include "kernels/float_bits.hpp"
#include "kernels/select.hpp"
#include "kernels/sparse.hpp"
#include "lib/methods/oktopk/reducer.hpp"

namespace gradtool {
namespace {

/// out[j - 1] := the position at j/ranks of a list of `count` positions; n j/ranks where the list is empty.
__global__ void cuts_kernel(const std::uint32_t* positions, std::size_t count, std::size_t n, std::size_t ranks,
                            std::uint32_t* out) {
  for (std::size_t j = cuda::thread_in_grid() + 1; j < ranks; j += cuda::threads_in_grid())
    out[j - 1] = count == 0 ? static_cast<std::uint32_t>(n * j / ranks) : positions[count * j / ranks];
}

/// starts[r] := how many of the ascending positions are below borders[r], for ranks + 1 borders.
__global__ void starts_kernel(const std::uint32_t* positions, std::size_t count, const std::uint64_t* borders,
                              std::size_t ranks, std::uint64_t* starts) {
  for (std::size_t r = cuda::thread_in_grid(); r <= ranks; r += cuda::threads_in_grid()) {
    std::size_t first = 0;
    for (std::size_t left = count; left > 0;) {
      const std::size_t half = left / 2;
      const bool below = positions[first + half] < borders[r];
      if (below) first += half + 1;
      left = below ? left - half - 1 : half;
    }
    starts[r] = first;
  }
}

/// Makes positions relative to the region that they lie in, and puts the values of region `me` at their places.
__global__ void split_kernel(const std::uint64_t* borders, std::size_t ranks, std::size_t me, std::uint32_t* positions,
                             std::size_t count, const float* values, float* sums) {
  for (std::size_t i = cuda::thread_in_grid(); i < count; i += cuda::threads_in_grid()) {
    const std::uint32_t position = positions[i];
    std::size_t r = 0;  // binary search for the last region that starts at or before the position
    for (std::size_t left = ranks; left > 1;) {
      const std::size_t half = left / 2;
      if (borders[r + half] <= position) r += half;
      left -= half;
    }
    positions[i] = position - static_cast<std::uint32_t>(borders[r]);
    if (r == me) sums[positions[i]] = values[i];
  }
}

__global__ void store_kernel(std::uint32_t value, std::uint32_t* out) {
  if (cuda::thread_in_grid() == 0) *out = value;
}

/// The steps of OkTopkReducer on a GPU.
class GpuSteps {
  using Queue = gradtool::Queue<Space::cuda>;
  template <class T>
  using DeviceView = View<T, Space::cuda>;
  using Part = DeviceView<const std::byte>;

 public:
  struct Workspace {
    Workspace(const OkTopkShape& shape, Scratch<Space::cuda>& scratch)
        : count{scratch.take<std::uint32_t>(1)},
          borders{scratch.take<std::uint64_t>(shape.ranks + 1)},
          starts{scratch.take<std::uint64_t>(shape.ranks + 1)},
          positions{scratch.take<std::uint32_t>(shape.n)},
          values{scratch.take<float>(shape.n)},
          select{scratch.take_bytes(cuda::Select::scratch_bytes(shape.n))},
          sparse{scratch.take_bytes(cuda::sparse_scratch_bytes(sparse_shape(shape.coding, shape.n, shape.n)))} {}
    DeviceView<std::uint32_t> count;      ///< values of the part that is written
    DeviceView<std::uint64_t> borders;    ///< of the regions
    DeviceView<std::uint64_t> starts;     ///< where each region's values begin in the list
    DeviceView<std::uint32_t> positions;  ///< of the list
    DeviceView<float> values;             ///< of the list
    DeviceView<std::byte> select;         ///< of cuda::Select
    DeviceView<std::byte> sparse;         ///< of cuda::write_sparse and add_sparse
  };

  explicit GpuSteps(const OkTopkShape& shape)
      : shape_{shape}, borders_(shape.ranks + 1), starts_(shape.ranks + 1), numbers_{shape.ranks + 1} {}

  [[nodiscard]] float kth(Queue queue, DeviceView<const float> values, std::size_t k, const Workspace& work) {
    const cuda::Select select{queue, values, work.select};
    select.largest(k);
    return format::float_of(fetch(queue, select.threshold()));
  }

  std::size_t select(Queue queue, DeviceView<const float> values, float threshold, const Workspace& work) {
    count_ = 0;
    if (!values.empty()) {
      const cuda::Select select{queue, values, work.select};
      select.at_least(smallest_pattern(threshold));
      select.write(work.positions.data(), work.values.data());
      count_ = fetch(queue, select.count());
    }
    return count_;
  }

  void cuts(Queue queue, std::size_t selected, DeviceView<std::uint32_t> out, const Workspace& work) const {
    cuda::launch(queue, "oktopk cuts", cuts_kernel, cuda::blocks_for(out.size(), cuda::kThreads), work.positions.data(),
                 selected, shape_.n, shape_.ranks, out.data());
  }

  std::size_t split(Queue queue, std::span<const std::size_t> borders, std::size_t me, DeviceView<std::byte> out,
                    std::span<const std::uint64_t> offsets, std::span<std::uint64_t> sizes, DeviceView<float> sums,
                    const Workspace& work) {
    const std::size_t ranks = shape_.ranks;
    std::copy(borders.begin(), borders.end(), borders_.begin());
    cuda::copy_elements(queue, work.borders, HostView<const std::uint64_t>{borders_.data(), borders_.size()});
    cuda::launch(queue, "oktopk starts", starts_kernel, cuda::blocks_for(ranks + 1, cuda::kThreads),
                 work.positions.data(), count_, work.borders.data(), ranks, work.starts.data());
    cuda::fill(queue, as_writable_bytes(sums), 0);
    cuda::launch(queue, "oktopk split", split_kernel, cuda::blocks_for(count_, cuda::kThreads), work.borders.data(),
                 ranks, me, work.positions.data(), count_, work.values.data(), sums.data());
    numbers_.fetch(queue, as_bytes(work.starts));
    const auto starts = numbers_.wait(queue);
    std::copy_n(starts.begin(), ranks + 1, starts_.begin());  // because the next fetch overwrites them
    for (std::size_t r = 0; r < ranks; ++r) {
      if (r == me) continue;
      const auto part = out.part(offsets[r], out.size() - offsets[r]);
      write_part(queue, starts_[r], starts_[r + 1] - starts_[r], borders[r + 1] - borders[r], part, work);
    }
    for (std::size_t r = 0; r < ranks; ++r) {
      if (r != me) numbers_.fetch(queue, out.part(offsets[r], sizeof(std::uint64_t)), r);
    }
    const auto written = numbers_.wait(queue);
    for (std::size_t r = 0; r < ranks; ++r) sizes[r] = r == me ? 0 : written[r];
    return static_cast<std::size_t>(starts_[me + 1] - starts_[me]);
  }

  std::size_t write(Queue queue, std::size_t elements, DeviceView<std::byte> out, const Workspace& work) {
    write_part(queue, 0, count_, elements, out, work);
    numbers_.fetch(queue, out.first(sizeof(std::uint64_t)));
    return static_cast<std::size_t>(numbers_.wait(queue)[0]);
  }

  void add(Queue queue, Part part, float weight, DeviceView<float> out, const Workspace& work) const {
    add_part(queue, part, weight, out, {}, work);
  }
  void add_and_forget(Queue queue, Part part, float weight, DeviceView<float> out, DeviceView<float> residual,
                      float threshold, const Workspace& work) const {
    add_part(queue, part, weight, out, {residual.data(), smallest_pattern(threshold)}, work);
  }

 private:
  /// The smallest binary32 pattern that reaches a threshold. Zero never does, so it is at least 1, and it is 1 where
  /// the threshold is not a number.
  static std::uint32_t smallest_pattern(float threshold) {
    return std::isnan(threshold) ? 1 : std::max<std::uint32_t>(1, format::bits_of(threshold));
  }
  /// Brings a number of cuda::Select's state to the host. Fetching takes 8 bytes, and the state goes on behind it.
  std::uint32_t fetch(Queue queue, const std::uint32_t* number) {
    numbers_.fetch(queue, as_bytes(DeviceView<const std::uint32_t>{number, 2}));
    return static_cast<std::uint32_t>(numbers_.wait(queue)[0]);
  }

  /// Writes `count` entries of the list, from `first` on, as a part over `elements` elements.
  void write_part(Queue queue, std::size_t first, std::size_t count, std::size_t elements, DeviceView<std::byte> out,
                  const Workspace& work) const {
    cuda::launch(queue, "store", store_kernel, {1, cuda::kWarpSize}, static_cast<std::uint32_t>(count),
                 work.count.data());
    cuda::copy(queue, out.part(sizeof(SparseHeader), sizeof(float) * count), as_bytes(work.values.part(first, count)));
    cuda::write_sparse(queue, sparse_shape(shape_.coding, count, elements), work.positions.data() + first,
                       work.count.data(), out.data(), work.sparse);
  }
  void add_part(Queue queue, Part part, float weight, DeviceView<float> out, const cuda::SparseForget& forget,
                const Workspace& work) const {
    if (out.empty()) return;
    cuda::add_sparse(queue, sparse_shape(shape_.coding, out.size(), out.size()), part, weight, out.data(), work.sparse,
                     forget);
  }

  OkTopkShape shape_;
  std::vector<std::uint64_t> borders_, starts_;
  ReadBack<Space::cuda> numbers_;
  std::size_t count_ = 0;  ///< length of the list
};

}  // namespace

extern constinit const GpuFactories oktopk_gpu{
    .reducer = make_method_reducer<Space::cuda, OkTopkReducer<Space::cuda, GpuSteps>>};

}  // namespace gradtool
