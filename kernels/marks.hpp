#pragma once

#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "lib/core/task_pool.hpp"
#include "lib/core/view.hpp"

/// Bitmaps over n elements, whose set bits are called marks: element i is bit i mod 32 of word i div 32.
namespace gradtool {

/// Words of a bitmap over n elements.
[[nodiscard]] constexpr std::size_t mark_words(std::size_t n) {
  return (n + 31) / 32;
}

/// 1 for a value that is neither 0 nor smaller than the threshold in magnitude; NaN is large.
[[nodiscard]] inline std::uint32_t is_large(float x, float threshold) {
  return (!(std::fabs(x) < threshold) && x != 0.0F) ? 1U : 0U;
}

/// The number of marked elements.
[[nodiscard]] std::size_t count_marks(HostView<const std::uint32_t> words);

/// words := a bitmap of the values that are large by is_large. ceil(values.size() / 32) words.
void mark_large(Queue<Space::host> queue, HostView<const float> values, float threshold, HostView<std::uint32_t> words);

/// Calls body(place, i) for every marked element i, where `place` counts the marks before it; returns how many there
/// are. Runs on the queue's threads, so calls come in any order.
template <class F>
std::size_t for_each_mark(Queue<Space::host> queue, HostView<const std::uint32_t> words, F&& body) {
  constexpr std::size_t kMaxParts = 64;
  const std::size_t parts = std::min(kMaxParts, part_count(queue, words.size(), 1 << 9));
  std::array<std::size_t, kMaxParts> places{};
  parallel_parts(queue, words.size(), parts, 1, [&](std::size_t part, std::size_t first, std::size_t last) {
    places[part] = count_marks(words.part(first, last - first));
  });
  std::size_t total = 0;
  for (std::size_t part = 0; part < parts; ++part) {
    const std::size_t count = places[part];
    places[part] = total;
    total += count;
  }
  parallel_parts(queue, words.size(), parts, 1, [&](std::size_t part, std::size_t first, std::size_t last) {
    std::size_t next = places[part];
    for (std::size_t word = first; word < last; ++word) {
      for (std::uint32_t rest = words[word]; rest != 0; rest &= rest - 1) {
        body(next++, 32 * word + static_cast<std::size_t>(std::countr_zero(rest)));
      }
    }
  });
  return total;
}

}  // namespace gradtool

namespace gradtool::host {

/// A range of elements that one thread works on at a time. Methods that send chosen elements mark them in a first pass
/// over memory, and collect them in a second one, in parallel and in ascending order.
struct Piece {
  std::size_t first = 0;  ///< index of its first element
  std::size_t count = 0;  ///< elements
  std::size_t word = 0;   ///< index of the word that has the mark of its first element, in bit 0
  std::size_t group = 0;  ///< free for the caller, for example the number of a tensor
};
inline constexpr std::size_t kPiece = 8192;  ///< elements of a piece, unless the caller cuts them

/// Piece i of n elements that are cut into pieces of kPiece.
[[nodiscard]] inline Piece piece_of(std::size_t i, std::size_t n) {
  const std::size_t first = i * kPiece;
  return {first, n - first < kPiece ? n - first : kPiece, first / 32, 0};
}
[[nodiscard]] constexpr std::size_t pieces_of(std::size_t n) {
  return (n + kPiece - 1) / kPiece;
}

/// A list of pieces that the caller owns, or the pieces of n elements.
class Pieces {
 public:
  explicit Pieces(std::size_t n) : elements_{n}, size_{pieces_of(n)} {}
  Pieces(const Piece* list, std::size_t size, std::size_t elements) : list_{list}, elements_{elements}, size_{size} {}

  [[nodiscard]] std::size_t size() const { return size_; }
  /// Elements of all pieces together.
  [[nodiscard]] std::size_t elements() const { return elements_; }
  [[nodiscard]] Piece operator[](std::size_t i) const { return list_ != nullptr ? list_[i] : piece_of(i, elements_); }

 private:
  const Piece* list_ = nullptr;
  std::size_t elements_;
  std::size_t size_;
};

/// Bytes of a bitmap over n elements.
[[nodiscard]] constexpr std::size_t mark_bytes(std::size_t n) {
  return 4 * ((n + 31) / 32);
}

/// Calls body(i) for every i in [0, pieces), on the queue's threads, or on the calling one where there are so few
/// elements that waking threads would cost more.
template <class Body>
void for_pieces(Queue<Space::host> queue, std::size_t pieces, std::size_t elements, const Body& body) {
  if (elements < 4 * kPiece) queue.pool = nullptr;
  parallel_parts(queue, pieces, pieces, 1, [&](std::size_t i, std::size_t first, std::size_t last) {
    if (first < last) body(i);
  });
}

/// Calls emit(i) for every marked element i of the first `count`, ascending, on the calling thread.
template <class Emit>
void for_marked(const std::uint32_t* words, std::size_t count, const Emit& emit) {
  for (std::size_t word = 0; word < (count + 31) / 32; ++word) {
    for (std::uint32_t rest = words[word]; rest != 0; rest &= rest - 1) {
      emit(32 * word + static_cast<std::size_t>(std::countr_zero(rest)));
    }
  }
}

/// Packs 32 flags, each 0 or 1, into a word. Compilers turn it into vector code.
[[nodiscard]] inline std::uint32_t word_of(const std::uint32_t* flags) {
  std::uint32_t word = 0;
  for (std::uint32_t j = 0; j < 32; ++j) word |= flags[j] << j;
  return word;
}

}  // namespace gradtool::host

/// Bitmaps on the GPU. Everything is enqueued.
namespace gradtool::cuda {

/// A bitmap, and for each of its tiles how many marks lie before it.
struct MarkScan {
  const std::uint32_t* words = nullptr;
  std::size_t n = 0;
  const std::uint64_t* before = nullptr;  ///< tiles + 1 numbers; the last one counts all marks
  std::size_t tiles = 0;
  [[nodiscard]] const std::uint64_t* total() const { return before + tiles; }
};

/// Bytes of scratch for scan_marks. Asks the current GPU, so call it before the clock starts.
[[nodiscard]] std::size_t mark_scratch_bytes(std::size_t n);
/// Counts the marks. Bits behind the n-th must be 0. `scratch` is in use as long as the result is.
[[nodiscard]] MarkScan scan_marks(Queue<Space::cuda> queue, View<const std::uint32_t, Space::cuda> words, std::size_t n,
                                  View<std::byte, Space::cuda> scratch);

/// positions := the indices of the marked elements, ascending; *count := how many they are, unless it is null.
void mark_positions(Queue<Space::cuda> queue, const MarkScan& marks, std::uint32_t* positions, std::uint32_t* count);
/// words := words | other, word by word.
void or_marks(Queue<Space::cuda> queue, View<const std::uint32_t, Space::cuda> other,
              View<std::uint32_t, Space::cuda> words);
/// Marks the first *count of the positions, at most `most`; all `most` of them where `count` is null.
void set_marks(Queue<Space::cuda> queue, const std::uint32_t* positions, const std::uint32_t* count, std::size_t most,
               std::uint32_t* words);
/// loads[lane] := the number of marked elements i with i mod lanes = lane; *most := the largest of these numbers. At
/// most 1024 lanes.
void count_lanes(Queue<Space::cuda> queue, View<const std::uint32_t, Space::cuda> words, std::size_t lanes,
                 std::uint32_t* loads, std::uint64_t* most);

/// values := the marked elements of `held`, in ascending order; they become 0 in `held`. So do those of `momentum`,
/// where it is not null, except the elements that are also marked in `spared`.
void take_marked(Queue<Space::cuda> queue, const MarkScan& marks, float* held, float* momentum,
                 const std::uint32_t* spared, float* values);
/// out[i] := the next of `values` times share for each marked element i, in ascending order, and 0 elsewhere.
void place_marked(Queue<Space::cuda> queue, const MarkScan& marks, const float* values, float share, float* out);

}  // namespace gradtool::cuda
