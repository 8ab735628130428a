#include <cstring>

#include "kernels/host/select.hpp"
#include "kernels/law/half.hpp"
#include "kernels/law/keep_nan.hpp"
#include "lib/reduce/cuda_reducers.hpp"
#include "lib/reduce/marks.hpp"
#include "lib/reduce/oktopk_reducer.hpp"

namespace gradtool {
namespace {

/// oktopk's steps on the processor; what they are: OkTopkExchange.
class HostSteps {
 public:
  using Bytes = HostView<std::byte>;

  explicit HostSteps(const OkTopkSizes& sizes) : sizes_{sizes}, starts_(sizes.ranks + 1) {}

  [[nodiscard]] std::size_t workspace_bytes() const {
    return padded(4 * mark_words(sizes_.n)) + 2 * padded(4 * sizes_.n) + host::Selector::scratch_bytes() + 256;
  }
  void use(Bytes workspace) {
    Carver<Space::host> carve{workspace};
    marks_ = take<std::uint32_t>(carve, mark_words(sizes_.n));
    positions_ = take<std::uint32_t>(carve, sizes_.n);
    values_ = take<float>(carve, sizes_.n);
    selector_ = carve.take(host::Selector::scratch_bytes());
  }

  [[nodiscard]] float kth(Queue<Space::host> queue, HostView<const float> values, std::size_t k) const {
    const float* x = values.data();
    const host::Selector selector{queue, values.size(), selector_};
    return law::float_of(selector.find(k, [x](std::size_t i) { return law::bits_of(x[i]) & 0x7fffffffU; }).threshold);
  }

  std::size_t select(Queue<Space::host> queue, HostView<const float> values, float threshold) {
    const auto words = marks_.first(mark_words(values.size()));
    mark_large(queue, values, threshold, words);
    count_ = for_each_mark(queue, words, [&](std::size_t at, std::size_t i) {
      positions_[at] = static_cast<std::uint32_t>(i);
      values_[at] = law::one_nan(values[i]);
    });
    return count_;
  }
  [[nodiscard]] HostView<const float> list() const { return values_; }

  void cuts(Queue<Space::host> /*queue*/, std::size_t selected, HostView<std::uint32_t> to) const {
    for (std::size_t j = 1; j < sizes_.ranks; ++j) {
      to[j - 1] = selected == 0 ? static_cast<std::uint32_t>(sizes_.n * j / sizes_.ranks)
                                : positions_[selected * j / sizes_.ranks];
    }
  }

  std::size_t split(Queue<Space::host> queue, std::span<const std::size_t> borders, std::size_t mine, Bytes out,
                    std::span<const std::uint64_t> offsets, std::span<std::uint64_t> sizes, HostView<float> region) {
    const auto* all = positions_.data();
    for (std::size_t r = 0; r <= sizes_.ranks; ++r)
      starts_[r] = static_cast<std::size_t>(std::lower_bound(all, all + count_, borders[r]) - all);
    for (std::size_t r = 0; r < sizes_.ranks; ++r) {
      const std::size_t first = starts_[r];
      const std::size_t count = starts_[r + 1] - first;
      for (std::size_t i = first; i < first + count; ++i) positions_[i] -= static_cast<std::uint32_t>(borders[r]);
      sizes[r] = 0;
      if (r == mine) continue;
      sizes[r] = write_sparse(queue, sizes_.coding, positions_.part(first, count), values_.part(first, count),
                              borders[r + 1] - borders[r], out.part(offsets[r], out.size() - offsets[r]));
    }
    fill_zero(queue, region);
    for (std::size_t i = starts_[mine]; i < starts_[mine + 1]; ++i) region[positions_[i]] = values_[i];
    return starts_[mine + 1] - starts_[mine];
  }

  std::size_t write(Queue<Space::host> queue, std::size_t elements, Bytes out) const {
    return write_sparse(queue, sizes_.coding, positions_.first(count_), values_.first(count_), elements, out);
  }

  void add(Queue<Space::host> /*queue*/, HostView<const std::byte> part, float weight, HostView<float> to) const {
    add_sparse("oktopk", part, weight, to, positions_);
  }
  void add_and_forget(Queue<Space::host> queue, HostView<const std::byte> part, float weight, HostView<float> to,
                      HostView<float> kept, float threshold) const {
    add(queue, part, weight, to);
    const std::size_t count = read_sparse_header("oktopk", part, to.size(), 32).count;
    for (std::size_t i = 0; i < count; ++i) {
      float& value = kept[positions_[i]];
      if (is_large(value, threshold) != 0) value = 0.0F;
    }
  }

  [[nodiscard]] std::size_t counts(Queue<Space::host> /*queue*/,
                                   std::span<const HostView<const std::byte>> parts) const {
    std::size_t total = 0;
    for (const auto& part : parts) {
      SparseHeader header;
      std::memcpy(&header, part.data(), sizeof header);
      total += header.count;
    }
    return total;
  }

 private:
  static std::size_t padded(std::size_t bytes) { return Arena<Space::host>::padded_size(bytes); }

  OkTopkSizes sizes_;
  std::vector<std::size_t> starts_;
  HostView<std::uint32_t> marks_, positions_;
  HostView<float> values_;
  Bytes selector_;
  std::size_t count_ = 0;
};

}  // namespace

extern constinit const OwnReducer oktopk_reducer{
    .codec = "oktopk",
    .make_host = [](const ReducerSetup<Space::host>& setup) -> std::unique_ptr<Reducer<Space::host>> {
      return std::make_unique<OkTopkReducer<Space::host, HostSteps>>(setup);
    },
    .make_cuda = GT_MAKE_CUDA(make_cuda_oktopk),
};

}  // namespace gradtool
