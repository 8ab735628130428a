#include <algorithm>
#include <memory>
#include <span>
#include <vector>

#include "kernels/float_bits.hpp"
#include "kernels/marks.hpp"
#include "kernels/select.hpp"
#include "lib/methods/oktopk/reducer.hpp"

namespace gradtool {
namespace {

/// The steps of OkTopkReducer on the CPU.
class HostSteps {
  using Queue = gradtool::Queue<Space::host>;
  using Floats = HostView<const float>;
  using Part = HostView<const std::byte>;

 public:
  struct Workspace {
    Workspace(const OkTopkShape& shape, Scratch<Space::host>& scratch)
        : marks{scratch.take<std::uint32_t>(mark_words(shape.n))},
          positions{scratch.take<std::uint32_t>(shape.n)},
          values{scratch.take<float>(shape.n)},
          largest{scratch.take_bytes(host::Largest::scratch_bytes(shape.n, 0))} {}
    HostView<std::uint32_t> marks;      ///< bitmap of what is selected
    HostView<std::uint32_t> positions;  ///< of the list
    HostView<float> values;             ///< of the list
    HostView<std::byte> largest;        ///< of host::Largest
  };

  explicit HostSteps(const OkTopkShape& shape) : shape_{shape}, starts_(shape.ranks + 1) {}

  [[nodiscard]] float kth(Queue queue, Floats values, std::size_t k, const Workspace& work) const {
    return host::Largest{queue, values, work.largest}.threshold(k);
  }

  std::size_t select(Queue queue, Floats values, float threshold, const Workspace& work) {
    const auto marks = work.marks.first(mark_words(values.size()));
    mark_large(queue, values, threshold, marks);
    count_ = for_each_mark(queue, marks, [&](std::size_t place, std::size_t i) {
      work.positions[place] = static_cast<std::uint32_t>(i);
      work.values[place] = format::one_nan(values[i]);
    });
    return count_;
  }

  void cuts(Queue /*queue*/, std::size_t selected, HostView<std::uint32_t> out, const Workspace& work) const {
    for (std::size_t j = 1; j < shape_.ranks; ++j) {
      out[j - 1] = selected == 0 ? static_cast<std::uint32_t>(shape_.n * j / shape_.ranks)
                                 : work.positions[selected * j / shape_.ranks];
    }
  }

  std::size_t split(Queue queue, std::span<const std::size_t> borders, std::size_t me, HostView<std::byte> out,
                    std::span<const std::uint64_t> offsets, std::span<std::uint64_t> sizes, HostView<float> sums,
                    const Workspace& work) {
    std::uint32_t* positions = work.positions.data();
    for (std::size_t r = 0; r <= shape_.ranks; ++r)
      starts_[r] = static_cast<std::size_t>(std::lower_bound(positions, positions + count_, borders[r]) - positions);
    for (std::size_t r = 0; r < shape_.ranks; ++r) {
      const std::size_t first = starts_[r];
      const std::size_t count = starts_[r + 1] - first;
      for (std::size_t i = first; i < first + count; ++i) positions[i] -= static_cast<std::uint32_t>(borders[r]);
      sizes[r] = 0;
      if (r == me) continue;
      sizes[r] = write_sparse(queue, shape_.coding, work.positions.part(first, count), work.values.part(first, count),
                              borders[r + 1] - borders[r], out.part(offsets[r], out.size() - offsets[r]));
    }
    fill_zero(queue, sums);
    for (std::size_t i = starts_[me]; i < starts_[me + 1]; ++i) sums[positions[i]] = work.values[i];
    return starts_[me + 1] - starts_[me];
  }

  std::size_t write(Queue queue, std::size_t elements, HostView<std::byte> out, const Workspace& work) const {
    return write_sparse(queue, shape_.coding, work.positions.first(count_), work.values.first(count_), elements, out);
  }

  void add(Queue /*queue*/, Part part, float weight, HostView<float> out, const Workspace& work) const {
    add_sparse("oktopk", part, weight, out, work.positions);
  }
  void add_and_forget(Queue queue, Part part, float weight, HostView<float> out, HostView<float> residual,
                      float threshold, const Workspace& work) const {
    add(queue, part, weight, out, work);  // leaves the part's positions in work.positions
    const std::size_t count = read_sparse_header("oktopk", part, out.size(), 32).count;
    for (std::size_t i = 0; i < count; ++i) {
      float& value = residual[work.positions[i]];
      if (is_large(value, threshold) != 0) value = 0.0F;
    }
  }

 private:
  OkTopkShape shape_;
  std::vector<std::size_t> starts_;  ///< where each region's values begin in the list
  std::size_t count_ = 0;            ///< length of the list
};

constexpr ParamInfo kParams[] = {
    real_param("ratio", "0.01", {0.0, 1.0}, "k / n, on each rank and in the result; at least one element")
        .searched("0.001|0.004|0.016|0.064|0.25"),
    integer_param("period", "32", {1, 1e6}, "steps after which both thresholds are exact again, at the latest"),
    integer_param("regions", "64", {1, 1e6}, "steps after which the ranks agree on regions again"),
    integer_param("warmup", "0", {0, 1e9}, "first steps that are not compressed; 512 in the authors' training"),
    kIndexParam};

}  // namespace

extern constinit const CodecDescriptor oktopk_codec{
    .name = "oktopk",
    .summary = "sends the k largest elements of the sum, found in regions that ranks own, with error feedback",
    .reference = "Li and Hoefler, Ok-Topk, PPoPP 2022",
    .params = kParams,
    .aggregation = Aggregation::own,
    .error_feedback = true,
    .payload = "about 32 k for what others own + 32 k/p for what is kept, + coded indices",
    .make_host_reducer = make_method_reducer<Space::host, OkTopkReducer<Space::host, HostSteps>>,
};

}  // namespace gradtool
