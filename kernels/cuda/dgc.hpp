#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/select.hpp"
#include "kernels/law/dgc.hpp"
#include "lib/core/view.hpp"

/// A step of dgc on the GPU, the bytes of lib/codecs/dgc.cpp. Enqueued; nothing allocates.
namespace gradtool::cuda {

/// Elements that are treated alike: at most kDgcPiece that compete, or that go whole.
struct DgcPiece {
  static constexpr std::size_t kCompetes = ~std::size_t{0};
  std::size_t first = 0, count = 0;
  std::size_t dense = kCompetes;  ///< where they are in the payload's dense values
};
inline constexpr std::size_t kDgcPiece = 8192;

/// Consecutive elements that compete, behind `before` others.
struct DgcRun {
  std::size_t first = 0, count = 0, before = 0;
};

/// Bytes of the sums that local clipping needs for n elements.
[[nodiscard]] std::size_t dgc_norm_bytes(std::size_t n);
/// *scale := what a gradient is scaled by so that its l2 norm is at most `limit`; squares add in the CPU's order.
void dgc_clip(Queue<Space::cuda> queue, View<const float, Space::cuda> gradient, double limit,
              View<std::byte, Space::cuda> sums, float* scale);

struct DgcState {
  float *u, *v;
  float* dense;        ///< the payload's dense values
  const float* scale;  ///< of the gradient; null for 1
};
/// Momentum correction of all pieces, law.scale aside. Counts the leading digits of |v| in `select`, which is cleared
/// here and whose numbers are v.
void dgc_accumulate(Queue<Space::cuda> queue, const DgcPiece* pieces, std::size_t count, law::Dgc law,
                    const float* gradient, const DgcState& state, const Select& select);

/// sample[i] := element start + i stride of those that compete.
void dgc_sample(Queue<Space::cuda> queue, const DgcRun* runs, std::size_t count, const float* v, std::size_t start,
                std::size_t stride, View<float, Space::cuda> sample);

/// Device memory of the corrections, 8-byte aligned.
inline constexpr std::size_t kDgcWorkBytes = 256;
/// Chooses in `select`, whose leading digits are counted: the threshold starts at *sampled (null: at 1, so that all
/// compete that are not zero), and is corrected; of more than k, the k largest are taken.
void dgc_choose(Queue<Space::cuda> queue, const law::DgcCorrection& correction, const std::uint32_t* sampled,
                const Select& select, std::byte* work);

/// out[first + i] += weight * dense[i] for the pieces that go whole.
void dgc_add_dense(Queue<Space::cuda> queue, const DgcPiece* pieces, std::size_t count, const float* dense,
                   float weight, float* out);

}  // namespace gradtool::cuda
