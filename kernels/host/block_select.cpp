#include "kernels/host/block_select.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <utility>

#include "kernels/law/half.hpp"
#include "kernels/law/hd.hpp"
#include "kernels/law/keep_nan.hpp"

namespace gradtool::host {
namespace {

constexpr std::size_t kBlock = 32;
constexpr std::size_t kParts = 16;
constexpr std::size_t kBins = 2048;
constexpr std::uint32_t kMagnitude = 0x7fffffffU;

/// The elements of one block of a piece; none where its largest is below `low`.
struct Block {
  std::size_t first = 0, size = 0;
  std::uint32_t marks = 0;  ///< bit j is set where the pattern of element first + j is at least `low`
};
[[gnu::always_inline]] inline Block block_of(const Piece& piece, std::size_t at, const float* x,
                                             const std::uint32_t* maxima, std::uint32_t low) {
  Block block{piece.first + at, std::min(kBlock, piece.count - at), 0};
  if (maxima[piece.word + at / kBlock] < low) return block;
  const float* own = x + block.first;
  std::array<std::uint32_t, kBlock> flags{};
  if (block.size == kBlock) {
    for (std::size_t j = 0; j < kBlock; ++j) flags[j] = (law::bits_of(own[j]) & kMagnitude) >= low ? 1U : 0U;
  } else {
    for (std::size_t j = 0; j < block.size; ++j) flags[j] = (law::bits_of(own[j]) & kMagnitude) >= low ? 1U : 0U;
  }
  block.marks = word_of(flags.data());
  return block;
}

GT_SIMD_CLONES std::size_t count_piece(const Piece& piece, const float* x, const std::uint32_t* maxima,
                                       std::uint32_t threshold) {
  std::size_t count = 0;
  for (std::size_t at = 0; at < piece.count; at += kBlock)
    count += static_cast<std::size_t>(std::popcount(block_of(piece, at, x, maxima, threshold).marks));
  return count;
}

/// A digit of radix select: which of the patterns that have this prefix, and are at least `low`.
struct Digit {
  std::uint32_t low = 0, prefix = 0;
  int shift = 0, width = 0;
};
GT_SIMD_CLONES void count_digits(const Piece& piece, const float* x, const std::uint32_t* maxima, Digit digit,
                                 std::uint32_t* histogram) {
  const std::uint32_t mask = (1U << digit.width) - 1;
  for (std::size_t at = 0; at < piece.count; at += kBlock) {
    const Block block = block_of(piece, at, x, maxima, digit.low);
    for (std::uint32_t rest = block.marks; rest != 0; rest &= rest - 1) {
      const std::uint32_t pattern =
          law::bits_of(x[block.first + static_cast<std::size_t>(std::countr_zero(rest))]) & kMagnitude;
      if (pattern >> (digit.shift + digit.width) == digit.prefix) ++histogram[pattern >> digit.shift & mask];
    }
  }
}

/// All of a piece above the threshold and the first `ties` that equal it.
GT_SIMD_CLONES void collect_piece(const Piece& piece, const float* x, const std::uint32_t* maxima,
                                  std::uint32_t threshold, std::uint32_t ties, std::uint32_t* positions,
                                  float* values) {
  for (std::size_t at = 0; at < piece.count; at += kBlock) {
    const bool exact = ties == 0;  // no ties left: what is marked is what is wanted
    const Block block = block_of(piece, at, x, maxima, exact ? threshold + 1 : threshold);
    for (std::uint32_t rest = block.marks; rest != 0; rest &= rest - 1) {
      const std::size_t j = block.first + static_cast<std::size_t>(std::countr_zero(rest));
      if (!exact && (law::bits_of(x[j]) & kMagnitude) == threshold) {
        if (ties == 0) continue;
        --ties;
      }
      *positions++ = static_cast<std::uint32_t>(j);
      *values++ = law::one_nan(x[j]);
    }
  }
}

}  // namespace

GT_SIMD_CLONES void block_maxima(const float* x, std::size_t count, std::uint32_t* maxima) {
  for (std::size_t at = 0; at < count; at += kBlock) {
    std::uint32_t largest = 0;
    if (at + kBlock <= count) {
      for (std::size_t j = 0; j < kBlock; ++j) largest = std::max(largest, law::bits_of(x[at + j]) & kMagnitude);
    } else {
      for (std::size_t j = at; j < count; ++j) largest = std::max(largest, law::bits_of(x[j]) & kMagnitude);
    }
    maxima[at / kBlock] = largest;
  }
}

std::size_t BlockSelect::scratch_bytes(std::size_t pieces) {
  return sizeof(std::uint32_t) * (kParts * kBins + 2 * pieces);
}

BlockSelect::BlockSelect(Queue<Space::host> queue, const Pieces& pieces, const float* numbers,
                         const std::uint32_t* maxima, std::byte* scratch)
    : queue_{queue},
      pieces_{pieces},
      numbers_{numbers},
      maxima_{maxima},
      histograms_{reinterpret_cast<std::uint32_t*>(scratch)},
      above_{histograms_ + kParts * kBins},
      equal_{above_ + pieces.size()} {}

std::size_t BlockSelect::count(std::uint32_t threshold) {
  for_pieces(queue_, pieces_.size(), pieces_.elements(), [&](std::size_t i) {
    above_[i] = static_cast<std::uint32_t>(count_piece(pieces_[i], numbers_, maxima_, threshold));
  });
  std::size_t sum = 0;
  for (std::size_t i = 0; i < pieces_.size(); ++i) sum += above_[i];
  counted_ = threshold;
  return sum;
}

BlockSelect::Cut BlockSelect::largest(std::size_t k, std::uint32_t floor) const {
  const std::size_t parts = std::min(kParts, part_count(queue_, pieces_.size(), 4));
  std::uint32_t prefix = 0;
  std::size_t left = k;  // how many of those with this prefix are wanted
  for (const auto& [shift, width] : {std::pair{20, 11}, std::pair{9, 11}, std::pair{0, 9}}) {
    const std::uint32_t mask = (1U << width) - 1;
    const Digit wanted{std::max(floor, prefix << (shift + width)), prefix, shift, width};
    parallel_parts(queue_, pieces_.size(), parts, 1, [&](std::size_t part, std::size_t first, std::size_t last) {
      std::uint32_t* histogram = histograms_ + part * kBins;
      std::fill_n(histogram, kBins, 0U);
      for (; first < last; ++first) count_digits(pieces_[first], numbers_, maxima_, wanted, histogram);
    });
    std::uint32_t digit = mask;
    for (;; --digit) {
      std::size_t here = 0;
      for (std::size_t part = 0; part < parts; ++part) here += histograms_[part * kBins + digit];
      if (here >= left || digit == 0) break;
      left -= here;
    }
    prefix = prefix << width | digit;
  }
  return {prefix, left, k};
}

void BlockSelect::collect(const Cut& cut, std::uint32_t* positions, float* values) {
  if (counted_ != cut.threshold + 1) static_cast<void>(count(cut.threshold + 1));
  counted_ = 0;  // counts become places below
  for_pieces(queue_, pieces_.size(), pieces_.elements(), [&](std::size_t i) {
    equal_[i] = cut.ties == 0
                    ? 0
                    : static_cast<std::uint32_t>(count_piece(pieces_[i], numbers_, maxima_, cut.threshold)) - above_[i];
  });
  std::uint32_t place = 0;
  auto ties = static_cast<std::uint32_t>(cut.ties);
  for (std::size_t i = 0; i < pieces_.size(); ++i) {
    const std::uint32_t taken = std::min(ties, equal_[i]);
    ties -= taken;
    equal_[i] = taken;
    place += std::exchange(above_[i], place) + taken;
  }
  for_pieces(queue_, pieces_.size(), pieces_.elements(), [&](std::size_t i) {
    collect_piece(pieces_[i], numbers_, maxima_, cut.threshold, equal_[i], positions + above_[i], values + above_[i]);
  });
}

}  // namespace gradtool::host
