#pragma once

#include <algorithm>
#include <vector>

#include "kernels/host/chunk_sums.hpp"
#include "kernels/host/marks.hpp"
#include "lib/codecs/layout.hpp"

namespace gradtool {

/// The chunks of a layout's tensors, as codecs with a statistic for each tensor work on them. Codes of every tensor
/// begin at a word, so that chunks are independent.
class TensorPieces {
 public:
  /// words_of(count): 32-bit words that `count` elements are packed into.
  template <class WordsOf>
  TensorPieces(const Layout& layout, const WordsOf& words_of) : elements_{layout.elements} {
    for (const auto& tensor : layout.tensors) {
      first_.push_back(pieces_.size());
      for (std::size_t at = 0; at < tensor.elements; at += host::kSumChunk) {
        const std::size_t count = std::min(host::kSumChunk, tensor.elements - at);
        pieces_.push_back({tensor.first + at, count, words_, sizes_.size()});
        words_ += words_of(count);
      }
      sizes_.push_back(tensor.elements);
    }
    first_.push_back(pieces_.size());
  }

  [[nodiscard]] std::size_t tensors() const { return sizes_.size(); }
  [[nodiscard]] std::size_t elements_of(std::size_t tensor) const { return sizes_[tensor]; }
  /// Pieces [first_piece(t), first_piece(t + 1)) are those of tensor t.
  [[nodiscard]] std::size_t first_piece(std::size_t tensor) const { return first_[tensor]; }
  [[nodiscard]] std::size_t count() const { return pieces_.size(); }
  [[nodiscard]] const host::Piece& operator[](std::size_t piece) const { return pieces_[piece]; }
  [[nodiscard]] std::size_t words() const { return words_; }
  [[nodiscard]] std::size_t elements() const { return elements_; }

  /// body(i, piece) for every piece, on any thread.
  template <class Body>
  void each(Queue<Space::host> queue, const Body& body) const {
    host::for_pieces(queue, pieces_.size(), elements_, [&](std::size_t i) { body(i, pieces_[i]); });
  }

 private:
  std::size_t elements_;
  std::size_t words_ = 0;
  std::vector<host::Piece> pieces_;  ///< `group` is the tensor, `word` where its codes start
  std::vector<std::size_t> first_, sizes_;
};

}  // namespace gradtool
