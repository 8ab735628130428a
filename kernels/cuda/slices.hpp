#pragma once

#include <cstddef>
#include <cstdint>

#include "lib/core/view.hpp"

/// What GradiVeQ does beside matrix products, on the GPU: slices out of convolution layers and back, and the small
/// steps of fitting a basis. Everything is enqueued; sums have a fixed order.
namespace gradtool::cuda {

/// A convolution layer in the gradient: `filters` rows of `taps`.
struct ConvLayer {
  std::size_t first;  ///< in the gradient
  std::size_t filters, taps;
};

/// Means to take off or add: element e of a row of taps has mean[e], or mean[e % period] where period is not 0. None
/// where data is null.
struct SliceMeans {
  const float* data = nullptr;
  std::size_t period = 0;
};

/// Taps [first_tap, last_tap) of a layer, tap by tap, minus the means. Reads and writes whole lines: tiles transpose in
/// shared memory.
void gather_taps(Queue<Space::cuda> queue, const ConvLayer& layer, const float* gradient, std::size_t first_tap,
                 std::size_t last_tap, const SliceMeans& means, float* out);
/// The way back, times `factor`, plus the means.
void scatter_taps(Queue<Space::cuda> queue, const ConvLayer& layer, const float* in, std::size_t first_tap,
                  std::size_t last_tap, float factor, const SliceMeans& means, float* gradient);

/// values /= divisor; *odd becomes 1 where one is not finite.
void divide(Queue<Space::cuda> queue, View<float, Space::cuda> values, float divisor, int* odd);

/// Columns [first, first + width) of `samples` rows of `coordinates` minus their means, in float64, `width` long rows.
/// `energies`: centre_blocks(width) sums of squares before.
[[nodiscard]] std::size_t centre_blocks(std::size_t width);
void centre(Queue<Space::cuda> queue, const float* rows, std::size_t samples, std::size_t coordinates,
            std::size_t first, std::size_t width, double* out, double* energies);
/// report[0] := trace of the matrix of `order`, report[1] := sum of the energies.
void report_variance(Queue<Space::cuda> queue, const double* matrix, std::size_t order, const double* energies,
                     std::size_t count, double* report);
/// Weights of the d leading components: column j is the j-th last eigenvector over the root of its value, with its
/// largest entry positive.
void scale_vectors(Queue<Space::cuda> queue, const double* vectors, const double* values, std::size_t order,
                   std::size_t d, double* weights);
/// Float64 to float32: `rows` rows of `width`, `stride` apart in `out`.
void narrow_rows(Queue<Space::cuda> queue, const double* in, std::size_t rows, std::size_t width, float* out,
                 std::size_t stride);

/// sum += a digest of the bits and of where they lie, starting at `from`; in any order.
void add_digest(Queue<Space::cuda> queue, View<const float, Space::cuda> values, std::uint64_t from,
                std::uint64_t* sum);

/// Doubles that one call of add_norms writes: sums of squares of x plus means, and of x alone.
inline constexpr std::size_t kNormBlocks = 64;
inline constexpr std::size_t kNorms = 2 * kNormBlocks;
void sum_norms(Queue<Space::cuda> queue, View<const float, Space::cuda> x, const SliceMeans& means, double* norms);
/// *vote := 1 where sqrt((|x|^2 - |y|^2) / |x + means|^2) is above `worst`, else 0: eq. 7, normalised. `x` and `y` are
/// the norms of `layers` calls each.
void vote_on_loss(Queue<Space::cuda> queue, const double* x, const double* y, std::size_t layers, double worst,
                  float* vote);

}  // namespace gradtool::cuda
