#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "kernels/float_bits.hpp"
#include "kernels/marks.hpp"
#include "lib/core/scratch.hpp"
#include "lib/core/task_pool.hpp"
#include "lib/core/view.hpp"

/// Selection of the largest numbers by radix select over the patterns of their magnitudes.
namespace gradtool::format {

/// The pattern of re^2 + im^2, by which the fft codec selects bins. NaN counts as larger than infinity, and all NaNs
/// are equal.
GT_HD inline std::uint32_t power_pattern(float re, float im) {
  const std::uint32_t pattern = bits_of(re * re + im * im) & 0x7fffffffu;
  return pattern > 0x7f800000u ? 0x7fc00000u : pattern;
}

}  // namespace gradtool::format

namespace gradtool::host {

/// A digit of a key, from bit `shift` on.
struct RadixDigit {
  int shift = 0;
  int width = 0;
};
/// Digits of a 31-bit key, the leading one first.
inline constexpr RadixDigit kRadixDigits[] = {{20, 11}, {9, 11}, {0, 9}};
inline constexpr std::size_t kRadixBins = 2048;  ///< values of the widest digit

/// How far a radix select has come: the leading digits of the key that it looks for, and how many of the keys with
/// these digits are among the k largest.
struct RadixSearch {
  std::uint32_t prefix = 0;
  std::size_t left = 0;
};

/// Takes `search` on by the digit of which histograms[part * kRadixBins + value] counts the keys with that value among
/// those that have the prefix. There are `parts` histograms.
void take_digit(const std::uint32_t* histograms, std::size_t parts, RadixDigit digit, RadixSearch& search);

/// Exactly k of n numbers with the largest magnitudes, of equal ones those with the lower index. Magnitudes compare by
/// their binary32 patterns, so that NaN counts as larger than infinity and the result does not depend on threads.
///
/// Two passes over the numbers: one for a bound that the k-th largest reaches, and a gather of the numbers that reach
/// it. The digits of the k-th largest are found among those candidates. Of many numbers a sample gives a bound, and the
/// first pass counts those that reach it; of few, and where the sample misleads, the first pass is a histogram of the
/// leading digit, and candidates are all that have the digit of the k-th largest or a larger one. They are little more
/// than k where magnitudes are spread out. Where they are too many for the scratch, as among numbers of one magnitude,
/// the other digits take three more passes over all numbers instead.
class Largest {
 public:
  static constexpr std::size_t kFewestBySample = std::size_t{1} << 18;  ///< numbers of which a sample is taken
  static constexpr std::size_t kSampled = 4096;
  /// The index of the i-th number of a sample of n. Indices are not evenly spaced, because the length of a matrix' rows
  /// could divide the distance.
  [[nodiscard]] static std::size_t sampled_place(std::size_t i, std::size_t n) {
    return i * n / kSampled + (i * 0x9E3779B1u >> 8) % (n / kSampled);
  }

  /// Bytes of scratch for the k largest of n numbers, a multiple of 4: room for about 2k candidates. With less room it
  /// takes longer; for a threshold whose k is not known beforehand, k = 0 has room for one number in 64.
  [[nodiscard]] static std::size_t scratch_bytes(std::size_t n, std::size_t k);

  /// `scratch` is aligned to 4 and holds scratch_bytes.
  Largest(Queue<Space::host> queue, HostView<const float> numbers, HostView<std::byte> scratch);

  /// positions := the indices of the k largest, ascending; k = positions.size() <= n. values := the numbers there, in
  /// the same order; it may be null.
  void select(HostView<std::uint32_t> positions, float* values) const;
  /// The magnitude of the k-th largest, 1 <= k <= n.
  [[nodiscard]] float threshold(std::size_t k) const;

 private:
  static constexpr std::size_t kMaxParts = 64;
  /// All numbers that may be among the k largest, and the pattern of the k-th.
  struct Candidates {
    struct Part {
      std::size_t first = 0, count = 0;  ///< of the candidates
    };
    std::array<Part, kMaxParts> parts{};
    bool gathered = false;                ///< into patterns_ and places_; else all numbers are candidates
    const std::byte* patterns = nullptr;  ///< with their signs
    RadixSearch search;                   ///< its prefix is the whole pattern of the k-th
  };
  [[nodiscard]] Candidates find(std::size_t k) const;
  /// body(part) for all parts, on the queue's threads.
  template <class Body>
  void for_parts(const Body& body) const {
    parallel_parts(queue_, parts_, parts_, 1, [&](std::size_t part, std::size_t, std::size_t) { body(part); });
  }

  Queue<Space::host> queue_;
  HostView<const float> numbers_;
  std::size_t parts_;
  std::uint32_t* histograms_;  ///< one for each part
  std::size_t room_;           ///< for so many candidates
  std::uint32_t* patterns_;    ///< of the candidates, with their signs
  std::uint32_t* places_;      ///< indices of the candidates
};

/// maxima[b] := the largest pattern of |x| of elements 32b to 32b + 31 of `count`.
void block_maxima(const float* x, std::size_t count, std::uint32_t* maxima);

/// Selection from numbers of which the largest of each block of 32 is known, because whoever computed them noted it on
/// the way. A question about few of the numbers then costs a small part of a pass over all of them. Magnitudes compare
/// as for Largest.
class BlockSelect {
 public:
  /// All patterns above `threshold`, and the first `ties` that equal it.
  struct Cut {
    std::uint32_t threshold = 0;
    std::size_t ties = 0;
    std::size_t count = 0;  ///< all that it selects
  };

  /// Bytes of scratch, a multiple of 4.
  [[nodiscard]] static std::size_t scratch_bytes(std::size_t pieces);

  /// `maxima` has the largest pattern of each block, from index Piece::word on for those of a piece. `scratch` is
  /// aligned to 4.
  BlockSelect(Queue<Space::host> queue, const Pieces& pieces, const float* numbers, const std::uint32_t* maxima,
              std::byte* scratch);

  /// How many patterns are at least `threshold`.
  [[nodiscard]] std::size_t count(std::uint32_t threshold);
  /// Everything that is at least `threshold` >= 1.
  [[nodiscard]] Cut at_least(std::uint32_t threshold) { return {threshold - 1, 0, count(threshold)}; }
  /// The k largest of those that are at least `floor`, of equal ones the first. There must be at least k >= 1 of them.
  [[nodiscard]] Cut largest(std::size_t k, std::uint32_t floor) const;
  /// positions and values := what the cut selects, in ascending order of position. Both hold cut.count.
  void collect(const Cut& cut, std::uint32_t* positions, float* values);

 private:
  Queue<Space::host> queue_;
  Pieces pieces_;
  const float* numbers_;
  const std::uint32_t* maxima_;
  std::uint32_t* histograms_;  ///< one for each part
  std::uint32_t* above_;       ///< for each piece
  std::uint32_t* equal_;       ///< for each piece
  std::uint32_t counted_ = 0;  ///< the threshold that above_ has counts for; 0: none
};

}  // namespace gradtool::host

namespace gradtool::cuda {

/// The findings of a selection, on the GPU.
struct SelectState {
  static constexpr std::uint32_t kDigits = 3;  ///< of 11, 11 and 9 bits, the leading one first
  static constexpr std::uint32_t kCounters = 2048;
  std::uint32_t low = 0;                  ///< candidates are the numbers whose pattern is at least this
  std::uint32_t prefix = 0, left = 0;     ///< as in host::RadixSearch
  std::uint32_t threshold = 0, ties = 0;  ///< all patterns above the threshold, and the first `ties` that equal it
  std::uint32_t count = 0;                ///< how many numbers were written
  std::uint32_t retry = 0;                ///< 1 where the guess from a sample left fewer than k candidates
  std::uint32_t tickets[kDigits] = {};    ///< for last_block, in the kernels that count digits
  std::uint32_t sample_ticket = 0, candidate_ticket = 0;
  std::uint32_t counters[kDigits][kCounters] = {};
  std::uint32_t sampled[kCounters] = {};     ///< histogram of the leading digits of a sample
  std::uint32_t candidates[kCounters] = {};  ///< the same of the candidates that the sample leads to
};

/// The numbers that are selected from: floats, or pairs (re, im), 16-byte aligned, whose pattern is
/// format::power_pattern.
struct SelectSource {
  const float* x;
  std::size_t size;  ///< how many numbers, or pairs
  bool pairs = false;
};

/// Candidates of a selection: those numbers of each tile that may be chosen. They lie from the start of the tile's own
/// stretch of memory on, so that no tile waits for another.
struct SelectTiles {
  static constexpr std::size_t kTile = 2048;  ///< numbers of a tile, which a warp works on
  std::uint32_t* patterns = nullptr;          ///< with their signs; those of tile t from t * kTile on
  std::uint16_t* places = nullptr;            ///< their places in the tile
  std::uint32_t* counts = nullptr;            ///< candidates of each tile
  std::size_t size = 0;                       ///< tiles
};

/// The chosen numbers, for methods whose own kernels write them (each_chosen in cuda/radix_select.hpp).
struct SelectChosen {
  SelectTiles tiles;
  /// For each tile, candidates of the tiles before it: those above the threshold in the upper 32 bits, those equal to
  /// it in the lower.
  const std::uint64_t* before;
  const SelectState* state;
};

/// The numbers with the largest magnitudes: the choice of host::Largest and host::BlockSelect, bit for bit.
///
/// The k largest take two passes over the numbers, a histogram of the leading digit and a gather of candidates; what
/// reaches a threshold takes the gather alone. Where there are many numbers, a sample of a sixteenth of them is enough
/// to guess the digit at which candidates begin, and the gather counts their digits itself; only where they turn out to
/// be fewer than k do the two passes follow. All else looks at candidates only, which are little more than are chosen
/// where magnitudes are spread out, and all of the numbers at worst. Everything is enqueued and allocates nothing.
class Select {
 public:
  /// Bytes of scratch for n numbers, n < 2^32. It asks the current GPU, so call it before the clock starts.
  [[nodiscard]] static std::size_t scratch_bytes(std::size_t n);

  /// From this many numbers on, the sample saves more time than its additional kernels take.
  static constexpr std::size_t kMany = std::size_t{1} << 22;

  /// There is at least one number. `scratch` holds scratch_bytes, is 256-byte aligned, and is in use until the last
  /// call here. `many` replaces kMany in tests.
  Select(Queue<Space::cuda> queue, const SelectSource& from, View<std::byte, Space::cuda> scratch,
         std::size_t many = kMany);
  Select(Queue<Space::cuda> queue, View<const float, Space::cuda> numbers, View<std::byte, Space::cuda> scratch,
         std::size_t many = kMany)
      : Select{queue, SelectSource{numbers.data(), numbers.size()}, scratch, many} {}

  /// Chooses the k largest, 1 <= k <= n.
  void largest(std::size_t k) const;
  /// Chooses all whose pattern without sign is at least `low` >= 1.
  void at_least(std::uint32_t low) const;
  /// at_least with a threshold that the GPU computes; *low = 0 is taken as 1.
  void at_least(const std::uint32_t* low) const;
  /// Keeps those of the numbers chosen by `at_least` that reach *low, which is no smaller than the threshold there.
  void narrow(const std::uint32_t* low) const;
  /// positions and values := what was chosen last, in ascending order of position. Both must hold all that may be
  /// chosen.
  void write(std::uint32_t* positions, float* values) const;
  /// In place of `write`, for kernels of methods that write what was chosen themselves.
  [[nodiscard]] SelectChosen chosen() const;

  /// The candidates of the last gather.
  [[nodiscard]] const SelectTiles& candidates() const { return workspace_.tiles; }

  // The steps of `largest`, for methods whose own kernels count the leading digit while they compute the numbers.

  /// Sets state() to zero.
  void clear() const;
  /// Gathers the numbers that reach state()->low, and finds threshold and ties of the k largest from `prefix`, their
  /// leading digit, and `left`. At least k numbers must reach `low`.
  void refine() const;
  /// Counts what the threshold and the ties of the state choose among the candidates. To be called before `write`.
  void count_chosen() const;
  [[nodiscard]] SelectState* state() const { return workspace_.state; }

  /// On the GPU: how many were chosen, once `write` is done.
  [[nodiscard]] const std::uint32_t* count() const { return &workspace_.state->count; }
  /// On the GPU: the smallest pattern chosen, once `largest` is done.
  [[nodiscard]] const std::uint32_t* threshold() const { return &workspace_.state->threshold; }

 private:
  struct Workspace {
    Workspace(std::size_t n, Scratch<Space::cuda> scratch);
    SelectState* state;
    SelectTiles tiles;
    std::uint64_t* before;  ///< SelectChosen::before
    View<std::byte, Space::cuda> scan;
  };

  Queue<Space::cuda> queue_;
  SelectSource from_;
  std::size_t many_;
  Workspace workspace_;
};

}  // namespace gradtool::cuda
