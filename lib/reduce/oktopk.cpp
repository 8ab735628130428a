#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "kernels/host/select.hpp"
#include "kernels/law/half.hpp"
#include "lib/codecs/index_code.hpp"
#include "lib/reduce/host_reducer.hpp"
#include "lib/reduce/marks.hpp"

namespace gradtool {
namespace {

/// A threshold that is exact now and then and follows a count in between (Li and Hoefler 2022, section 3.1).
class Threshold {
 public:
  explicit Threshold(double step) : step_{step} {}
  void set(float value) { value_ = value; }
  /// Moves when more than `most` or fewer than `least` values reached it.
  void steer(std::size_t count, double least, double most) {
    const auto c = static_cast<double>(count);
    if (c > most) value_ *= static_cast<float>(step_);
    if (c < least) value_ /= static_cast<float>(step_);
  }
  [[nodiscard]] float value() const { return value_; }

 private:
  double step_;
  float value_ = 0.0F;
};

class OkTopkReducer final : public HostReducer {
 public:
  explicit OkTopkReducer(const ReducerSetup<Space::host>& setup)
      : HostReducer{setup.layout.elements, setup.ranks},
        k_{std::clamp<std::size_t>(
            static_cast<std::size_t>(std::llround(setup.spec.params.real("ratio") * static_cast<double>(n_))),
            std::min<std::size_t>(n_, 1), n_)},
        period_{setup.spec.params.integer("period")},
        regions_period_{setup.spec.params.integer("regions")},
        warmup_{setup.spec.params.integer("warmup")},
        coding_{setup.spec.params.word("index")},
        borders_(ranks_ + 1),
        sizes_(ranks_),
        offsets_(ranks_),
        starts_(ranks_ + 1),
        state_{padded(4 * n_)},
        residual_{state_.take<float>(setup.spec.error_feedback ? n_ : 0)} {
    OkTopkReducer::reset(setup.queue);
  }

  [[nodiscard]] Pattern pattern() const override { return {.shards = true, .ring = false}; }
  void reset(Queue<Space::host> queue) override {
    fill_zero(queue, residual_);
    step_ = 0;
    selected_ = wanted_ = 0;
  }
  [[nodiscard]] HostView<const float> residual() const override { return residual_; }
  [[nodiscard]] std::string note() const override {
    return step_ <= warmup_ && step_ > 0 ? "no step was compressed: all of them are warm-up" : "";
  }

  [[nodiscard]] std::vector<Tally> tallies() const override {
    return {
        {"values selected of the k that were asked for", static_cast<double>(selected_), static_cast<double>(wanted_)}};
  }

  [[nodiscard]] std::size_t workspace_bytes() const override {
    return 2 * padded(4 * mark_words(n_)) + 3 * padded(4 * n_) + padded(all_bytes()) + padded(part_bytes(n_)) +
           2 * padded(8 * ranks_ * ranks_) + host::Selector::scratch_bytes() + 1024;
  }

  void reduce(Communicator<Space::host>& comm, Queue<Space::host> queue, HostView<float> gradient,
              const SideInputs<Space::host>& /*side*/, const EncodeContext& /*context*/, HostView<std::byte> workspace,
              PhaseClock<Space::host>& clock) override {
    const std::int64_t step = step_++;
    if (step < warmup_) return reduce_dense(comm, queue, gradient, workspace, clock);
    Carver<Space::host> carve{workspace};
    const Work work{.marks = take<std::uint32_t>(carve, mark_words(n_)),
                    .region_marks = take<std::uint32_t>(carve, mark_words(n_)),
                    .positions = take<std::uint32_t>(carve, n_),
                    .values = take<float>(carve, n_),
                    .region = take<float>(carve, n_),
                    .out = carve.take(all_bytes()),
                    .in = carve.take(part_bytes(n_)),
                    .numbers = take<std::uint64_t>(carve, ranks_ * ranks_),
                    .selector = carve.take(host::Selector::scratch_bytes())};
    const auto since = step - warmup_;
    payload_bytes_ = 0;
    HostView<float> u = gradient;
    std::size_t selected = 0;
    in_phase(clock, Phase::encode, queue, [&] {
      if (!residual_.empty()) {
        add(queue, gradient, residual_);
        u = residual_;
      }
      if (since % period_ == 0) local_.set(kth(queue, u, work.selector));
      mark_large(queue, u, local_.value(), work.marks);
      selected = for_each_mark(queue, work.marks, [&](std::size_t at, std::size_t i) {
        work.positions[at] = static_cast<std::uint32_t>(i);
        work.values[at] = u[i];
      });
      const auto k = static_cast<double>(k_);
      local_.steer(selected, 2.0 * k / 3.0, 5.0 * k / 4.0);
    });
    if (since % regions_period_ == 0) agree_on_regions(comm, queue, work, selected, clock);
    split_and_reduce(comm, queue, work, selected, clock);
    const Segment mine = region(static_cast<std::size_t>(comm.rank()));
    if (since % period_ == 0) agree_on_threshold(comm, queue, work, mine, clock);
    const std::size_t kept = gather_kept(comm, queue, work, mine, clock);
    in_phase(clock, Phase::decode, queue, [&] { apply(queue, work, gradient); });
    values_sent_ = selected - own_selected_ + kept;
    selected_ += selected;
    wanted_ += k_;
  }

 private:
  struct Work {
    HostView<std::uint32_t> marks;  ///< of what this rank selected
    HostView<std::uint32_t> region_marks, positions;
    HostView<float> values, region;
    HostView<std::byte> out, in;
    HostView<std::uint64_t> numbers;
    HostView<std::byte> selector;
  };

  /// A part of at most m of m elements, as write_sparse makes it.
  [[nodiscard]] std::size_t part_bytes(std::size_t m) const { return padded(sparse_bound(coding_, m, m)); }
  /// All parts of a gradient, whatever the regions are: codes are at most 4 bytes an element.
  [[nodiscard]] std::size_t all_bytes() const { return 8 * n_ + 512 * ranks_; }
  [[nodiscard]] Segment region(std::size_t r) const { return {borders_[r], borders_[r + 1] - borders_[r]}; }

  void reduce_dense(Communicator<Space::host>& comm, Queue<Space::host> queue, HostView<float> gradient,
                    HostView<std::byte> workspace, PhaseClock<Space::host>& clock) {
    in_phase(clock, Phase::communicate, queue,
             [&] { comm.all_reduce_sum(queue, as_writable_bytes(gradient), Dtype::f32, workspace); });
    in_phase(clock, Phase::decode, queue, [&] { scale(queue, gradient, 1.0F / static_cast<float>(comm.size())); });
    payload_bytes_ = 4 * n_;
    values_sent_ = n_;
  }

  /// The k-th largest magnitude, 0 where there are fewer than k.
  [[nodiscard]] float kth(Queue<Space::host> queue, HostView<const float> values, HostView<std::byte> scratch) const {
    if (k_ == 0 || values.size() < k_) return 0.0F;
    const float* x = values.data();
    const host::Selector selector{queue, values.size(), scratch};
    return law::float_of(selector.find(k_, [x](std::size_t i) { return law::bits_of(x[i]) & 0x7fffffffU; }).threshold);
  }

  /// Regions that split the ranks' selections evenly: the mean over ranks of where each would cut its own.
  void agree_on_regions(Communicator<Space::host>& comm, Queue<Space::host> queue, const Work& work,
                        std::size_t selected, PhaseClock<Space::host>& clock) {
    in_phase(clock, Phase::communicate, queue, [&] {
      const auto me = static_cast<std::size_t>(comm.rank());
      auto* cuts = reinterpret_cast<std::uint32_t*>(work.numbers.data());
      const std::size_t each = ranks_ - 1;
      for (std::size_t j = 1; j < ranks_; ++j) {
        cuts[me * each + j - 1] =
            selected == 0 ? static_cast<std::uint32_t>(n_ * j / ranks_) : work.positions[selected * j / ranks_];
      }
      const HostView<std::uint32_t> all{cuts, each * ranks_};
      comm.all_gather(queue, as_bytes(all.part(me * each, each)), as_writable_bytes(all));
      borders_.front() = 0;
      borders_.back() = n_;
      for (std::size_t j = 1; j < ranks_; ++j) {
        std::uint64_t sum = 0;
        for (std::size_t r = 0; r < ranks_; ++r) sum += cuts[r * each + j - 1];
        borders_[j] = static_cast<std::size_t>(sum / ranks_);
        if (borders_[j] < borders_[j - 1] || borders_[j] > n_)
          throw Error{Fault::data, "oktopk: a rank's regions do not ascend"};
      }
      payload_bytes_ += 4 * each;
    });
  }

  /// Every part to its owner, one partner after the other, and the sum of what arrives for the own region.
  void split_and_reduce(Communicator<Space::host>& comm, Queue<Space::host> queue, const Work& work,
                        std::size_t selected, PhaseClock<Space::host>& clock) {
    const auto me = static_cast<std::size_t>(comm.rank());
    const Segment mine = region(me);
    in_phase(clock, Phase::encode, queue, [&] {
      const auto* all = work.positions.data();
      for (std::size_t r = 0; r <= ranks_; ++r)
        starts_[r] = static_cast<std::size_t>(std::lower_bound(all, all + selected, borders_[r]) - all);
      std::size_t at = 0;
      for (std::size_t r = 0; r < ranks_; ++r) {
        const std::size_t first = starts_[r];
        const std::size_t count = starts_[r + 1] - first;
        for (std::size_t i = first; i < first + count; ++i)
          work.positions[i] -= static_cast<std::uint32_t>(borders_[r]);
        offsets_[r] = at;
        sizes_[r] = 0;
        if (r == me) continue;
        sizes_[r] = write_sparse(queue, coding_, work.positions.part(first, count), work.values.part(first, count),
                                 region(r).count, work.out.part(at, work.out.size() - at));
        at += padded(sizes_[r]);
        payload_bytes_ += sizes_[r];
      }
      own_selected_ = starts_[me + 1] - starts_[me];
      fill_zero(queue, work.region.first(mine.count));
      for (std::size_t i = starts_[me]; i < starts_[me + 1]; ++i) work.region[work.positions[i]] = work.values[i];
    });
    for (std::size_t hop = 1; hop < ranks_; ++hop) {
      const std::size_t to = (me + hop) % ranks_;
      const std::size_t from = (me + ranks_ - hop) % ranks_;
      std::uint64_t bytes = 0;
      in_phase(clock, Phase::communicate, queue, [&] {
        constexpr std::size_t kHead = sizeof(SparseHeader);
        const auto swap = [&](std::size_t first, std::size_t out, std::size_t in) {
          comm.exchange(queue, static_cast<int>(to), work.out.part(offsets_[to] + first, out), static_cast<int>(from),
                        work.in.part(first, in));
        };
        swap(0, kHead, kHead);
        std::memcpy(&bytes, work.in.data(), sizeof bytes);
        if (bytes < kHead || bytes > work.in.size()) throw Error{Fault::data, "oktopk: a part that cannot be one"};
        swap(kHead, static_cast<std::size_t>(sizes_[to]) - kHead, static_cast<std::size_t>(bytes) - kHead);
      });
      in_phase(clock, Phase::decode, queue, [&] {
        add_sparse("oktopk", work.in.first(static_cast<std::size_t>(bytes)), 1.0F, work.region.first(mine.count),
                   work.positions);
      });
    }
  }

  /// The k-th largest magnitude among all sums, which every rank gathers for it.
  void agree_on_threshold(Communicator<Space::host>& comm, Queue<Space::host> queue, const Work& work,
                          const Segment& mine, PhaseClock<Space::host>& clock) {
    const HostView<float> sums{reinterpret_cast<float*>(work.in.data()), mine.count};
    std::size_t count = 0;
    in_phase(clock, Phase::encode, queue, [&] {
      const auto words = work.region_marks.first(mark_words(mine.count));
      mark_large(queue, work.region.first(mine.count), 0.0F, words);
      count = for_each_mark(queue, words, [&](std::size_t at, std::size_t i) { sums[at] = work.region[i]; });
    });
    in_phase(clock, Phase::communicate, queue, [&] {
      exchange_sizes(comm, queue, work, 4 * count);
      std::uint64_t at = 0;
      for (std::size_t r = 0; r < ranks_; ++r) {
        offsets_[r] = at;
        at += sizes_[r];
      }
      if (at > 4 * n_) throw Error{Fault::data, "oktopk: more sums than elements"};
      comm.all_gather_v(queue, as_bytes(sums.first(count)), sizes_, offsets_, as_writable_bytes(work.values));
      payload_bytes_ += 4 * count;
      global_.set(kth(queue, work.values.first(static_cast<std::size_t>(at / 4)), work.selector));
    });
  }

  /// What reaches the global threshold, from its owners to all. The parts stay in work.out.
  std::size_t gather_kept(Communicator<Space::host>& comm, Queue<Space::host> queue, const Work& work,
                          const Segment& mine, PhaseClock<Space::host>& clock) {
    std::size_t kept = 0;
    std::size_t bytes = 0;
    in_phase(clock, Phase::encode, queue, [&] {
      const auto words = work.region_marks.first(mark_words(mine.count));
      mark_large(queue, work.region.first(mine.count), global_.value(), words);
      kept = for_each_mark(queue, words, [&](std::size_t at, std::size_t i) {
        work.positions[at] = static_cast<std::uint32_t>(i);
        work.values[at] = work.region[i];
      });
      bytes = write_sparse(queue, coding_, work.positions.first(kept), work.values.first(kept), mine.count, work.in);
      payload_bytes_ += bytes;
    });
    in_phase(clock, Phase::communicate, queue, [&] {
      exchange_sizes(comm, queue, work, bytes);
      std::uint64_t at = 0;
      for (std::size_t r = 0; r < ranks_; ++r) {
        if (sizes_[r] > part_bytes(region(r).count)) throw Error{Fault::data, "oktopk: a part that cannot be one"};
        offsets_[r] = at;
        at += padded(static_cast<std::size_t>(sizes_[r]));
      }
      comm.all_gather_v(queue, work.in.first(bytes), sizes_, offsets_, work.out);
    });
    return kept;
  }

  void exchange_sizes(Communicator<Space::host>& comm, Queue<Space::host> queue, const Work& work, std::uint64_t mine) {
    const auto me = static_cast<std::size_t>(comm.rank());
    const auto all = work.numbers.first(ranks_);
    all[me] = mine;
    comm.all_gather(queue, as_bytes(all.part(me, 1)), as_writable_bytes(all));
    std::copy(all.span().begin(), all.span().end(), sizes_.begin());
    payload_bytes_ += 8;
  }

  /// The result, and the residual: zero where this rank sent and the result has it.
  void apply(Queue<Space::host> queue, const Work& work, HostView<float> gradient) {
    fill_zero(queue, gradient);
    const float share = 1.0F / static_cast<float>(ranks_);
    std::size_t total = 0;
    for (std::size_t r = 0; r < ranks_; ++r) {
      const Segment at = region(r);
      const auto part = work.out.part(static_cast<std::size_t>(offsets_[r]), static_cast<std::size_t>(sizes_[r]));
      const SparseHeader header = read_sparse_header("oktopk", part, at.count, 32);
      add_sparse("oktopk", part, share, gradient.part(at.first, at.count), work.positions);
      total += header.count;
      if (residual_.empty()) continue;
      for (std::size_t i = 0; i < header.count; ++i) {
        const std::size_t place = at.first + work.positions[i];
        if ((work.marks[place / 32] >> place % 32 & 1U) != 0) residual_[place] = 0.0F;
      }
    }
    const auto k = static_cast<double>(k_);
    global_.steer(total, 2.0 * k / 3.0, 4.0 * k / 3.0);
  }

  std::size_t k_;
  std::int64_t period_, regions_period_, warmup_;
  IndexCoding coding_;
  std::vector<std::size_t> borders_;
  std::vector<std::uint64_t> sizes_, offsets_;
  std::vector<std::size_t> starts_;
  Arena<Space::host> state_;
  HostView<float> residual_;
  Threshold local_{1.012}, global_{1.008};
  std::size_t own_selected_ = 0;
  std::uint64_t selected_ = 0, wanted_ = 0;  ///< since the last reset
  std::int64_t step_ = 0;
};

}  // namespace

extern constinit const OwnReducer oktopk_reducer{
    .codec = "oktopk",
    .make_host = [](const ReducerSetup<Space::host>& setup) -> std::unique_ptr<Reducer<Space::host>> {
      return std::make_unique<OkTopkReducer>(setup);
    },
};

}  // namespace gradtool
