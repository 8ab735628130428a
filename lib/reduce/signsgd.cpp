#include "lib/reduce/signsgd.hpp"

#include <array>

#include "kernels/law/hd.hpp"
#include "kernels/law/keep_nan.hpp"
#include "kernels/law/majority.hpp"
#include "lib/core/task_pool.hpp"
#include "lib/reduce/cuda_reducers.hpp"

namespace gradtool {
namespace {

constexpr std::size_t kGrain = 1 << 14;

GT_SIMD_CLONES void move_range(const float* g, float beta, float* m, std::size_t count) {
  const float share = 1.0F - beta;
  for (std::size_t i = 0; i < count; ++i) m[i] = law::one_nan(beta * m[i] + share * g[i]);
}

/// Rows are read before they are overwritten.
GT_SIMD_CLONES void vote_range(const law::Votes& votes, std::size_t first, std::size_t count, law::Majority law) {
  constexpr std::size_t kTile = 64;
  alignas(64) std::array<std::array<std::uint32_t, kTile>, law::Majority::kMaxPlanes> planes;
  alignas(64) std::array<std::uint32_t, kTile> carry{};
  for (std::size_t at = 0; at < count; at += kTile) {
    const std::size_t here = std::min(kTile, count - at);
    for (std::uint32_t b = 0; b < law.planes(); ++b) planes[b].fill(law.initial(b));
    for (std::size_t r = 0; r < votes.ranks; ++r) {
      std::copy_n(votes.row(r) + first + at, here, carry.data());
      for (std::uint32_t b = 0; b < law.planes(); ++b) {
        for (std::size_t w = 0; w < kTile; ++w) {
          const std::uint32_t next = planes[b][w] & carry[w];
          planes[b][w] ^= carry[w];
          carry[w] = next;
        }
      }
    }
    std::copy_n(planes[law.top].data(), here, votes.own + first + at);
  }
}

}  // namespace

void move_momentum(Queue<Space::host> queue, HostView<const float> g, float beta, HostView<float> m) {
  parallel_for(queue, m.size(), 16, kGrain, [&](std::size_t first, std::size_t last) {
    move_range(g.data() + first, beta, m.data() + first, last - first);
  });
}

void vote(Queue<Space::host> queue, const law::Votes& votes) {
  const auto law = law::Majority::of(static_cast<std::uint32_t>(votes.ranks));
  parallel_for(queue, votes.words, 64, kGrain,
               [&](std::size_t first, std::size_t last) { vote_range(votes, first, last - first, law); });
}

void divide(Queue<Space::host> /*queue*/, HostView<float> view, float by) {
  for (std::size_t i = 0; i < view.size(); ++i) view[i] /= by;
}

extern constinit const OwnReducer signsgd_reducer{
    .codec = "signsgd",
    .make_host = [](const ReducerSetup<Space::host>& setup) -> std::unique_ptr<Reducer<Space::host>> {
      return std::make_unique<SignSgdReducer<Space::host>>(setup);
    },
    .make_cuda = GT_MAKE_CUDA(make_cuda_signsgd_reducer),
};

}  // namespace gradtool
