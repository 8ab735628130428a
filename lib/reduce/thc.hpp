#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <memory>
#include <string>
#include <vector>

#include "kernels/law/philox.hpp"
#include "kernels/law/thc.hpp"
#include "lib/reduce/host_reducer.hpp"

namespace gradtool {

/// The steps of THC that look at elements, in one space: what they do is docs/payload-format.md's, numbered as there.
template <Space S>
struct ThcSteps {
  /// Bytes that `norm` works in.
  static std::size_t scratch_bytes(std::size_t n);
  /// Draws of the key, a bit for each element.
  static void signs(Queue<S> queue, const law::DrawKey& key, View<std::uint32_t, S> signs);
  /// 1: *norm := |u|.
  static void norm(Queue<S> queue, View<const float, S> u, float* norm, View<std::byte, S> scratch);
  /// 2 and 3: codes of u, and what they do not say, unless there is no residual. `norms` are all ranks'; u may be the
  /// residual.
  template <std::uint32_t Bits>
  static void encode(Queue<S> queue, const law::ThcShape& shape, const law::ThcTable<Bits>& table,
                     View<const float, S> u, const float* norms, const std::uint32_t* signs, const law::DrawKey& key,
                     View<std::byte, S> codes, View<float, S> residual);
  /// 5: sums := the values of codes, or sums += them.
  template <std::uint32_t Bits, class Sum>
  static void add_codes(Queue<S> queue, const law::ThcTable<Bits>& table, View<const std::byte, S> codes,
                        std::size_t groups, bool add, Sum* sums);
  /// 6: gradient := the mean that the sums say.
  template <std::uint32_t Bits, class Sum>
  static void decode(Queue<S> queue, const law::ThcShape& shape, const law::ThcTable<Bits>& table, const Sum* sums,
                     const float* norms, const std::uint32_t* signs, View<float, S> gradient);
};

template <std::uint32_t Bits>
[[nodiscard]] law::ThcTable<Bits> thc_table_of(const std::vector<float>& values, double t) {
  law::ThcTable<Bits> table{};
  std::copy(values.begin(), values.end(), table.value);
  for (std::size_t q = 0; q + 1 < values.size(); ++q) table.width[q] = values[q + 1] - values[q];
  table.top = values.back();
  table.t = static_cast<float>(t);
  return table;
}

/// The values with the least expected error for a normal number clamped to [-t, t], t its quantile 1 - pcut/2.
template <std::uint32_t Bits>
[[nodiscard]] law::ThcTable<Bits> thc_table(bool optimal) {
  constexpr double kThousandth = 3.2971933456919635;      // pcut = 1/1024
  constexpr double kThirtysecondth = 2.1538746940614564;  // pcut = 1/32
  if (!optimal) {
    std::vector<float> values(std::size_t{1} << Bits);
    for (std::size_t q = 0; q < values.size(); ++q) values[q] = static_cast<float>(q);
    return thc_table_of<Bits>(values, kThousandth);
  }
  if (Bits == 3) return thc_table_of<Bits>({0, 10, 15, 19, 23, 27, 32, 42}, kThousandth);
  return thc_table_of<Bits>({0, 3, 5, 7, 9, 11, 13, 14, 15, 17, 19, 21, 23, 25, 27, 30}, kThirtysecondth);
}

/// THC (Li et al. 2024): table quantisation that adds without decoding, over owners of parts.
template <Space S, std::uint32_t Bits>
class ThcReducer final : public CountingReducer<S> {
 public:
  explicit ThcReducer(const ReducerSetup<S>& setup)
      : CountingReducer<S>{setup.layout.elements, setup.ranks},
        table_{thc_table<Bits>(setup.spec.params.is("table", "optimal"))},
        shape_{n_, n_ / law::kThcBlock * law::kThcBlock + short_block(n_ % law::kThcBlock), ranks_},
        wide_{static_cast<double>(ranks_) * static_cast<double>(table_.top) > 255.0},
        sizes_(ranks_),
        offsets_(ranks_),
        state_{this->padded(setup.spec.error_feedback ? 4 * n_ : 0) + this->padded(4 * shape_.groups()) +
               this->padded(4 * ranks_)},
        residual_{state_.template take<float>(setup.spec.error_feedback ? n_ : 0)},
        signs_{state_.template take<std::uint32_t>(shape_.groups())},
        norms_{state_.template take<float>(ranks_)} {
    expects(static_cast<double>(ranks_) * static_cast<double>(table_.top) <= 65535.0,
            "codec thc: sums over so many ranks do not fit into two bytes");
    const auto seed = static_cast<std::uint64_t>(setup.spec.params.integer("seed"));
    Steps::signs(setup.queue, law::shared_by_ranks({.seed = seed}), signs_);
    ThcReducer::reset(setup.queue);
  }

  [[nodiscard]] typename Reducer<S>::Pattern pattern() const override { return {.shards = true, .ring = false}; }
  void reset(Queue<S> queue) override { fill_zero(queue, residual_); }
  [[nodiscard]] View<const float, S> residual() const override { return residual_; }
  [[nodiscard]] std::string note() const override {
    return wide_ ? fmt::format("sums travel as two bytes: {} ranks times {} exceed 255", ranks_, table_.top) : "";
  }

  [[nodiscard]] std::size_t workspace_bytes() const override {
    return 2 * this->padded(code_bytes(shape_.groups())) + this->padded(sum_bytes(shape_.groups())) +
           this->padded(Steps::scratch_bytes(n_)) + 256;
  }

  void reduce(Communicator<S>& comm, Queue<S> queue, View<float, S> gradient, const SideInputs<S>& /*side*/,
              const EncodeContext& context, View<std::byte, S> workspace, PhaseClock<S>& clock) override {
    Carver<S> carve{workspace};
    const auto codes = carve.take(code_bytes(shape_.groups()));
    const auto arrived = carve.take(code_bytes(shape_.groups()));
    const auto sums = carve.take(sum_bytes(shape_.groups()));
    const auto scratch = carve.take(Steps::scratch_bytes(n_));
    View<float, S> u = gradient;
    const auto me = static_cast<std::size_t>(comm.rank());
    in_phase(clock, Phase::encode, queue, [&] {
      if (!residual_.empty()) {
        add(queue, gradient, residual_);
        u = residual_;
      }
      Steps::norm(queue, u, norms_.data() + me, scratch);
    });
    in_phase(clock, Phase::communicate, queue,
             [&] { comm.all_gather(queue, as_bytes(norms_.part(me, 1)), as_writable_bytes(norms_)); });
    in_phase(clock, Phase::encode, queue, [&] {
      Steps::encode(queue, shape_, table_, u, norms_.data(), signs_.data(), context.key, codes, residual_);
    });
    if (wide_) {
      sum_codes<std::uint16_t>(comm, queue, codes, arrived, sums, clock);
    } else {
      sum_codes<std::uint8_t>(comm, queue, codes, arrived, sums, clock);
    }
    in_phase(clock, Phase::communicate, queue, [&] {
      for (std::size_t r = 0; r < ranks_; ++r) {
        sizes_[r] = sum_bytes(part(r).count);
        offsets_[r] = sum_bytes(part(r).first);
      }
      comm.all_gather_v(queue, sums.part(offsets_[me], sizes_[me]), sizes_, offsets_, sums);
    });
    in_phase(clock, Phase::decode, queue, [&] {
      if (wide_) {
        decode<std::uint16_t>(queue, sums, gradient);
      } else {
        decode<std::uint8_t>(queue, sums, gradient);
      }
    });
    payload_bytes_ = sizeof(float) + codes.size() + sizes_[me];
    values_sent_ = n_;
  }

 private:
  using Steps = ThcSteps<S>;
  using CountingReducer<S>::n_;
  using CountingReducer<S>::ranks_;
  using CountingReducer<S>::payload_bytes_;
  using CountingReducer<S>::values_sent_;

  static constexpr std::size_t short_block(std::size_t rest) { return rest == 0 ? 0 : std::bit_ceil(rest); }
  static constexpr std::size_t code_bytes(std::size_t groups) { return 4 * Bits * groups; }
  [[nodiscard]] std::size_t sum_bytes(std::size_t groups) const { return (wide_ ? 2 : 1) * law::kPackGroup * groups; }
  /// The groups that a rank owns.
  [[nodiscard]] Segment part(std::size_t r) const {
    return ring_segment(shape_.groups(), static_cast<int>(r), static_cast<int>(ranks_));
  }

  /// Every owner's codes to it, one partner after the other; sums of whole numbers in the owner's part.
  template <class Sum>
  void sum_codes(Communicator<S>& comm, Queue<S> queue, View<const std::byte, S> codes, View<std::byte, S> arrived,
                 View<std::byte, S> sums, PhaseClock<S>& clock) {
    const auto me = static_cast<std::size_t>(comm.rank());
    const auto codes_for = [&](std::size_t r) {
      return codes.part(code_bytes(part(r).first), code_bytes(part(r).count));
    };
    const Segment mine = part(me);
    auto* own = reinterpret_cast<Sum*>(sums.data() + sum_bytes(mine.first));
    in_phase(clock, Phase::decode, queue,
             [&] { Steps::add_codes(queue, table_, codes_for(me), mine.count, false, own); });
    for (std::size_t hop = 1; hop < ranks_; ++hop) {
      const std::size_t to = (me + hop) % ranks_;
      const std::size_t from = (me + ranks_ - hop) % ranks_;
      const auto in = arrived.first(code_bytes(mine.count));
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

  law::ThcTable<Bits> table_;
  law::ThcShape shape_;
  bool wide_;
  std::vector<std::uint64_t> sizes_, offsets_;
  Arena<S> state_;
  View<float, S> residual_;
  View<std::uint32_t, S> signs_;
  View<float, S> norms_;
};

/// The reducer for the bits that a specification asks for.
template <Space S>
[[nodiscard]] std::unique_ptr<Reducer<S>> make_thc_reducer(const ReducerSetup<S>& setup) {
  if (setup.spec.params.word("bits") == "3") return std::make_unique<ThcReducer<S, 3>>(setup);
  return std::make_unique<ThcReducer<S, 4>>(setup);
}

}  // namespace gradtool
