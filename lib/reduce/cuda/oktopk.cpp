#include "kernels/cuda/oktopk.hpp"

#include <cmath>

#include "kernels/cuda/select.hpp"
#include "kernels/law/half.hpp"
#include "lib/codecs/cuda/sparse.hpp"
#include "lib/reduce/cuda_reducers.hpp"
#include "lib/reduce/oktopk_reducer.hpp"

namespace gradtool {
namespace {

/// oktopk's steps on a GPU; what they are: OkTopkExchange. Where the host needs a number, it waits for it.
class CudaSteps {
 public:
  using Bytes = View<std::byte, Space::cuda>;
  using Part = View<const std::byte, Space::cuda>;
  using Floats = View<float, Space::cuda>;

  explicit CudaSteps(const OkTopkSizes& sizes)
      : sizes_{sizes}, borders_(sizes.ranks + 1), numbers_{2 * sizes.ranks + 2} {}

  [[nodiscard]] std::size_t workspace_bytes() const { return Room{sizes_, {}}.bytes; }
  void use(Bytes workspace) { at_ = Room{sizes_, workspace}; }

  [[nodiscard]] float kth(Queue<Space::cuda> queue, View<const float, Space::cuda> values, std::size_t k) {
    const cuda::Select select = selection(queue, values);
    select.largest(k);
    return law::float_of(fetch(queue, select.threshold()));
  }

  std::size_t select(Queue<Space::cuda> queue, View<const float, Space::cuda> values, float threshold) {
    count_ = 0;
    if (!values.empty()) {
      const cuda::Select select = selection(queue, values);
      select.at_least(lowest(threshold));
      select.write(at_.positions, at_.values);
      count_ = fetch(queue, select.count());
    }
    return count_;
  }
  [[nodiscard]] View<const float, Space::cuda> list() const { return {at_.values, sizes_.n}; }

  void cuts(Queue<Space::cuda> queue, std::size_t selected, View<std::uint32_t, Space::cuda> to) const {
    cuda::oktopk_cuts(queue, at_.positions, selected, sizes_.n, sizes_.ranks, to);
  }

  std::size_t split(Queue<Space::cuda> queue, std::span<const std::size_t> borders, std::size_t mine, Bytes out,
                    std::span<const std::uint64_t> offsets, std::span<std::uint64_t> sizes, Floats region) {
    const std::size_t ranks = sizes_.ranks;
    std::copy(borders.begin(), borders.end(), borders_.begin());
    cuda::copy(queue, as_writable_bytes(View<std::uint64_t, Space::cuda>{at_.borders, ranks + 1}),
               as_bytes(HostView<const std::uint64_t>{borders_.data(), borders_.size()}));
    cuda::oktopk_starts(queue, at_.positions, count_, at_.borders, ranks, at_.starts);
    cuda::fill(queue, as_writable_bytes(region), 0);
    cuda::oktopk_split(queue, at_.borders, ranks, mine, {at_.positions, count_}, list().data(), region.data());
    numbers_.fetch(queue, as_bytes(View<const std::uint64_t, Space::cuda>{at_.starts, ranks + 1}));
    const auto known = numbers_.wait(queue);
    const std::size_t own = known[mine + 1] - known[mine];
    std::copy_n(known.begin(), ranks + 1, borders_.begin());  // of the list, from here on
    for (std::size_t r = 0; r < ranks; ++r) {
      if (r == mine) continue;
      write_part(queue, borders_[r], borders_[r + 1] - borders_[r], borders[r + 1] - borders[r],
                 out.part(offsets[r], out.size() - offsets[r]));
    }
    for (std::size_t r = 0; r < ranks; ++r) {
      if (r != mine) numbers_.fetch(queue, out.part(offsets[r], 8), r);
    }
    const auto written = numbers_.wait(queue);
    for (std::size_t r = 0; r < ranks; ++r) sizes[r] = r == mine ? 0 : written[r];
    return own;
  }

  std::size_t write(Queue<Space::cuda> queue, std::size_t elements, Bytes out) {
    write_part(queue, 0, count_, elements, out);
    numbers_.fetch(queue, out.first(8));
    return static_cast<std::size_t>(numbers_.wait(queue)[0]);
  }

  void add(Queue<Space::cuda> queue, Part part, float weight, Floats to) const {
    add_part(queue, part, weight, to, {});
  }
  void add_and_forget(Queue<Space::cuda> queue, Part part, float weight, Floats to, Floats kept,
                      float threshold) const {
    add_part(queue, part, weight, to, {kept.data(), lowest(threshold)});
  }

  [[nodiscard]] std::size_t counts(Queue<Space::cuda> queue, std::span<const Part> parts) {
    for (std::size_t r = 0; r < parts.size(); ++r) numbers_.fetch(queue, parts[r].first(sizeof(SparseHeader)), 2 * r);
    const auto headers = numbers_.wait(queue);
    std::size_t total = 0;
    for (std::size_t r = 0; r < parts.size(); ++r) total += static_cast<std::uint32_t>(headers[2 * r + 1]);
    return total;
  }

 private:
  /// Pieces of the workspace.
  struct Room {
    Room(const OkTopkSizes& sizes, Bytes workspace) {
      cuda::ScratchPieces pieces{workspace};
      pieces.take(count, 1);
      pieces.take(borders, sizes.ranks + 1);
      pieces.take(starts, sizes.ranks + 1);
      pieces.take(positions, sizes.n);
      pieces.take(values, sizes.n);
      select = pieces.take(cuda::Select::scratch_bytes(sizes.n));
      sparse = pieces.take(cuda::sparse_scratch_bytes(sparse_shape(sizes.coding, sizes.n, sizes.n)));
      bytes = pieces.bytes();
    }
    std::uint64_t *borders, *starts;
    std::uint32_t *count, *positions;
    float* values;
    Bytes select, sparse;
    std::size_t bytes;
  };

  /// The smallest pattern that reaches a threshold; where that is not a number, everything but 0 does.
  static std::uint32_t lowest(float threshold) {
    return std::isnan(threshold) ? 1 : std::max<std::uint32_t>(1, law::bits_of(threshold));
  }
  [[nodiscard]] cuda::Select selection(Queue<Space::cuda> queue, View<const float, Space::cuda> values) const {
    return {queue, values, at_.select};
  }
  /// A number of a selection's state, which has another one behind it.
  std::uint32_t fetch(Queue<Space::cuda> queue, const std::uint32_t* number) {
    numbers_.fetch(queue, as_bytes(View<const std::uint32_t, Space::cuda>{number, 2}));
    return static_cast<std::uint32_t>(numbers_.wait(queue)[0]);
  }

  /// `count` entries of the list from `first` on, as a part of a region of `elements`.
  void write_part(Queue<Space::cuda> queue, std::size_t first, std::size_t count, std::size_t elements,
                  Bytes out) const {
    cuda::store(queue, static_cast<std::uint32_t>(count), at_.count);
    cuda::copy(queue, out.part(sizeof(SparseHeader), 4 * count), as_bytes(list().part(first, count)));
    cuda::write_sparse(queue, sparse_shape(sizes_.coding, count, elements), at_.positions + first, at_.count,
                       out.data(), at_.sparse);
  }
  void add_part(Queue<Space::cuda> queue, Part part, float weight, Floats to, const cuda::SparseForget& forget) const {
    if (to.empty()) return;
    cuda::add_sparse(queue, sparse_shape(sizes_.coding, to.size(), to.size()), part, weight, to.data(), at_.sparse,
                     forget);
  }

  OkTopkSizes sizes_;
  std::vector<std::uint64_t> borders_;
  ReadBack<Space::cuda> numbers_;
  Room at_{sizes_, {}};  ///< of the current step
  std::size_t count_ = 0;
};

}  // namespace

std::unique_ptr<Reducer<Space::cuda>> make_cuda_oktopk(const ReducerSetup<Space::cuda>& setup) {
  return std::make_unique<OkTopkReducer<Space::cuda, CudaSteps>>(setup);
}

}  // namespace gradtool
