#include "kernels/law/thc.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <type_traits>
#include <vector>

#include "kernels/host/draws.hpp"
#include "kernels/host/hadamard.hpp"
#include "kernels/host/pack_codes.hpp"
#include "kernels/law/half.hpp"
#include "lib/core/task_pool.hpp"
#include "lib/reduce/host_reducer.hpp"

namespace gradtool {
namespace {

constexpr std::size_t kBlock = host::kHadamardBlock;
constexpr std::size_t kGroup = law::kPackGroup;
constexpr std::size_t kTile = 32;  // groups that are unpacked at once
constexpr double kSmallestNorm = 0x1p-100;

template <std::uint32_t Bits>
law::ThcTable<Bits> make_table(const std::vector<float>& values, double t) {
  law::ThcTable<Bits> table{};
  std::copy(values.begin(), values.end(), table.value);
  for (std::size_t q = 0; q + 1 < values.size(); ++q) table.width[q] = values[q + 1] - values[q];
  table.top = values.back();
  table.t = static_cast<float>(t);
  return table;
}

/// The values with the least expected error for a normal number clamped to [-t, t], t its quantile 1 - pcut/2.
template <std::uint32_t Bits>
law::ThcTable<Bits> table_for(bool optimal) {
  constexpr double kThousandth = 3.2971933456919635;      // pcut = 1/1024
  constexpr double kThirtysecondth = 2.1538746940614564;  // pcut = 1/32
  if (!optimal) {
    std::vector<float> values(std::size_t{1} << Bits);
    for (std::size_t q = 0; q < values.size(); ++q) values[q] = static_cast<float>(q);
    return make_table<Bits>(values, kThousandth);
  }
  if (Bits == 3) return make_table<Bits>({0, 10, 15, 19, 23, 27, 32, 42}, kThousandth);
  return make_table<Bits>({0, 3, 5, 7, 9, 11, 13, 14, 15, 17, 19, 21, 23, 25, 27, 30}, kThirtysecondth);
}

/// to := factor from, with the signs changed whose bit is set.
GT_SIMD_CLONES void turn(const float* __restrict from, float factor, const std::uint32_t* __restrict signs,
                         std::size_t count, float* __restrict to) {
  const auto one = [&](std::size_t i, std::uint32_t j) {
    to[i + j] = law::float_of(law::bits_of(factor * from[i + j]) ^ (*signs >> j << 31));
  };
  std::size_t i = 0;
  for (; i + 32 <= count; i += 32, ++signs) {
    for (std::uint32_t j = 0; j < 32; ++j) one(i, j);
  }
  for (std::uint32_t j = 0; i + j < count; ++j) one(i, j);
}

/// Codes of x, and in x, still in steps of the table, what they do not say. Works on whole chunks of 128 elements:
/// codes are narrowed in a loop of their own, as the first would not be vectorised with them.
template <std::uint32_t Bits>
GT_SIMD_CLONES void quantise(const law::ThcTable<Bits>& shared, float* __restrict x, float factor,
                             const std::uint32_t* __restrict draws, std::size_t count, std::uint8_t* __restrict codes) {
  const law::ThcTable<Bits> table = shared;  // no store can change it
  const float middle = 0.5F * table.top;
  constexpr std::size_t kChunk = host::kDrawGroup;
  std::array<std::uint32_t, kChunk> code;
  for (std::size_t at = 0; at < count; at += kChunk) {
    for (std::size_t i = 0; i < kChunk; ++i) {
      const float place = x[at + i] * factor + middle;
      const law::ThcCode c = law::thc_encode(table, law::thc_clamp(place, table.top), law::uniform(draws[at + i]));
      code[i] = c.code;
      x[at + i] = place - c.value;
    }
    for (std::size_t i = 0; i < kChunk; ++i) codes[at + i] = static_cast<std::uint8_t>(code[i]);
  }
}

template <class Lane>
GT_SIMD_CLONES void widen(const Lane* lanes, float middle, float factor, std::size_t count, float* x) {
  for (std::size_t i = 0; i < count; ++i) x[i] = (static_cast<float>(lanes[i]) - middle) * factor;
}

/// THC (Li et al. 2024): table quantisation that adds without decoding, over owners of parts.
template <std::uint32_t Bits>
class ThcReducer final : public HostReducer {
 public:
  explicit ThcReducer(const ReducerSetup<Space::host>& setup)
      : HostReducer{setup.layout.elements, setup.ranks},
        table_{table_for<Bits>(setup.spec.params.is("table", "optimal"))},
        padded_elements_{n_ / kBlock * kBlock + (n_ % kBlock == 0 ? 0 : std::bit_ceil(n_ % kBlock))},
        blocks_{(n_ + kBlock - 1) / kBlock},
        groups_{(padded_elements_ + kGroup - 1) / kGroup},
        wide_{static_cast<double>(ranks_) * static_cast<double>(table_.top) > 255.0},
        norms_(ranks_),
        sizes_(ranks_),
        offsets_(ranks_),
        state_{padded(4 * n_) + padded(4 * groups_)},
        residual_{state_.take<float>(setup.spec.error_feedback ? n_ : 0)},
        signs_{state_.take<std::uint32_t>(groups_)} {
    expects(static_cast<double>(ranks_) * static_cast<double>(table_.top) <= 65535.0,
            "codec thc: sums over so many ranks do not fit into two bytes");
    const auto key = law::shared_by_ranks({.seed = static_cast<std::uint64_t>(setup.spec.params.integer("seed"))});
    for (std::size_t w = 0; w < groups_; ++w) signs_[w] = law::draw4(key, w / 4).bits[w % 4];
    ThcReducer::reset(setup.queue);
  }

  [[nodiscard]] Pattern pattern() const override { return {.shards = true, .ring = false}; }
  void reset(Queue<Space::host> queue) override { fill_zero(queue, residual_); }
  [[nodiscard]] HostView<const float> residual() const override { return residual_; }
  [[nodiscard]] std::string note() const override {
    return wide_ ? fmt::format("sums travel as two bytes: {} ranks times {} exceed 255", ranks_, table_.top) : "";
  }

  [[nodiscard]] std::size_t workspace_bytes() const override {
    return 2 * padded(code_bytes(groups_)) + padded(lane_bytes(groups_)) + 256;
  }

  void reduce(Communicator<Space::host>& comm, Queue<Space::host> queue, HostView<float> gradient,
              const SideInputs<Space::host>& /*side*/, const EncodeContext& context, HostView<std::byte> workspace,
              PhaseClock<Space::host>& clock) override {
    Carver<Space::host> carve{workspace};
    const auto codes = carve.take(code_bytes(groups_));
    const auto arrived = carve.take(code_bytes(groups_));
    const auto lanes = carve.take(lane_bytes(groups_));
    HostView<float> u = gradient;
    const auto me = static_cast<std::size_t>(comm.rank());
    in_phase(clock, Phase::encode, queue, [&] {
      if (!residual_.empty()) {
        add(queue, gradient, residual_);
        u = residual_;
      }
      norms_[me] = static_cast<float>(std::sqrt(moments(queue, u).squares));
    });
    in_phase(clock, Phase::communicate, queue, [&] {
      const HostView<float> all{norms_.data(), norms_.size()};
      comm.all_gather(queue, as_bytes(all.part(me, 1)), as_writable_bytes(all));
    });
    const float norm = agreed_norm();
    in_phase(clock, Phase::encode, queue, [&] { encode(queue, u, norm, context.key, codes); });
    if (wide_) {
      sum_codes<std::uint16_t>(comm, queue, codes, arrived, lanes, clock);
    } else {
      sum_codes<std::uint8_t>(comm, queue, codes, arrived, lanes, clock);
    }
    in_phase(clock, Phase::communicate, queue, [&] {
      for (std::size_t r = 0; r < ranks_; ++r) {
        sizes_[r] = lane_bytes(part(r).count);
        offsets_[r] = lane_bytes(part(r).first);
      }
      comm.all_gather_v(queue, lanes.part(offsets_[me], sizes_[me]), sizes_, offsets_, lanes);
    });
    in_phase(clock, Phase::decode, queue, [&] {
      if (wide_) {
        decode<std::uint16_t>(queue, lanes, norm, gradient);
      } else {
        decode<std::uint8_t>(queue, lanes, norm, gradient);
      }
    });
    payload_bytes_ = sizeof(float) + codes.size() + sizes_[me];
    values_sent_ = n_;
  }

 private:
  static constexpr std::size_t code_bytes(std::size_t groups) { return 4 * Bits * groups; }
  [[nodiscard]] std::size_t lane_bytes(std::size_t groups) const { return (wide_ ? 2 : 1) * kGroup * groups; }
  /// The groups that a rank owns.
  [[nodiscard]] Segment part(std::size_t r) const {
    return ring_segment(groups_, static_cast<int>(r), static_cast<int>(ranks_));
  }

  /// The largest; not a number where one of them is not finite, and 0 where it is too small to divide by.
  [[nodiscard]] float agreed_norm() const {
    float norm = 0.0F;
    for (const float other : norms_) {
      if (!std::isfinite(other)) return NAN;
      norm = std::max(norm, other);
    }
    return static_cast<double>(norm) < kSmallestNorm ? 0.0F : norm;
  }
  /// Of a rotated element (with variance norm^2 / d), in steps of the table.
  [[nodiscard]] double steps_per_unit(float norm) const {
    return std::sqrt(static_cast<double>(padded_elements_)) / static_cast<double>(norm) *
           static_cast<double>(table_.top) / (2.0 * static_cast<double>(table_.t));
  }

  /// A block rotates to and fro with the same transform, up to a factor of its size.
  static void rotate(float* x, std::size_t size) {
    if (size == kBlock) {
      host::hadamard_block(x);
    } else {
      host::hadamard(x, size);
    }
  }
  [[nodiscard]] std::size_t block_size(std::size_t block) const {
    return std::min(kBlock, padded_elements_ - kBlock * block);
  }

  void encode(Queue<Space::host> queue, HostView<const float> u, float norm, const law::DrawKey& key,
              HostView<std::byte> codes) const {
    const double steps = norm == 0.0F ? 0.0 : steps_per_unit(norm);
    auto* words = reinterpret_cast<std::uint32_t*>(codes.data());
    parallel_for(queue, blocks_, 1, 16, [&](std::size_t from, std::size_t to) {
      alignas(64) std::array<float, kBlock> x{};
      alignas(64) std::array<std::uint32_t, kBlock + host::kDrawGroup> draws;
      alignas(64) std::array<std::uint8_t, kBlock + kGroup> code;
      for (std::size_t block = from; block < to; ++block) {
        const std::size_t first = kBlock * block;
        const std::size_t size = block_size(block);
        const std::size_t here = std::min(size, n_ - first);
        turn(u.data() + first, 1.0F, signs_.data() + first / 32, here, x.data());
        std::fill(x.data() + here, x.data() + size, 0.0F);
        rotate(x.data(), size);
        const double root = std::sqrt(static_cast<double>(size));
        host::draw_tile(key, first, size, draws.data());
        quantise(table_, x.data(), static_cast<float>(steps / root), draws.data(), size, code.data());
        std::fill(code.data() + size, code.data() + (size + kGroup - 1) / kGroup * kGroup, std::uint8_t{0});
        host::write_codes<Bits>(code.data(), (size + kGroup - 1) / kGroup * kGroup, words + Bits * (first / kGroup));
        if (residual_.empty()) continue;
        rotate(x.data(), size);
        turn(x.data(), steps == 0.0 ? 0.0F : static_cast<float>(1.0 / (steps * root)), signs_.data() + first / 32, here,
             residual_.data() + first);
      }
    });
  }

  /// Every owner's codes to it, one partner after the other; sums of whole numbers in the lanes of the own part.
  template <class Lane>
  void sum_codes(Communicator<Space::host>& comm, Queue<Space::host> queue, HostView<const std::byte> codes,
                 HostView<std::byte> arrived, HostView<std::byte> lanes, PhaseClock<Space::host>& clock) {
    const auto me = static_cast<std::size_t>(comm.rank());
    const Segment mine = part(me);
    auto* sums = reinterpret_cast<Lane*>(lanes.data() + lane_bytes(mine.first));
    std::array<Lane, law::ThcTable<Bits>::kLevels> values;
    for (std::size_t q = 0; q < values.size(); ++q) values[q] = static_cast<Lane>(table_.value[q]);
    const auto add_codes = [&](const std::byte* from, bool first_of_all) {
      parallel_for(queue, mine.count, kTile, 1 << 9, [&](std::size_t group, std::size_t last) {
        alignas(64) std::array<std::uint8_t, kGroup * kTile> code;
        for (; group < last; group += kTile) {
          const std::size_t count = kGroup * std::min(kTile, last - group);
          host::read_codes<Bits>(reinterpret_cast<const std::uint32_t*>(from) + Bits * group, count, code.data());
          Lane* sum = sums + kGroup * group;
          if (first_of_all) {
            for (std::size_t i = 0; i < count; ++i) sum[i] = values[code[i]];
          } else {
            for (std::size_t i = 0; i < count; ++i) sum[i] = static_cast<Lane>(sum[i] + values[code[i]]);
          }
        }
      });
    };
    in_phase(clock, Phase::decode, queue, [&] { add_codes(codes.data() + code_bytes(mine.first), true); });
    for (std::size_t hop = 1; hop < ranks_; ++hop) {
      const std::size_t to = (me + hop) % ranks_;
      const std::size_t from = (me + ranks_ - hop) % ranks_;
      in_phase(clock, Phase::communicate, queue, [&] {
        comm.exchange(queue, static_cast<int>(to), codes.part(code_bytes(part(to).first), code_bytes(part(to).count)),
                      static_cast<int>(from), arrived.first(code_bytes(mine.count)));
      });
      in_phase(clock, Phase::decode, queue, [&] { add_codes(arrived.data(), false); });
    }
  }

  template <class Lane>
  void decode(Queue<Space::host> queue, HostView<const std::byte> lanes, float norm, HostView<float> gradient) const {
    const auto* sums = reinterpret_cast<const Lane*>(lanes.data());
    const double p = static_cast<double>(ranks_);
    const double unit = norm == 0.0F ? 0.0 : 1.0 / (steps_per_unit(norm) * p);
    const auto middle = static_cast<float>(p * 0.5 * static_cast<double>(table_.top));
    parallel_for(queue, blocks_, 1, 16, [&](std::size_t from, std::size_t to) {
      alignas(64) std::array<float, kBlock> x;
      for (std::size_t block = from; block < to; ++block) {
        const std::size_t first = kBlock * block;
        const std::size_t size = block_size(block);
        const auto factor = static_cast<float>(unit / std::sqrt(static_cast<double>(size)));
        widen(sums + first, middle, factor, size, x.data());
        rotate(x.data(), size);
        turn(x.data(), 1.0F, signs_.data() + first / 32, std::min(size, n_ - first), gradient.data() + first);
      }
    });
  }

  law::ThcTable<Bits> table_;
  std::size_t padded_elements_, blocks_, groups_;
  bool wide_;
  std::vector<float> norms_;
  std::vector<std::uint64_t> sizes_, offsets_;
  Arena<Space::host> state_;
  HostView<float> residual_;
  HostView<std::uint32_t> signs_;
};

}  // namespace

extern constinit const OwnReducer thc_reducer{
    .codec = "thc",
    .make_host = [](const ReducerSetup<Space::host>& setup) -> std::unique_ptr<Reducer<Space::host>> {
      if (setup.spec.params.word("bits") == "3") return std::make_unique<ThcReducer<3>>(setup);
      return std::make_unique<ThcReducer<4>>(setup);
    },
};

}  // namespace gradtool
