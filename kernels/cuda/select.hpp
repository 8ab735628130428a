#pragma once

#include <cstddef>
#include <cstdint>

#include "lib/core/view.hpp"

namespace gradtool::cuda {

/// What a selection finds out on the device.
struct SelectState {
  static constexpr std::uint32_t kDigits = 3;  ///< of 11, 11 and 9 bits, the leading one first
  static constexpr std::uint32_t kCounters = 2048;
  std::uint32_t low = 0;  ///< candidates are the numbers whose pattern is at least this
  std::uint32_t prefix = 0, left = 0;
  std::uint32_t threshold = 0, ties = 0;  ///< all patterns above the threshold, and the first `ties` that equal it
  std::uint32_t count = 0;                ///< of what was written
  std::uint32_t retry = 0;                ///< the sample promised too much: fewer than k candidates
  std::uint32_t tickets[kDigits] = {};    ///< of the kernels that count digits
  std::uint32_t sample_ticket = 0, candidate_ticket = 0;
  std::uint32_t counters[kDigits][kCounters] = {};
  std::uint32_t sampled[kCounters] = {};     ///< leading digits of a sample
  std::uint32_t candidates[kCounters] = {};  ///< and of what the sample lets pass
};

/// What is selected from: numbers, or pairs (re, im), 16-byte aligned, by the float whose pattern is
/// law::power_pattern.
struct SelectSource {
  const float* x;
  std::size_t size;  ///< of numbers, or of pairs
  bool pairs = false;
};

/// Candidates of a selection: of each tile's numbers those that may be chosen, written from the tile's start on, so
/// that no tile waits for another.
struct SelectTiles {
  static constexpr std::size_t kTile = 2048;  ///< numbers that a warp takes at a time
  std::uint32_t* patterns = nullptr;          ///< with their signs: those of tile t from t * kTile on
  std::uint16_t* places = nullptr;            ///< where they are in the tile
  std::uint32_t* counts = nullptr;            ///< of a tile's candidates
  std::size_t size = 0;
};

/// What was chosen, for kernels of codecs that write it themselves (select_chosen.hpp).
struct SelectChosen {
  SelectTiles tiles;
  const std::uint64_t* before;  ///< chosen in the tiles in front: above the threshold (upper half) and equal to it
  const SelectState* state;
};

/// The numbers with the largest magnitudes: what host::Largest and host::BlockSelect choose, bit for bit. Magnitudes
/// compare by their binary32 patterns, so NaN counts as larger than infinity; of equal ones the lower index goes first.
///
/// The k largest of few numbers take two passes over them, a histogram of the leading 11 of 31 bits and a gather of the
/// candidates that it leaves; what reaches a threshold takes the gather alone. Of many numbers, a sixteenth tells where
/// candidates begin, and the gather counts their digits itself; only where they turn out to be fewer than k do the two
/// passes follow. The rest looks at candidates only, little more than are chosen where the numbers are spread out, all
/// of them at worst. Everything is enqueued and allocates nothing.
class Select {
 public:
  /// Bytes of scratch for n numbers, n < 2^32. Asks the current GPU, so call it before the clock starts.
  [[nodiscard]] static std::size_t scratch_bytes(std::size_t n);

  /// From here on a pass saved is more than the kernels that it takes.
  static constexpr std::size_t kMany = std::size_t{1} << 22;

  /// `scratch`: scratch_bytes, 256-byte aligned; in use until the last call here. n >= 1. `many`: for tests.
  Select(Queue<Space::cuda> queue, const SelectSource& from, View<std::byte, Space::cuda> scratch,
         std::size_t many = kMany);
  Select(Queue<Space::cuda> queue, View<const float, Space::cuda> numbers, View<std::byte, Space::cuda> scratch,
         std::size_t many = kMany)
      : Select{queue, SelectSource{numbers.data(), numbers.size()}, scratch, many} {}

  /// Chooses the k largest, 1 <= k <= n.
  void largest(std::size_t k) const;
  /// Chooses all whose pattern without sign is at least `low` >= 1.
  void at_least(std::uint32_t low) const;
  /// The same, where *low is found out on the device; it is taken as 1 where it is 0.
  void at_least(const std::uint32_t* low) const;
  /// Of what `at_least` chose, keeps what reaches *low, which is no less.
  void narrow(const std::uint32_t* low) const;
  /// positions and values := what was chosen last, in ascending order; room for all that may be chosen.
  void write(std::uint32_t* positions, float* values) const;
  /// In place of `write`.
  [[nodiscard]] SelectChosen chosen() const;

  /// What the last gather left to look at, for kernels of codecs.
  [[nodiscard]] const SelectTiles& candidates() const { return at_.tiles; }

  // The steps of `largest`, for kernels of codecs that count the leading digit on the way.
  /// Zeroes state().
  void clear() const;
  /// Gathers what reaches state()->low, and finds the threshold and ties of the k largest from their leading digit,
  /// `prefix`, and how many of those that begin with it are wanted, `left`. They hold where k numbers reach `low`.
  void refine() const;
  /// Counts what the threshold and the ties of the state choose among the candidates; before `write`.
  void count_chosen() const;
  [[nodiscard]] SelectState* state() const { return at_.state; }

  /// On the device: how many were chosen, once `write` is done.
  [[nodiscard]] const std::uint32_t* count() const { return &at_.state->count; }
  /// On the device: the smallest pattern chosen, once `largest` is done.
  [[nodiscard]] const std::uint32_t* threshold() const { return &at_.state->threshold; }

 private:
  /// Where things lie in the scratch.
  struct Room {
    Room(View<std::byte, Space::cuda> scratch, std::size_t n);
    SelectState* state;
    SelectTiles tiles;
    std::uint64_t* before;  ///< of SelectChosen
    View<std::byte, Space::cuda> scan;
    std::size_t bytes;
  };
  void find_by_sample(std::size_t k) const;

  Queue<Space::cuda> queue_;
  SelectSource from_;
  std::size_t many_;
  Room at_;
};

}  // namespace gradtool::cuda
