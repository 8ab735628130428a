#include <algorithm>
#include <bit>
#include <cmath>
#include <memory>
#include <vector>

#include "kernels/host/largest.hpp"
#include "lib/reduce/host_reducer.hpp"
#include "lib/reduce/marks.hpp"
#include "lib/reduce/peeling.hpp"

namespace gradtool {
namespace {

/// Lossless homomorphic compression: a bitmap that is ORed and a table that is added.
class LhcReducer final : public HostReducer {
 public:
  explicit LhcReducer(const ReducerSetup<Space::host>& setup)
      : HostReducer{setup.layout.elements, setup.ranks},
        k_{std::clamp<std::size_t>(
            static_cast<std::size_t>(std::llround(setup.spec.params.real("density") * static_cast<double>(n_))),
            std::min<std::size_t>(n_, 1), n_)},
        adaptive_{setup.spec.params.is("ratio", "auto")},
        lanes_{lanes(setup.spec.params)},
        sizes_(ranks_),
        offsets_(ranks_),
        loads_(lanes_),
        state_{padded(4 * n_)},
        residual_{state_.take<float>(setup.spec.error_feedback ? n_ : 0)},
        table_{setup.queue, n_, lanes_, most_rows(), static_cast<std::uint64_t>(setup.spec.params.integer("seed"))} {
    if (!adaptive_) {
      const auto rows =
          static_cast<std::size_t>(std::ceil(static_cast<double>(table_.blocks()) / setup.spec.params.real("ratio")));
      set_rows(rows);
    }
    LhcReducer::reset(setup.queue);
  }

  [[nodiscard]] Pattern pattern() const override { return {.shards = true, .ring = true}; }
  void reset(Queue<Space::host> queue) override {
    fill_zero(queue, residual_);
    left_ = 0;
    whole_ = false;
  }
  [[nodiscard]] HostView<const float> residual() const override { return residual_; }
  [[nodiscard]] std::string note() const override {
    std::string text;
    if (left_ > 0) text = "some elements did not peel and were estimated";
    if (whole_) text += std::string{text.empty() ? "" : ", "} + "values were summed whole where no table is smaller";
    return text;
  }

  [[nodiscard]] std::size_t workspace_bytes() const override {
    return 2 * padded(4 * n_) + 2 * padded(4 * k_) + 2 * padded(4 * mark_words(n_)) +
           padded(host::Largest::scratch_bytes(n_)) + 256;
  }

  void reduce(Communicator<Space::host>& comm, Queue<Space::host> queue, HostView<float> gradient,
              const SideInputs<Space::host>& /*side*/, const EncodeContext& /*context*/, HostView<std::byte> workspace,
              PhaseClock<Space::host>& clock) override {
    Carver<Space::host> carve{workspace};
    const auto cells = take<float>(carve, n_);  // of the table, or the gradient itself
    const auto positions = take<std::uint32_t>(carve, k_);
    const auto values = take<float>(carve, k_);
    const auto marks = take<std::uint32_t>(carve, mark_words(n_));
    const auto arrived = take<std::uint32_t>(carve, mark_words(n_));
    const auto scratch = carve.take(host::Largest::scratch_bytes(n_));
    const auto segment = carve.take(comm.scratch_bytes(4 * n_));

    in_phase(clock, Phase::encode, queue, [&] {
      sparsify(queue, gradient, positions, values, scratch);
      std::fill(marks.span().begin(), marks.span().end(), 0U);
      for (const std::uint32_t i : positions.span()) marks[i / 32] |= 1U << i % 32;
      if (!adaptive_) write(positions, values, cells);
    });
    const bool with_marks = adaptive_ || !dense_;
    if (with_marks) {
      in_phase(clock, Phase::communicate, queue, [&] { or_all(comm, queue, marks, arrived); });
    }
    if (adaptive_) {
      in_phase(clock, Phase::encode, queue, [&] {
        set_rows(rows_for(marks));
        write(positions, values, cells);
      });
    }
    const auto sent = cells.first(dense_ ? n_ : table_.cells());
    in_phase(clock, Phase::communicate, queue,
             [&] { comm.all_reduce_sum(queue, as_writable_bytes(sent), Dtype::f32, segment); });
    in_phase(clock, Phase::decode, queue, [&] {
      const float share = 1.0F / static_cast<float>(comm.size());
      if (dense_) {
        std::copy(sent.span().begin(), sent.span().end(), gradient.data());
        scale(queue, gradient, share);
        whole_ = whole_ || n_ > 0;
        return;
      }
      fill_zero(queue, gradient);
      left_ += table_.read(queue, marks, sent, share, gradient);
    });
    payload_bytes_ = (with_marks ? marks.bytes() : 0) + sent.bytes();
    values_sent_ = sent.size();
  }

 private:
  /// Two elements of a lane whose three rows are all the same never peel. That happens in a lane of m elements with a
  /// probability of about 1/m for tables near the threshold, in all lanes with lanes^2 / k: so few lanes keep it small.
  [[nodiscard]] std::size_t lanes(const Params& params) const {
    constexpr std::size_t kMostLanes = 1024;
    std::size_t fitting = 1;
    while (fitting < kMostLanes && 4 * fitting * fitting <= k_ / 600) fitting *= 2;
    if (params.is("block", "auto")) return fitting;
    const auto lanes = static_cast<std::size_t>(params.integer("block"));
    expects(std::has_single_bit(lanes), "codec lhc: block must be a power of two");
    return lanes;
  }
  /// Rows of the largest table that is smaller than the gradient.
  [[nodiscard]] std::size_t most_rows() const { return n_ / lanes_; }

  void set_rows(std::size_t wanted) {
    const std::size_t rows = std::max<std::size_t>((wanted + 2) / 3, 1) * 3;
    dense_ = rows > most_rows() || rows * lanes_ >= n_;
    if (!dense_) table_.set_rows(rows);
  }

  /// Enough for the fullest lane: what peels in large tables (1.23 cells an element), and more room for few elements.
  [[nodiscard]] std::size_t rows_for(HostView<const std::uint32_t> marks) {
    std::fill(loads_.begin(), loads_.end(), 0U);
    for_each_mark({}, marks, [&](std::size_t, std::size_t i) { ++loads_[i % lanes_]; });
    const auto most = static_cast<double>(*std::max_element(loads_.begin(), loads_.end()));
    return static_cast<std::size_t>(std::ceil(1.3 * most + 12.0 * std::sqrt(most) + 20.0));
  }

  /// The k largest of u, which leave the residual.
  void sparsify(Queue<Space::host> queue, HostView<float> gradient, HostView<std::uint32_t> positions,
                HostView<float> values, HostView<std::byte> scratch) {
    HostView<const float> u = gradient;
    if (!residual_.empty()) {
      add(queue, gradient, residual_);
      u = residual_;
    }
    host::Largest{queue, u, scratch}.select(positions, values.data());
    if (residual_.empty()) return;
    for (const std::uint32_t i : positions.span()) residual_[i] = 0.0F;
  }

  void write(HostView<const std::uint32_t> positions, HostView<const float> values, HostView<float> cells) const {
    if (!dense_) return table_.write(positions, values, cells);
    std::fill(cells.span().begin(), cells.span().end(), 0.0F);
    for (std::size_t k = 0; k < positions.size(); ++k) cells[positions[k]] = values[k];
  }

  /// A ring reduce-scatter with OR in place of the sum, then an all-gather.
  void or_all(Communicator<Space::host>& comm, Queue<Space::host> queue, HostView<std::uint32_t> marks,
              HostView<std::uint32_t> arrived) {
    const auto me = static_cast<std::size_t>(comm.rank());
    const auto part = [&](std::size_t index) {
      const Segment segment = ring_segment(marks.size(), static_cast<int>(index % ranks_), static_cast<int>(ranks_));
      return marks.part(segment.first, segment.count);
    };
    for (std::size_t hop = 0; hop + 1 < ranks_; ++hop) {
      const auto into = part(me + 2 * ranks_ - hop - 1);
      const auto in = arrived.first(into.size());
      comm.exchange(queue, static_cast<int>((me + 1) % ranks_), as_bytes(part(me + ranks_ - hop)),
                    static_cast<int>((me + ranks_ - 1) % ranks_), as_writable_bytes(in));
      for (std::size_t w = 0; w < in.size(); ++w) into[w] |= in[w];
    }
    for (std::size_t r = 0; r < ranks_; ++r) {  // rank r has finished part r + 1
      const auto done = part(r + 1);
      sizes_[r] = done.bytes();
      offsets_[r] = static_cast<std::uint64_t>(4 * (done.data() - marks.data()));
    }
    comm.all_gather_v(queue, as_bytes(part(me + 1)), sizes_, offsets_, as_writable_bytes(marks));
  }

  std::size_t k_;
  bool adaptive_;
  std::size_t lanes_;
  std::vector<std::uint64_t> sizes_, offsets_;
  std::vector<std::uint32_t> loads_;
  Arena<Space::host> state_;
  HostView<float> residual_;
  PeelingTable table_;
  bool dense_ = false;
  std::size_t left_ = 0;
  bool whole_ = false;
};

}  // namespace

extern constinit const OwnReducer lhc_reducer{
    .codec = "lhc",
    .make_host = [](const ReducerSetup<Space::host>& setup) -> std::unique_ptr<Reducer<Space::host>> {
      return std::make_unique<LhcReducer>(setup);
    },
};

}  // namespace gradtool
