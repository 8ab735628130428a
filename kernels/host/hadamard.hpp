#pragma once

#include <cstddef>

namespace gradtool::host {

/// Elements of a whole block.
inline constexpr std::size_t kHadamardBlock = 1024;

/// x := H x of a block of 1024, not normalised, in transposed order: as a 32 by 32 matrix X in row-major order it
/// becomes H32 X' H32. Doing it twice gives 1024 x. Both halves then work on whole rows, and one transposition is
/// enough.
void hadamard_block(float* x);

/// x := H x for a power of two, not normalised, in natural (Sylvester's) order. Twice gives size x.
void hadamard(float* x, std::size_t size);

}  // namespace gradtool::host
