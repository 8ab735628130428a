#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

#include "lib/core/task_pool.hpp"
#include "lib/core/view.hpp"

namespace gradtool::host {

/// Elements that one pass over memory marks and a second one collects, in parallel and in ascending order: bit i mod 32
/// of word i div 32 of a piece is set for a marked element. Pieces are what one thread does in one go.
struct Piece {
  std::size_t first = 0;  ///< where its elements start
  std::size_t count = 0;
  std::size_t word = 0;   ///< where its words start
  std::size_t group = 0;  ///< of the caller's own meaning
};
inline constexpr std::size_t kPiece = 8192;

/// Piece i of n elements of one kind.
[[nodiscard]] inline Piece piece_of(std::size_t i, std::size_t n) {
  const std::size_t first = i * kPiece;
  return {first, n - first < kPiece ? n - first : kPiece, first / 32, 0};
}
[[nodiscard]] constexpr std::size_t pieces_of(std::size_t n) {
  return (n + kPiece - 1) / kPiece;
}

/// A list of pieces, or those of n elements of one kind.
class Pieces {
 public:
  explicit Pieces(std::size_t n) : elements_{n}, size_{pieces_of(n)} {}
  Pieces(const Piece* list, std::size_t size, std::size_t elements) : list_{list}, elements_{elements}, size_{size} {}

  [[nodiscard]] std::size_t size() const { return size_; }
  /// Of all pieces together.
  [[nodiscard]] std::size_t elements() const { return elements_; }
  [[nodiscard]] Piece operator[](std::size_t i) const { return list_ != nullptr ? list_[i] : piece_of(i, elements_); }

 private:
  const Piece* list_ = nullptr;
  std::size_t elements_;
  std::size_t size_;
};

/// Bytes of the words of n elements.
[[nodiscard]] constexpr std::size_t mark_bytes(std::size_t n) {
  return 4 * ((n + 31) / 32);
}

/// Calls body(i) for every i in [0, pieces), each on whatever thread is free; on the calling one where there is little
/// to do.
template <class Body>
void for_pieces(Queue<Space::host> queue, std::size_t pieces, std::size_t elements, const Body& body) {
  if (elements < 4 * kPiece) queue.pool = nullptr;
  parallel_parts(queue, pieces, pieces, 1, [&](std::size_t i, std::size_t first, std::size_t last) {
    if (first < last) body(i);
  });
}

/// Calls emit(index) for the marked ones of `count` elements, ascending.
template <class Emit>
void for_marked(const std::uint32_t* words, std::size_t count, const Emit& emit) {
  for (std::size_t word = 0; word < (count + 31) / 32; ++word) {
    for (std::uint32_t rest = words[word]; rest != 0; rest &= rest - 1) {
      emit(32 * word + static_cast<std::size_t>(std::countr_zero(rest)));
    }
  }
}

/// 32 flags (0 or 1) as a word; vectorises.
[[nodiscard]] inline std::uint32_t word_of(const std::uint32_t* flags) {
  std::uint32_t word = 0;
  for (std::uint32_t j = 0; j < 32; ++j) word |= flags[j] << j;
  return word;
}

}  // namespace gradtool::host
