#pragma once

#include <cstddef>
#include <cstdint>

#include "lib/core/view.hpp"

namespace gradtool::cuda {

/// What a selection finds out on the device.
struct SelectState {
  static constexpr std::uint32_t kDigits = 3;
  static constexpr std::uint32_t kCounters = 2048;
  std::uint32_t low = 0;  ///< candidates are the numbers whose pattern is at least this
  std::uint32_t prefix = 0, left = 0;
  std::uint32_t threshold = 0, ties = 0;  ///< all patterns above the threshold, and the first `ties` that equal it
  std::uint32_t count = 0;                ///< of what was written
  std::uint32_t retry = 0;                ///< the sample promised too much: fewer than k candidates
  std::uint32_t tickets[kDigits + 2] = {};
  std::uint32_t counters[kDigits][kCounters] = {};
  std::uint32_t sampled[kCounters] = {};     ///< leading digits of a sample
  std::uint32_t candidates[kCounters] = {};  ///< and of what the sample lets pass
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
  Select(Queue<Space::cuda> queue, View<const float, Space::cuda> numbers, View<std::byte, Space::cuda> scratch,
         std::size_t many = kMany);

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

  /// What the last gather left to look at, for kernels of codecs: the patterns of tile t, signs included, are
  /// patterns[t * tile] and the counts[t] - 1 behind it.
  struct Candidates {
    const std::uint32_t* patterns;
    const std::uint32_t* counts;
    std::size_t tiles, tile;
  };
  [[nodiscard]] Candidates candidates() const;

  // The steps of `largest`, for kernels of codecs that count the leading digit on the way.
  /// Zeroes state().
  void clear() const;
  /// Gathers what reaches state()->low, and finds the threshold and ties of the k largest from their leading digit,
  /// `prefix`, and how many of those that begin with it are wanted, `left`. They hold where k numbers reach `low`.
  void refine() const;
  /// Counts what the threshold and the ties of the state choose among the candidates; before `write`.
  void count_chosen() const;
  [[nodiscard]] SelectState* state() const { return state_; }

  /// On the device: how many were chosen, once `write` is done.
  [[nodiscard]] const std::uint32_t* count() const { return &state_->count; }
  /// On the device: the smallest pattern chosen, once `largest` is done.
  [[nodiscard]] const std::uint32_t* threshold() const { return &state_->threshold; }

 private:
  struct Places;
  void find_by_sample(std::size_t k) const;
  void find_by_histogram(std::size_t k, bool only_again) const;

  Queue<Space::cuda> queue_;
  View<const float, Space::cuda> numbers_;
  std::size_t many_;
  SelectState* state_;
  std::uint32_t* patterns_;  ///< of the candidates, with their signs, from the start of their tile on
  std::uint16_t* places_;    ///< where they are in the tile
  std::uint32_t* counts_;    ///< of a tile's candidates
  std::uint64_t* before_;    ///< chosen in the tiles in front: above the threshold (upper half) and equal to it
  View<std::byte, Space::cuda> scan_;
};

}  // namespace gradtool::cuda
