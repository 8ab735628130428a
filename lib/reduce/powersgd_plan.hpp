#pragma once

#include <cstddef>
#include <vector>

#include "lib/codecs/layout.hpp"

namespace gradtool {

/// Which tensors of a unit PowerSGD compresses, how the work on them is cut, and where what lies in its two messages:
/// first factors and tensors that go as they are, then second factors.
struct PowerSgdPlan {
  /// A tensor that is compressed: first dimension by all others.
  struct Matrix {
    std::size_t first = 0;  ///< in the gradient
    std::size_t rows = 0;
    std::size_t columns = 0;
    std::size_t rank = 0;
    std::size_t p_at = 0;  ///< of its first factor in the first message
    std::size_t q_at = 0;  ///< of its second factor in the second message
    std::size_t first_tile = 0;
    std::size_t tiles = 0;
    std::size_t scratch_at = 0;  ///< doubles to orthonormalise in
  };

  /// The unit of work: some 2^18 elements of a matrix, whatever the number of threads. Products of tiles are added in
  /// the order of the tiles.
  struct Tile {
    std::size_t matrix = 0;
    std::size_t row = 0;
    std::size_t column = 0;
    std::size_t rows = 0;
    std::size_t columns = 0;
    std::size_t p_at = 0;  ///< of its products in the scratch
    std::size_t q_at = 0;
  };

  /// Tensors that are sent as they are, one behind the other in gradient and message.
  struct Raw {
    std::size_t first = 0;
    std::size_t count = 0;
    std::size_t at = 0;     ///< in the first message
    std::size_t after = 0;  ///< where the message goes on
  };

  /// Factors of `rank` columns for matrices that they make smaller by `least_rate` or more.
  PowerSgdPlan(const Layout& layout, std::size_t rank, double least_rate);

  std::vector<Matrix> matrices;
  std::vector<Tile> tiles;
  std::vector<Raw> raw;
  std::size_t p_size = 0, q_size = 0;  ///< floats of the two messages
  std::size_t p_sums = 0, q_sums = 0;  ///< floats of the products of all tiles
  std::size_t scratch = 0;             ///< doubles to orthonormalise in
};

}  // namespace gradtool
