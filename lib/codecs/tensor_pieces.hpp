#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/marks.hpp"
#include "kernels/sums.hpp"
#include "lib/codecs/layout.hpp"

namespace gradtool {

/// At most format::kSumChunk neighbouring elements of one tensor.
struct TensorPiece {
  std::uint64_t first = 0;   ///< index of its first element in the unit
  std::uint64_t count = 0;   ///< elements
  std::uint64_t word = 0;    ///< index of the first 32-bit word of its codes
  std::uint64_t tensor = 0;  ///< number of its tensor in the layout
};
/// The pieces [first, last) of one tensor.
struct TensorRange {
  std::uint64_t first = 0, last = 0;
  std::uint64_t elements = 0;
};

/// How codecs with a statistic for each tensor cut the tensors of a layout, on both processors. The codes of every
/// tensor begin at a word, so that pieces are independent of each other.
class TensorPieces {
 public:
  /// words_of(count) says how many 32-bit words the codes of `count` elements fill.
  template <class WordsOf>
  TensorPieces(const Layout& layout, const WordsOf& words_of) : elements_{layout.elements} {
    for (const auto& tensor : layout.tensors) {
      const std::size_t first = pieces_.size();
      for (std::size_t at = 0; at < tensor.elements; at += format::kSumChunk) {
        const std::size_t count = std::min(format::kSumChunk, tensor.elements - at);
        pieces_.push_back({tensor.first + at, count, words_, tensors_.size()});
        words_ += words_of(count);
      }
      tensors_.push_back({first, pieces_.size(), tensor.elements});
    }
  }

  [[nodiscard]] const std::vector<TensorPiece>& pieces() const { return pieces_; }
  [[nodiscard]] const std::vector<TensorRange>& tensors() const { return tensors_; }
  /// 32-bit words of all codes.
  [[nodiscard]] std::size_t words() const { return words_; }
  /// Elements of the unit.
  [[nodiscard]] std::size_t elements() const { return elements_; }

  /// Calls body(i, piece) for every piece, on any thread.
  template <class Body>
  void each(Queue<Space::host> queue, const Body& body) const {
    host::for_pieces(queue, pieces_.size(), elements_, [&](std::size_t i) { body(i, pieces_[i]); });
  }

 private:
  std::size_t elements_;
  std::size_t words_ = 0;
  std::vector<TensorPiece> pieces_;
  std::vector<TensorRange> tensors_;
};

}  // namespace gradtool
