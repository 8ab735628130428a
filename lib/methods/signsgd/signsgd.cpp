#include <array>

#include "kernels/float_bits.hpp"
#include "lib/codecs/registry.hpp"
#include "lib/codecs/sign_codec.hpp"
#include "lib/core/task_pool.hpp"
#include "lib/methods/signsgd/reducer.hpp"

namespace gradtool {
namespace {

constexpr std::size_t kGrain = 1 << 14;

GT_SIMD_CLONES void move_range(const float* g, float beta, float* m, std::size_t count) {
  const float share = 1.0F - beta;
  for (std::size_t i = 0; i < count; ++i) m[i] = format::one_nan(beta * m[i] + share * g[i]);
}

/// Votes on words [first, first + count). A tile of own words is read before the majority overwrites it.
GT_SIMD_CLONES void vote_range(const format::Votes& votes, std::size_t first, std::size_t count,
                               format::Majority majority) {
  constexpr std::size_t kTile = 64;
  alignas(64) std::array<std::array<std::uint32_t, kTile>, format::Majority::kMaxPlanes> planes;
  alignas(64) std::array<std::uint32_t, kTile> carry{};
  for (std::size_t at = 0; at < count; at += kTile) {
    const std::size_t size = std::min(kTile, count - at);
    for (std::uint32_t b = 0; b < majority.planes(); ++b) planes[b].fill(majority.initial(b));
    for (std::size_t r = 0; r < votes.ranks; ++r) {
      std::copy_n(votes.row(r) + first + at, size, carry.data());
      for (std::uint32_t b = 0; b < majority.planes(); ++b) {
        for (std::size_t w = 0; w < kTile; ++w) {
          const std::uint32_t next = planes[b][w] & carry[w];
          planes[b][w] ^= carry[w];
          carry[w] = next;
        }
      }
    }
    std::copy_n(planes[majority.top].data(), size, votes.own + first + at);
  }
}

}  // namespace

void move_momentum(Queue<Space::host> queue, HostView<const float> g, float beta, HostView<float> m) {
  parallel_for(queue, m.size(), 16, kGrain, [&](std::size_t first, std::size_t last) {
    move_range(g.data() + first, beta, m.data() + first, last - first);
  });
}

void vote(Queue<Space::host> queue, const format::Votes& votes) {
  const auto majority = format::Majority::of(static_cast<std::uint32_t>(votes.ranks));
  parallel_for(queue, votes.words, 64, kGrain,
               [&](std::size_t first, std::size_t last) { vote_range(votes, first, last - first, majority); });
}

void divide(Queue<Space::host> /*queue*/, HostView<float> view, float by) {
  for (std::size_t i = 0; i < view.size(); ++i) view[i] /= by;
}

namespace {

constexpr ParamInfo kParams[] = {
    real_param("momentum", "0", {0.0, 0.9999},
               "beta of m = beta m + (1 - beta) g, whose signs are sent: Signum has 0.9"),
    choice_param("scale", "mean", "mean|none",
                 "magnitude of the result: the ranks' mean |m| of each tensor, or 1 as in the paper")};

}  // namespace

extern constinit const CodecDescriptor signsgd_codec{
    .name = "signsgd",
    .summary = "sends signs, one bit each way; the majority of ranks decides",
    .reference = "Bernstein et al., signSGD, ICML 2018, arXiv 1802.04434; with majority vote, ICLR 2019, 1810.05291",
    .params = kParams,
    .aggregation = Aggregation::own,
    .memory = true,
    .by_layout = true,
    .momentum = "momentum",
    .payload = "n + 32 T bits, T tensors, each padded to 32 bits; scale=none: without the 32 T",
    .passes = [](const Params& p) { return MemoryPasses{.kept = p.real("momentum") > 0.0 ? 1 : 0}; },
    .make_host = [](const Params& p, const Layout& layout) -> std::unique_ptr<Codec<Space::host>> {
      return std::make_unique<SignCodec>("signsgd", layout, p.is("scale", "mean"));
    },
    .make_host_reducer = make_method_reducer<Space::host, SignSgdReducer<Space::host>>,
};

}  // namespace gradtool
