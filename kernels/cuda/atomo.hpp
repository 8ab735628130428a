#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/law/philox.hpp"
#include "lib/core/view.hpp"

/// ATOMO on the GPU beside Gram matrices (cuBLAS) and their eigenvectors (cuSOLVER): the payload of
/// lib/codecs/atomo.cpp. Everything is enqueued; how many triplets are kept never reaches the host.
namespace gradtool::cuda {

/// A tensor: sent as it is, or as singular triplets of rows x columns (of which the first `elements` exist).
struct AtomoPart {
  std::uint64_t first = 0;  ///< in the gradient
  std::uint64_t elements = 0;
  std::uint64_t rows = 0;  ///< 0: as it is
  std::uint64_t columns = 0;
  std::uint64_t draw = 0;        ///< element whose draw decides on the first triplet
  std::uint64_t factored = 0;    ///< which of the factored parts, and of the counts in the header
  std::uint64_t values_at = 0;   ///< of its `order` values among those of all
  std::uint64_t vectors_at = 0;  ///< of its order x order vectors

  [[nodiscard]] GT_HD std::uint64_t order() const { return rows < columns ? rows : columns; }
  [[nodiscard]] GT_HD std::uint64_t triplet() const { return 1 + rows + columns; }  ///< floats
};
/// At most kAtomoTile elements of one part.
struct AtomoTile {
  std::uint64_t part = 0;
  std::uint64_t first = 0;  ///< in the part
  std::uint64_t count = 0;
};
inline constexpr std::size_t kAtomoTile = 4096;

/// Both in device memory.
struct AtomoTable {
  const AtomoPart* parts = nullptr;
  std::size_t count = 0;
  const AtomoTile* tiles = nullptr;
  std::size_t tiles_count = 0;
  std::size_t factored = 0;  ///< parts

  /// Of a payload: its size, and how many triplets of each factored part it has.
  [[nodiscard]] GT_HD std::size_t header_bytes() const { return 8 + 4 * factored; }
};

/// What encode finds out on the device.
struct AtomoRoom {
  double *vectors, *eigenvalues;   ///< of all factored parts, as cuSOLVER leaves them: ascending
  double *values, *probabilities;  ///< descending
  std::uint32_t* kept;             ///< triplets that are kept, by part as the values
  int* failed;                     ///< of every factored part: cuSOLVER's info, or not finite
  std::uint32_t* counts;           ///< of every factored part
  std::uint64_t* places;           ///< of every part: where its floats start
  double* norms;                   ///< kAtomoChunks for every value
};
/// Pieces in which the longer side of one matrix is worked on.
inline constexpr std::size_t kAtomoChunks = 64;

/// Positions [first, first + width) of the longer side as rows of the shorter one, in float64.
void widen(Queue<Space::cuda> queue, const AtomoPart& part, const float* gradient, std::size_t first, std::size_t width,
           double* out);
/// A Gram matrix that is not finite becomes the identity, for cuSOLVER's sake, and *odd 1, else 0.
void guard_gram(Queue<Space::cuda> queue, double* gram, std::size_t order, int* odd);

/// Which triplets are kept (p_j decides on each alone), where everything goes, the size and the counts. `solved`: of
/// every factored part, cuSOLVER's info.
void choose_atoms(Queue<Space::cuda> queue, const AtomoTable& table, const AtomoRoom& room, const int* solved,
                  double budget, const law::DrawKey& key, std::byte* payload);
/// What is sent as it is.
void copy_tensors(Queue<Space::cuda> queue, const AtomoTable& table, const AtomoRoom& room, const float* gradient,
                  std::byte* payload);
/// The kept triplets of one factored part.
void write_atoms(Queue<Space::cuda> queue, const AtomoTable& table, std::size_t index, const AtomoPart& part,
                 const AtomoRoom& room, const float* gradient, std::byte* payload);

/// out += weight * decoded; NaN everywhere where the payload contradicts itself. `places`: table.count + 2 numbers: as
/// AtomoRoom's, how many floats there are, and whether the payload is sound.
void add_atoms(Queue<Space::cuda> queue, const AtomoTable& table, View<const std::byte, Space::cuda> payload,
               float weight, float* out, std::uint64_t* places);

}  // namespace gradtool::cuda
