#pragma once

#include <cstddef>
#include <vector>

#include "kernels/host/marks.hpp"
#include "lib/codecs/layout.hpp"

namespace gradtool {

/// How vgc cuts a unit into groups that share an exponent and whose elements a word's index reaches all of, and where a
/// payload has what belongs to them: its size in bytes, counts, exponents (padded to 4 bytes), words.
struct VgcGroups {
  struct Group {
    std::size_t first = 0, elements = 0;
  };
  static constexpr std::size_t kCounts = 8;

  /// Sections of up to 2^31 elements of the unit for the hybrid, else of up to 2^28 of each tensor.
  VgcGroups(const Layout& layout, bool hybrid);

  /// What the reader of a row must know.
  [[nodiscard]] static const char* note(bool had_moments) {
    return had_moments
               ? ""
               : "no second moments of some tensors or all: v sums squares of whole mini-batch gradients (K = 1)";
  }

  [[nodiscard]] std::size_t exponents_offset() const { return kCounts + 4 * groups.size(); }
  [[nodiscard]] std::size_t words_offset() const { return exponents_offset() + (groups.size() + 3) / 4 * 4; }

  std::vector<Group> groups;
  std::vector<host::Piece> pieces;  ///< with the group that they are of
  std::size_t bitmap_words = 0;     ///< of the marks of all pieces

 private:
  void add(std::size_t first, std::size_t elements, std::size_t longest);
};

}  // namespace gradtool
