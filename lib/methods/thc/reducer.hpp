#pragma once

#include <memory>
#include <string>
#include <vector>

#include "kernels/draws.hpp"
#include "kernels/sums.hpp"
#include "kernels/vector.hpp"
#include "lib/codecs/reducer.hpp"
#include "lib/core/scratch.hpp"
#include "lib/methods/thc/format.hpp"

namespace gradtool {

/// THC (Li et al., NSDI 2024): every rank owns a part of the bucket, receives all ranks' codes for it, adds the whole
/// numbers that they stand for and sends the sums to all. `Steps` is the work on elements on one processor; numbers are
/// those of the list in README.md:
///   signs(queue, key, signs)         a random bit for every element; drawn once
///   norm(queue, u, norm, squares)    1: *norm := |u|. `squares`: a double for each format::kSumChunk elements
///   encode(queue, shape, table, u, norms, signs, key, codes, residual)   2 and 3: the codes of u, and, unless
///                                    `residual` is empty, what they do not represent. u may be the residual. `norms`:
///                                    of all ranks
///   add_codes(queue, table, codes, groups, add, sums)   5: sums := the values of the codes, or (add) sums += them
///   decode(queue, shape, table, sums, norms, signs, gradient)            6: gradient := the mean
template <Space S, std::uint32_t Bits, class Steps>
class ThcReducer final : public CountingReducer<S> {
 public:
  explicit ThcReducer(const ReducerSetup<S>& setup)
      : CountingReducer<S>{setup.layout.elements, setup.ranks},
        table_{format::thc_table<Bits>(setup.spec.params.is("table", "optimal"))},
        shape_{n_, ranks_},
        wide_{static_cast<double>(ranks_) * static_cast<double>(table_.top) > 255.0},
        sizes_(ranks_),
        offsets_(ranks_),
        state_{this->padded(setup.spec.error_feedback ? 4 * n_ : 0) + this->padded(4 * shape_.groups()) +
               this->padded(4 * ranks_)},
        residual_{state_.template take<float>(setup.spec.error_feedback ? n_ : 0)},
        signs_{state_.template take<std::uint32_t>(shape_.groups())},
        norms_{state_.template take<float>(ranks_)} {
    expect_valid(static_cast<double>(ranks_) * static_cast<double>(table_.top) <= 65535.0,
                 "codec thc: sums over so many ranks do not fit into two bytes");
    const auto seed = static_cast<std::uint64_t>(setup.spec.params.integer("seed"));
    Steps::signs(setup.queue, format::shared_by_ranks({.seed = seed}), signs_);
    ThcReducer::reset(setup.queue);
  }

  [[nodiscard]] typename Reducer<S>::Pattern pattern(Level /*level*/) const override {
    return {.shards = true, .ring = false};
  }
  void reset(Queue<S> queue) override { fill_zero(queue, residual_); }
  void visit_state(StateVisitor& visitor) override { visitor.values("residual", residual_); }
  [[nodiscard]] View<const float, S> residual() const override { return residual_; }
  [[nodiscard]] std::string note() const override {
    if (!wide_) return {};
    return "sums travel as two bytes: " + std::to_string(ranks_) + " ranks times " +
           std::to_string(static_cast<int>(table_.top)) + " exceed 255";
  }

  [[nodiscard]] std::size_t workspace_bytes() const override { return planned<Workspace>(*this); }

  void reduce(Communicator<S>& comm, Queue<S> queue, View<float, S> gradient, const SideInputs<S>& /*side*/,
              const EncodeContext& context, View<std::byte, S> workspace, PhaseClock<S>& clock) override {
    const Workspace work{*this, Scratch<S>{workspace}};
    View<float, S> u = gradient;
    const auto me = static_cast<std::size_t>(comm.rank());
    in_phase(clock, Phase::encode, queue, [&] {
      if (!residual_.empty()) {
        add(queue, gradient, residual_);
        u = residual_;
      }
      Steps::norm(queue, u, norms_.data() + me, work.squares);
    });
    in_phase(clock, Phase::communicate, queue,
             [&] { comm.all_gather(queue, as_bytes(norms_.part(me, 1)), as_writable_bytes(norms_)); });
    in_phase(clock, Phase::encode, queue, [&] {
      Steps::encode(queue, shape_, table_, u, norms_.data(), signs_.data(), context.key, work.codes, residual_);
    });
    if (wide_) {
      sum_codes<std::uint16_t>(comm, queue, work, clock);
    } else {
      sum_codes<std::uint8_t>(comm, queue, work, clock);
    }
    in_phase(clock, Phase::communicate, queue, [&] {
      for (std::size_t r = 0; r < ranks_; ++r) {
        sizes_[r] = sum_bytes(part(r).count);
        offsets_[r] = sum_bytes(part(r).first);
      }
      comm.all_gather_v(queue, work.sums.part(offsets_[me], sizes_[me]), sizes_, offsets_, work.sums);
    });
    in_phase(clock, Phase::decode, queue, [&] {
      if (wide_) {
        decode<std::uint16_t>(queue, work.sums, gradient);
      } else {
        decode<std::uint8_t>(queue, work.sums, gradient);
      }
    });
    payload_bytes_ = sizeof(float) + work.codes.size() + sizes_[me];
    values_sent_ = n_;
  }

 private:
  using CountingReducer<S>::n_;
  using CountingReducer<S>::ranks_;
  using CountingReducer<S>::payload_bytes_;
  using CountingReducer<S>::values_sent_;

  struct Workspace {
    Workspace(const ThcReducer& reducer, Scratch<S> scratch)
        : codes{scratch.take_bytes(code_bytes(reducer.shape_.groups()))},
          arrived{scratch.take_bytes(code_bytes(reducer.shape_.groups()))},
          sums{scratch.take_bytes(reducer.sum_bytes(reducer.shape_.groups()))},
          squares{scratch.template take<double>((reducer.n_ + format::kSumChunk - 1) / format::kSumChunk)} {}
    View<std::byte, S> codes;    ///< of this rank, for all parts
    View<std::byte, S> arrived;  ///< codes of another rank for the part that this rank owns
    View<std::byte, S> sums;     ///< of all parts
    View<double, S> squares;     ///< sums of squares of chunks, for the norm
  };

  static constexpr std::size_t code_bytes(std::size_t groups) { return 4 * Bits * groups; }
  [[nodiscard]] std::size_t sum_bytes(std::size_t groups) const {
    return (wide_ ? 2 : 1) * format::kPackGroup * groups;
  }
  /// The groups that rank r owns.
  [[nodiscard]] Segment part(std::size_t r) const {
    return ring_segment(shape_.groups(), static_cast<int>(r), static_cast<int>(ranks_));
  }

  /// Sends every owner the codes for its part, one partner after the other, and adds up what arrives for the own part.
  template <class Sum>
  void sum_codes(Communicator<S>& comm, Queue<S> queue, const Workspace& work, PhaseClock<S>& clock) {
    const auto me = static_cast<std::size_t>(comm.rank());
    const auto codes_for = [&](std::size_t r) {
      return View<const std::byte, S>{work.codes.part(code_bytes(part(r).first), code_bytes(part(r).count))};
    };
    const Segment mine = part(me);
    auto* own = reinterpret_cast<Sum*>(work.sums.data() + sum_bytes(mine.first));
    in_phase(clock, Phase::decode, queue,
             [&] { Steps::add_codes(queue, table_, codes_for(me), mine.count, false, own); });
    for (std::size_t hop = 1; hop < ranks_; ++hop) {
      const std::size_t to = (me + hop) % ranks_;
      const std::size_t from = (me + ranks_ - hop) % ranks_;
      const auto in = work.arrived.first(code_bytes(mine.count));
      in_phase(clock, Phase::communicate, queue,
               [&] { comm.exchange(queue, static_cast<int>(to), codes_for(to), static_cast<int>(from), in); });
      in_phase(clock, Phase::decode, queue,
               [&] { Steps::add_codes(queue, table_, View<const std::byte, S>{in}, mine.count, true, own); });
    }
  }

  template <class Sum>
  void decode(Queue<S> queue, View<const std::byte, S> sums, View<float, S> gradient) const {
    Steps::decode(queue, shape_, table_, reinterpret_cast<const Sum*>(sums.data()), norms_.data(), signs_.data(),
                  gradient);
  }

  format::ThcTable<Bits> table_;
  format::ThcShape shape_;
  bool wide_;  ///< sums of codes need two bytes
  std::vector<std::uint64_t> sizes_, offsets_;
  Arena<S> state_;
  View<float, S> residual_;
  View<std::uint32_t, S> signs_;
  View<float, S> norms_;
};

/// The reducer for the code width that the specification asks for.
template <Space S, class Steps>
[[nodiscard]] std::unique_ptr<Reducer<S>> make_thc_reducer(const ReducerSetup<S>& setup) {
  if (setup.spec.params.word("bits") == "3") return std::make_unique<ThcReducer<S, 3, Steps>>(setup);
  return std::make_unique<ThcReducer<S, 4, Steps>>(setup);
}

}  // namespace gradtool
