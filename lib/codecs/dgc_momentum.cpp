#include "lib/codecs/dgc_momentum.hpp"

#include <algorithm>
#include <array>
#include <cmath>

#include "kernels/law/dgc.hpp"
#include "kernels/law/half.hpp"
#include "kernels/law/keep_nan.hpp"
#include "lib/codecs/payload.hpp"

namespace gradtool {
namespace {

constexpr std::uint32_t kMagnitude = 0x7fffffffU;

/// Velocities and accumulated velocities of up to 32 elements.
template <bool Nesterov>
inline std::uint32_t update_block(const float* g, float* u, float* v, std::size_t count, law::Dgc law) {
  law.nesterov = Nesterov;
  std::uint32_t largest = 0;
  for (std::size_t j = 0; j < count; ++j) {
    const auto step = law.step(g[j], u[j]);
    const float sum = law::one_nan(v[j] + step.increment);
    u[j] = step.u;
    v[j] = sum;
    largest = std::max(largest, law::bits_of(sum) & kMagnitude);
  }
  return largest;
}
template <bool Nesterov>
GT_SIMD_CLONES void update(const float* g, float* u, float* v, std::size_t count, law::Dgc law, std::uint32_t* maxima) {
  std::size_t at = 0;
  for (; at + 32 <= count; at += 32) *maxima++ = update_block<Nesterov>(g + at, u + at, v + at, 32, law);
  if (at < count) *maxima = update_block<Nesterov>(g + at, u + at, v + at, count - at, law);
}

/// Tensors that are sent as they are: out := what v would grow by.
GT_SIMD_CLONES void update_dense(const float* g, float* u, float* out, std::size_t count, law::Dgc law) {
  for (std::size_t j = 0; j < count; ++j) {
    const auto step = law.step(g[j], u[j]);
    u[j] = step.u;
    out[j] = law::one_nan(step.increment);
  }
}

/// Sum of squares of a piece, in the order of law::kDgcNormLanes.
GT_SIMD_CLONES double sum_of_squares(const float* x, std::size_t count) {
  constexpr std::size_t kLanes = law::kDgcNormLanes;
  std::array<double, kLanes> lanes{};
  std::size_t at = 0;
  for (; at + kLanes <= count; at += kLanes) {
    for (std::size_t j = 0; j < kLanes; ++j)
      lanes[j] += static_cast<double>(x[at + j]) * static_cast<double>(x[at + j]);
  }
  for (; at < count; ++at) lanes[0] += static_cast<double>(x[at]) * static_cast<double>(x[at]);
  double sum = 0.0;
  for (const double lane : lanes) sum += lane;
  return sum;
}

}  // namespace

DgcMomentum::DgcMomentum(const Params& params)
    : momentum_{static_cast<float>(params.real("momentum"))},
      nesterov_{params.is("nesterov", "on")},
      clip_{params.is("clip", "off") ? 0.0 : params.real("clip")} {}

void DgcMomentum::accumulate(Queue<Space::host> queue, const DgcRuns& runs, HostView<const float> gradient, int ranks,
                             float* u, float* v, std::uint32_t* maxima, float* dense,
                             HostView<std::byte> scratch) const {
  const law::Dgc law{momentum_, clip_scale(queue, gradient, ranks, scratch), nesterov_};
  host::for_pieces(queue, runs.pieces.size(), runs.sparse, [&](std::size_t i) {
    const host::Piece& piece = runs.pieces[i];
    const float* g = gradient.data() + piece.first;
    if (nesterov_)
      update<true>(g, u + piece.first, v + piece.first, piece.count, law, maxima + piece.word);
    else
      update<false>(g, u + piece.first, v + piece.first, piece.count, law, maxima + piece.word);
  });
  for (const auto& run : runs.dense_runs) {
    update_dense(gradient.data() + run.first, u + run.first, dense, run.count, law);
    dense += run.count;
  }
}

/// Local clipping (section 3.3): by the share of one rank in the global norm. 1 where it is off.
float DgcMomentum::clip_scale(Queue<Space::host> queue, HostView<const float> gradient, int ranks,
                              HostView<std::byte> scratch) const {
  if (!clips()) return 1.0F;
  static_assert(host::kPiece == law::kDgcNormPiece);
  auto* squares = section<double>(scratch);
  const host::Pieces pieces{gradient.size()};
  host::for_pieces(queue, pieces.size(), gradient.size(), [&](std::size_t i) {
    squares[i] = sum_of_squares(gradient.data() + pieces[i].first, pieces[i].count);
  });
  double sum = 0.0;
  for (std::size_t i = 0; i < pieces.size(); ++i) sum += squares[i];
  const double norm = std::sqrt(sum);
  return norm > limit(ranks) ? static_cast<float>(limit(ranks) / norm) : 1.0F;
}

}  // namespace gradtool
