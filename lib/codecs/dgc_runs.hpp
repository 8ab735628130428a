#pragma once

#include <cstddef>
#include <vector>

#include "kernels/host/marks.hpp"
#include "lib/codecs/layout.hpp"

namespace gradtool {

/// How dgc cuts a unit: elements that compete for being sent, and tensors that are sent whole.
struct DgcRuns {
  /// Consecutive elements of the unit that are sent in the same way.
  struct Run {
    std::size_t first = 0, count = 0;
  };

  /// `dense_vectors`: tensors of less than two dimensions go whole, unless they are all that the unit has.
  DgcRuns(const Layout& layout, bool dense_vectors);

  std::vector<Run> sparse_runs, dense_runs;
  std::vector<host::Piece> pieces;  ///< of the sparse runs
  std::size_t sparse = 0;           ///< elements that compete
  std::size_t dense = 0;            ///< elements that go whole
  std::size_t blocks = 0;           ///< of 32 elements in all pieces; a piece's first is its `word`
};

}  // namespace gradtool
