#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/bitpack.hpp"
#include "kernels/marks.hpp"
#include "lib/codecs/layout.hpp"

namespace gradtool {

/// A rectangle of at most 64 x 64 elements of one tensor, of which a method sends the largest few.
struct TensorChunk {
  static constexpr std::uint32_t kSide = 64;
  static constexpr std::uint32_t kMost = kSide * kSide;  ///< elements, at most

  std::uint64_t first = 0;   ///< index of its first element in the unit
  std::uint64_t stride = 0;  ///< elements between the beginnings of its rows
  std::uint32_t rows = 0, columns = 0;
  std::uint32_t tensor = 0;  ///< number of its tensor in the layout
  std::uint32_t kept = 0;    ///< values that are sent of it
  std::uint64_t before = 0;  ///< elements of all chunks before it
  std::uint64_t sent = 0;    ///< values that are sent of all chunks before it
  std::uint64_t word = 0;    ///< index of the first 32-bit word of its record in the payload

  [[nodiscard]] GT_HD std::uint32_t size() const { return rows * columns; }
  /// The index in the unit of its element i, counted row by row.
  [[nodiscard]] GT_HD std::uint64_t element(std::uint32_t i) const {
    return first + i / columns * stride + i % columns;
  }
};

/// How methods that choose among the elements of small chunks cut the tensors of a layout, on both processors.
///
/// A tensor of two or more dimensions is a matrix, its first dimension by all others. Its rows and its columns are cut
/// alike: up to 64 stay whole; more are cut into the largest divisor from 32 to 64, or where there is none into 64 and
/// a shorter rest. Any other tensor is cut into chunks of 64 rows of 64 elements, then one of the whole rows that are
/// left, then one of the elements that are left.
class TensorChunks {
 public:
  /// Sends k values of a chunk of 4096 elements, and as large a share of a smaller one, rounded up. words_of(kept) says
  /// how many 32-bit words the record of a chunk has. Records lie one behind the other from word `word` on.
  template <class WordsOf>
  TensorChunks(const Layout& layout, std::size_t k, std::size_t word, const WordsOf& words_of)
      : elements_{layout.elements}, words_{word} {
    const auto add = [&](std::size_t tensor, std::size_t first, std::size_t stride, std::size_t rows,
                         std::size_t columns) {
      const std::size_t kept = (k * rows * columns + TensorChunk::kMost - 1) / TensorChunk::kMost;
      const auto narrow = [](std::size_t value) { return static_cast<std::uint32_t>(value); };
      chunks_.push_back({.first = first,
                         .stride = stride,
                         .rows = narrow(rows),
                         .columns = narrow(columns),
                         .tensor = narrow(tensor),
                         .kept = narrow(kept),
                         .before = before_,
                         .sent = sent_,
                         .word = words_});
      before_ += rows * columns;
      sent_ += kept;
      words_ += words_of(kept);
    };
    constexpr std::size_t kSide = TensorChunk::kSide;
    for (std::size_t t = 0; t < layout.tensors.size(); ++t) {
      const TensorShape& shape = layout.tensors[t];
      if (shape.is_matrix()) {
        const std::size_t height = side_of(shape.rows());
        const std::size_t width = side_of(shape.columns());
        for (std::size_t row = 0; row < shape.rows(); row += height) {
          for (std::size_t column = 0; column < shape.columns(); column += width) {
            add(t, shape.first + row * shape.columns() + column, shape.columns(), std::min(height, shape.rows() - row),
                std::min(width, shape.columns() - column));
          }
        }
      } else {
        for (std::size_t at = 0; at < shape.elements;) {
          const std::size_t left = shape.elements - at;
          const std::size_t rows = std::clamp<std::size_t>(left / kSide, 1, kSide);
          const std::size_t columns = std::min(left, kSide);
          add(t, shape.first + at, columns, rows, columns);
          at += rows * columns;
        }
      }
    }
  }

  [[nodiscard]] const std::vector<TensorChunk>& chunks() const { return chunks_; }
  [[nodiscard]] std::size_t elements() const { return elements_; }
  /// Values that are sent of all chunks.
  [[nodiscard]] std::size_t sent() const { return sent_; }
  /// 32-bit words of the payload.
  [[nodiscard]] std::size_t words() const { return words_; }

  /// The number of the first chunk of each of `tensors` tensors, and how many chunks there are.
  [[nodiscard]] std::vector<std::uint64_t> first_of_tensors(std::size_t tensors) const {
    std::vector<std::uint64_t> first(tensors + 1, 0);
    for (const TensorChunk& chunk : chunks_) ++first[chunk.tensor + 1];
    for (std::size_t t = 0; t < tensors; ++t) first[t + 1] += first[t];
    return first;
  }

  /// Calls body(chunk) for every chunk, on any thread.
  template <class Body>
  void each(Queue<Space::host> queue, const Body& body) const {
    host::for_pieces(queue, chunks_.size(), elements_, [&](std::size_t i) { body(chunks_[i]); });
  }

 private:
  /// The side of the chunks into which rows or columns of a matrix are cut.
  static std::size_t side_of(std::size_t extent) {
    if (extent <= TensorChunk::kSide) return extent;
    for (std::size_t side = TensorChunk::kSide; side >= TensorChunk::kSide / 2; --side) {
      if (extent % side == 0) return side;
    }
    return TensorChunk::kSide;
  }

  std::size_t elements_;
  std::vector<TensorChunk> chunks_;
  std::size_t before_ = 0;
  std::size_t sent_ = 0;
  std::size_t words_;
};

}  // namespace gradtool
