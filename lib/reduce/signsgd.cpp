#include <array>
#include <cstring>
#include <vector>

#include "kernels/law/majority.hpp"
#include "lib/codecs/sign_codec.hpp"
#include "lib/reduce/host_reducer.hpp"

namespace gradtool {
namespace {

constexpr std::size_t kGrain = 1 << 14;

GT_SIMD_CLONES void move_momentum(const float* g, float beta, float* m, std::size_t count) {
  const float share = 1.0F - beta;
  for (std::size_t i = 0; i < count; ++i) m[i] = beta * m[i] + share * g[i];
}

/// out[w] := the majority of rows[r][w] over `ranks` rows, bit by bit.
GT_SIMD_CLONES void vote(const std::uint32_t* const* rows, std::size_t ranks, std::size_t first, std::size_t count,
                         law::Majority law, std::uint32_t* out) {
  constexpr std::size_t kTile = 64;
  alignas(64) std::array<std::array<std::uint32_t, kTile>, law::Majority::kMaxPlanes> planes;
  alignas(64) std::array<std::uint32_t, kTile> carry{};
  for (std::size_t at = 0; at < count; at += kTile) {
    const std::size_t here = std::min(kTile, count - at);
    for (std::uint32_t b = 0; b < law.planes(); ++b) planes[b].fill(law.initial(b));
    for (std::size_t r = 0; r < ranks; ++r) {
      std::copy_n(rows[r] + first + at, here, carry.data());
      for (std::uint32_t b = 0; b < law.planes(); ++b) {
        for (std::size_t w = 0; w < kTile; ++w) {
          const std::uint32_t next = planes[b][w] & carry[w];
          planes[b][w] ^= carry[w];
          carry[w] = next;
        }
      }
    }
    std::copy_n(planes[law.top].data(), here, out + first + at);
  }
}

/// signSGD with majority vote (Bernstein et al. 2019), the server replaced by owners of shards.
class SignSgdReducer final : public HostReducer {
 public:
  explicit SignSgdReducer(const ReducerSetup<Space::host>& setup)
      : HostReducer{setup.layout.elements, setup.ranks},
        codec_{"signsgd", setup.layout, setup.spec.params.is("scale", "mean")},
        beta_{static_cast<float>(setup.spec.params.real("momentum"))},
        footprint_{codec_.plan(n_)},
        rows_(ranks_),
        sizes_(ranks_),
        offsets_(ranks_),
        state_{beta_ > 0.0F ? padded(4 * n_) : 0},
        momentum_{state_.take<float>(beta_ > 0.0F ? n_ : 0)} {
    for (std::size_t r = 0; r < ranks_; ++r) {
      const Segment shard = shard_of(r);
      sizes_[r] = 4 * shard.count;
      offsets_[r] = 4 * shard.first;
      largest_shard_ = std::max(largest_shard_, shard.count);
    }
    SignSgdReducer::reset(setup.queue);
  }

  [[nodiscard]] Pattern pattern() const override { return {.shards = true, .ring = false}; }
  void reset(Queue<Space::host> queue) override { fill_zero(queue, momentum_); }

  /// Own payload, the other ranks' signs of the own shard, and what the sum of means needs.
  [[nodiscard]] std::size_t workspace_bytes() const override {
    return padded(footprint_.payload_bytes) + padded(footprint_.scratch_bytes) + ranks_ * padded(4 * largest_shard_) +
           padded(4 * codec_.means()) + 256;
  }

  void reduce(Communicator<Space::host>& comm, Queue<Space::host> queue, HostView<float> gradient,
              const SideInputs<Space::host>& /*side*/, const EncodeContext& context, HostView<std::byte> workspace,
              PhaseClock<Space::host>& clock) override {
    Carver<Space::host> carve{workspace};
    const auto payload = carve.take(footprint_.payload_bytes);
    const auto scratch = carve.take(footprint_.scratch_bytes);
    const auto received = carve.take(ranks_ * padded(4 * largest_shard_));
    const auto means = payload.first(4 * codec_.means());
    const auto segment = carve.take(comm.scratch_bytes(means.size()));
    const auto signs = payload.part(means.size(), 4 * codec_.words());
    const auto me = static_cast<std::size_t>(comm.rank());
    const auto mine = signs.part(offsets_[me], sizes_[me]);
    const auto slot = [&](std::size_t rank) { return received.part(rank * padded(4 * largest_shard_), sizes_[me]); };

    in_phase(clock, Phase::encode, queue, [&] {
      HostView<const float> sent = gradient;
      if (beta_ > 0.0F) {
        parallel_for(queue, n_, 16, kGrain, [&](std::size_t first, std::size_t last) {
          move_momentum(gradient.data() + first, beta_, momentum_.data() + first, last - first);
        });
        sent = momentum_;
      }
      codec_.encode(queue, sent, context, payload, scratch);
    });
    in_phase(clock, Phase::communicate, queue, [&] {
      for (std::size_t k = 1; k < ranks_; ++k) {
        const std::size_t to = (me + k) % ranks_;
        const std::size_t from = (me + ranks_ - k) % ranks_;
        comm.exchange(queue, static_cast<int>(to), signs.part(offsets_[to], sizes_[to]), static_cast<int>(from),
                      slot(from));
      }
      if (!means.empty()) comm.all_reduce_sum(queue, means, Dtype::f32, segment);
    });
    in_phase(clock, Phase::decode, queue, [&] {
      for (std::size_t r = 0; r < ranks_; ++r)
        rows_[r] = reinterpret_cast<const std::uint32_t*>(r == me ? mine.data() : slot(r).data());
      const auto law = law::Majority::of(static_cast<std::uint32_t>(ranks_));
      auto* voted = reinterpret_cast<std::uint32_t*>(mine.data());  // rows are read before they are overwritten
      parallel_for(queue, mine.size() / 4, 64, kGrain, [&](std::size_t first, std::size_t last) {
        vote(rows_.data(), ranks_, first, last - first, law, voted);
      });
    });
    in_phase(clock, Phase::communicate, queue, [&] { comm.all_gather_v(queue, mine, sizes_, offsets_, signs); });
    in_phase(clock, Phase::decode, queue, [&] {
      auto* mean = reinterpret_cast<float*>(means.data());
      for (std::size_t t = 0; t < codec_.means(); ++t) mean[t] /= static_cast<float>(ranks_);
      fill_zero(queue, gradient);
      codec_.decode_add(queue, payload, 1.0F, gradient, scratch);
    });
    payload_bytes_ = footprint_.payload_bytes;
    values_sent_ = n_;
  }

 private:
  [[nodiscard]] Segment shard_of(std::size_t rank) const {
    return ring_segment(codec_.words(), static_cast<int>(rank), static_cast<int>(ranks_));
  }

  SignCodec codec_;
  float beta_;
  Footprint footprint_;
  std::size_t largest_shard_ = 0;
  std::vector<const std::uint32_t*> rows_;
  std::vector<std::uint64_t> sizes_, offsets_;
  Arena<Space::host> state_;
  HostView<float> momentum_;
};

}  // namespace

extern constinit const OwnReducer signsgd_reducer{
    .codec = "signsgd",
    .make_host = [](const ReducerSetup<Space::host>& setup) -> std::unique_ptr<Reducer<Space::host>> {
      return std::make_unique<SignSgdReducer>(setup);
    },
};

}  // namespace gradtool
