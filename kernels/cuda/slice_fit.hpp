#pragma once

#include <cstddef>
#include <cstdint>

#include "lib/core/view.hpp"

/// The small steps around cuSOLVER and cuBLAS when GradiVeQ fits a basis, on the GPU. Everything is enqueued; sums have
/// a fixed order.
namespace gradtool::cuda {

/// values /= divisor; *odd becomes 1 where one is not finite.
void divide(Queue<Space::cuda> queue, View<float, Space::cuda> values, float divisor, int* odd);

/// Columns [first, first + width) of `samples` rows, `stride` apart, minus their means, in float64, `width` long rows.
/// `energies`: centre_blocks(width) sums of squares before.
[[nodiscard]] std::size_t centre_blocks(std::size_t width);
void centre(Queue<Space::cuda> queue, const float* rows, std::size_t samples, std::size_t stride, std::size_t first,
            std::size_t width, double* out, double* energies);
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

}  // namespace gradtool::cuda
