#include "kernels/select.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <functional>
#include <numeric>
#include <span>
#include <utility>

#include "kernels/float_bits.hpp"
#include "kernels/marks.hpp"
#include "lib/core/task_pool.hpp"

namespace gradtool::host {
namespace {

constexpr std::size_t kBlock = 32;
constexpr std::uint32_t kMagnitude = 0x7fffffffU;
constexpr int kTopShift = kRadixDigits[0].shift;

/// Counts the leading digits of x[first, last). Neighbours often have the same digit; four histograms in turn keep an
/// increment from waiting for the store of the one before.
void count_top(const float* x, std::size_t first, std::size_t last, std::uint32_t* histogram) {
  constexpr std::size_t kCopies = 4;
  std::array<std::array<std::uint32_t, kRadixBins>, kCopies> counts{};
  std::size_t i = first;
  for (; i + kCopies <= last; i += kCopies) {
    for (std::size_t j = 0; j < kCopies; ++j) ++counts[j][(format::bits_of(x[i + j]) & kMagnitude) >> kTopShift];
  }
  for (; i < last; ++i) ++counts[0][(format::bits_of(x[i]) & kMagnitude) >> kTopShift];
  for (std::size_t bin = 0; bin < kRadixBins; ++bin)
    histogram[bin] = counts[0][bin] + counts[1][bin] + counts[2][bin] + counts[3][bin];
}

/// The pattern that somewhat more than the k largest of the numbers reach, by a sample of them; of 30,000 samples one
/// gives a pattern that fewer reach (four standard deviations). 0 where a histogram of all numbers costs less, because
/// they are few or nearly all of them are wanted.
std::uint32_t likely_bound(HostView<const float> numbers, std::size_t k) {
  constexpr std::size_t kSampled = Largest::kSampled;
  if (numbers.size() < Largest::kFewestBySample || k > numbers.size() / 4) return 0;
  std::array<std::uint32_t, kSampled> patterns;
  for (std::size_t i = 0; i < kSampled; ++i)
    patterns[i] = format::bits_of(numbers[Largest::sampled_place(i, numbers.size())]) & kMagnitude;
  const double expected = static_cast<double>(k) * kSampled / static_cast<double>(numbers.size());
  const auto rank = static_cast<std::ptrdiff_t>(expected + 4 * std::sqrt(expected) + 4);
  std::nth_element(patterns.begin(), patterns.begin() + rank, patterns.end(), std::greater<>{});
  return std::max(patterns[static_cast<std::size_t>(rank)], 1U);  // where zeros are many, the others may be enough
}

/// How many of x[first, last) have a magnitude of at least `low`.
GT_SIMD_CLONES std::size_t count_reaching(const float* x, std::size_t first, std::size_t last, std::uint32_t low) {
  std::uint32_t count = 0;
  for (std::size_t i = first; i < last; ++i) {
    // Magnitudes have 31 bits; vectors compare signed numbers.
    const auto magnitude = static_cast<std::int32_t>(format::bits_of(x[i]) & kMagnitude);
    count += magnitude >= static_cast<std::int32_t>(low) ? 1U : 0U;
  }
  return count;
}

/// Writes the candidates of x[first, last): patterns and indices of the `count` elements whose magnitude is at least
/// `low`. Blocks without candidates are recognised by their maximum, which vector instructions find. In other blocks
/// every element is written and only candidates advance the end, which needs no branch to predict.
GT_SIMD_CLONES void gather(const float* x, std::size_t first, std::size_t last, std::uint32_t low, std::size_t count,
                           std::uint32_t* patterns, std::uint32_t* places) {
  std::size_t found = 0;
  for (std::size_t block = first; block < last && found < count; block += kBlock) {
    const std::size_t end = std::min(last, block + kBlock);
    std::uint32_t largest = 0;
    for (std::size_t i = block; i < end; ++i) largest = std::max(largest, format::bits_of(x[i]) & kMagnitude);
    if (largest < low) continue;
    for (std::size_t i = block; i < end && found < count; ++i) {
      const std::uint32_t pattern = format::bits_of(x[i]);
      patterns[found] = pattern;
      places[found] = static_cast<std::uint32_t>(i);
      found += (pattern & kMagnitude) >= low ? 1 : 0;
    }
  }
}

/// Pattern i of an array of patterns, or of floats.
[[gnu::always_inline]] inline std::uint32_t pattern_at(const std::byte* patterns, std::size_t i) {
  std::uint32_t pattern = 0;
  std::memcpy(&pattern, patterns + i * sizeof pattern, sizeof pattern);
  return pattern;
}

/// How many of the magnitudes are above the threshold, and how many equal it.
struct Split {
  std::size_t above = 0;
  std::size_t equal = 0;
};
GT_SIMD_CLONES Split split(const std::byte* patterns, std::size_t count, std::uint32_t threshold) {
  std::uint32_t above = 0;
  std::uint32_t equal = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint32_t magnitude = pattern_at(patterns, i) & kMagnitude;
    above += magnitude > threshold ? 1U : 0U;
    equal += magnitude == threshold ? 1U : 0U;
  }
  return {above, equal};
}

}  // namespace

void take_digit(const std::uint32_t* histograms, std::size_t parts, RadixDigit digit, RadixSearch& search) {
  for (std::uint32_t value = (1U << digit.width) - 1;; --value) {
    std::size_t count = 0;
    for (std::size_t part = 0; part < parts; ++part) count += histograms[part * kRadixBins + value];
    if (count >= search.left || value == 0) {
      search.prefix = search.prefix << digit.width | value;
      return;
    }
    search.left -= count;
  }
}

std::size_t Largest::scratch_bytes(std::size_t n, std::size_t k) {
  return sizeof(std::uint32_t) * (kMaxParts * kRadixBins + 2 * std::min(n, 2 * k + n / 64 + kBlock));
}

Largest::Largest(Queue<Space::host> queue, HostView<const float> numbers, HostView<std::byte> scratch)
    : queue_{queue},
      numbers_{numbers},
      parts_{std::min(kMaxParts, part_count(queue, numbers.size(), 1 << 15))},
      histograms_{reinterpret_cast<std::uint32_t*>(scratch.data())},
      room_{(scratch.size() / sizeof(std::uint32_t) - kMaxParts * kRadixBins) / 2},
      patterns_{histograms_ + kMaxParts * kRadixBins},
      places_{patterns_ + room_} {}

Largest::Candidates Largest::find(std::size_t k) const {
  const std::size_t n = numbers_.size();
  const float* x = numbers_.data();
  Candidates found{.search = {0, k}};
  auto& parts = found.parts;
  auto& search = found.search;
  const auto first_candidates = [&] {
    std::size_t sum = 0;
    for (std::size_t part = 0; part < parts_; ++part) parts[part].first = std::exchange(sum, sum + parts[part].count);
    return sum;
  };
  std::span<const RadixDigit> digits{kRadixDigits};
  std::uint32_t low = likely_bound(numbers_, k);
  std::size_t candidates = 0;
  if (low > 0) {
    parallel_parts(queue_, n, parts_, kBlock, [&](std::size_t part, std::size_t first, std::size_t last) {
      parts[part].count = count_reaching(x, first, last, low);
    });
    candidates = first_candidates();
  }
  if (candidates < k || candidates > room_) {  // no sample, or one that misleads
    parallel_parts(queue_, n, parts_, kBlock, [&](std::size_t part, std::size_t first, std::size_t last) {
      count_top(x, first, last, histograms_ + part * kRadixBins);
    });
    take_digit(histograms_, parts_, digits[0], search);
    digits = digits.subspan(1);
    low = search.prefix << kTopShift;
    for (std::size_t part = 0; part < parts_; ++part) {
      const std::uint32_t* histogram = histograms_ + part * kRadixBins;
      parts[part].count = std::accumulate(histogram + search.prefix, histogram + kRadixBins, std::size_t{0});
    }
    candidates = first_candidates();
  }
  // All numbers are candidates if there is no room for fewer.
  const bool gathered = found.gathered = candidates <= room_;
  const std::byte* const patterns = found.patterns =
      gathered ? reinterpret_cast<const std::byte*>(patterns_) : reinterpret_cast<const std::byte*>(x);
  parallel_parts(queue_, n, parts_, kBlock, [&](std::size_t part, std::size_t first, std::size_t last) {
    auto& own = parts[part];
    if (gathered)
      gather(x, first, last, low, own.count, patterns_ + own.first, places_ + own.first);
    else
      own = {first, last - first};
  });
  for (const RadixDigit digit : digits) {
    const std::uint32_t mask = (1U << digit.width) - 1;
    const std::uint32_t prefix = search.prefix;
    for_parts([&](std::size_t part) {
      std::uint32_t* histogram = histograms_ + part * kRadixBins;
      std::fill_n(histogram, kRadixBins, 0U);
      for (std::size_t i = parts[part].first; i < parts[part].first + parts[part].count; ++i) {
        const std::uint32_t magnitude = pattern_at(patterns, i) & kMagnitude;
        if (magnitude >> (digit.shift + digit.width) == prefix) ++histogram[magnitude >> digit.shift & mask];
      }
    });
    take_digit(histograms_, parts_, digit, search);
  }
  return found;
}

float Largest::threshold(std::size_t k) const {
  return format::float_of(find(k).search.prefix);
}

void Largest::select(HostView<std::uint32_t> positions, float* values) const {
  if (positions.empty()) return;
  const Candidates found = find(positions.size());
  const std::uint32_t threshold = found.search.prefix;
  /// A part's share of the result.
  struct Share {
    std::size_t to = 0;    ///< where it starts
    std::size_t ties = 0;  ///< numbers equal to the threshold that it contributes
    Split split{};
  };
  std::array<Share, kMaxParts> shares{};
  for_parts([&](std::size_t part) {
    const auto& own = found.parts[part];
    shares[part].split = split(found.patterns + sizeof(float) * own.first, own.count, threshold);
  });
  std::size_t left = found.search.left;
  for (std::size_t part = 0, at = 0; part < parts_; ++part) {
    Share& own = shares[part];
    own.ties = std::min(left, own.split.equal);
    own.to = at;
    left -= own.ties;
    at += own.split.above + own.ties;
  }
  for_parts([&](std::size_t part) {
    const Share& own = shares[part];
    std::size_t ties = own.ties;
    std::size_t at = own.to;
    const std::size_t end = own.to + own.split.above + own.ties;
    for (std::size_t i = found.parts[part].first; at < end; ++i) {
      const std::uint32_t pattern = pattern_at(found.patterns, i);
      const std::size_t tie = (pattern & kMagnitude) == threshold && ties > 0 ? 1 : 0;
      positions[at] = found.gathered ? places_[i] : static_cast<std::uint32_t>(i);
      if (values != nullptr) values[at] = format::one_nan(format::float_of(pattern));
      at += tie + ((pattern & kMagnitude) > threshold ? 1 : 0);
      ties -= tie;
    }
  });
}

namespace {

constexpr std::size_t kParts = 16;

/// One block of a piece, and which of its elements are candidates.
struct Block {
  std::size_t first = 0, size = 0;  ///< elements
  std::uint32_t marks = 0;          ///< bit j is set where the pattern of element first + j is at least `low`
};
[[gnu::always_inline]] inline Block block_of(const Piece& piece, std::size_t at, const float* x,
                                             const std::uint32_t* maxima, std::uint32_t low) {
  Block block{piece.first + at, std::min(kBlock, piece.count - at), 0};
  if (maxima[piece.word + at / kBlock] < low) return block;
  const float* own = x + block.first;
  std::array<std::uint32_t, kBlock> flags{};
  if (block.size == kBlock) {
    for (std::size_t j = 0; j < kBlock; ++j) flags[j] = (format::bits_of(own[j]) & kMagnitude) >= low ? 1U : 0U;
  } else {
    for (std::size_t j = 0; j < block.size; ++j) flags[j] = (format::bits_of(own[j]) & kMagnitude) >= low ? 1U : 0U;
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

/// Counts a digit of the patterns that have the prefix and are at least `low`.
GT_SIMD_CLONES void count_digits(const Piece& piece, const float* x, const std::uint32_t* maxima, std::uint32_t low,
                                 std::uint32_t prefix, RadixDigit digit, std::uint32_t* histogram) {
  const std::uint32_t mask = (1U << digit.width) - 1;
  for (std::size_t at = 0; at < piece.count; at += kBlock) {
    const Block block = block_of(piece, at, x, maxima, low);
    for (std::uint32_t rest = block.marks; rest != 0; rest &= rest - 1) {
      const std::uint32_t pattern =
          format::bits_of(x[block.first + static_cast<std::size_t>(std::countr_zero(rest))]) & kMagnitude;
      if (pattern >> (digit.shift + digit.width) == prefix) ++histogram[pattern >> digit.shift & mask];
    }
  }
}

/// Writes what a piece contributes: all numbers above the threshold and the first `ties` that equal it.
GT_SIMD_CLONES void collect_piece(const Piece& piece, const float* x, const std::uint32_t* maxima,
                                  std::uint32_t threshold, std::uint32_t ties, std::uint32_t* positions,
                                  float* values) {
  for (std::size_t at = 0; at < piece.count; at += kBlock) {
    const bool exact = ties == 0;  // then only what lies above the threshold needs to be marked
    const Block block = block_of(piece, at, x, maxima, exact ? threshold + 1 : threshold);
    for (std::uint32_t rest = block.marks; rest != 0; rest &= rest - 1) {
      const std::size_t j = block.first + static_cast<std::size_t>(std::countr_zero(rest));
      if (!exact && (format::bits_of(x[j]) & kMagnitude) == threshold) {
        if (ties == 0) continue;
        --ties;
      }
      *positions++ = static_cast<std::uint32_t>(j);
      *values++ = format::one_nan(x[j]);
    }
  }
}

}  // namespace

GT_SIMD_CLONES void block_maxima(const float* x, std::size_t count, std::uint32_t* maxima) {
  for (std::size_t at = 0; at < count; at += kBlock) {
    std::uint32_t largest = 0;
    if (at + kBlock <= count) {
      for (std::size_t j = 0; j < kBlock; ++j) largest = std::max(largest, format::bits_of(x[at + j]) & kMagnitude);
    } else {
      for (std::size_t j = at; j < count; ++j) largest = std::max(largest, format::bits_of(x[j]) & kMagnitude);
    }
    maxima[at / kBlock] = largest;
  }
}

std::size_t BlockSelect::scratch_bytes(std::size_t pieces) {
  return sizeof(std::uint32_t) * (kParts * kRadixBins + 2 * pieces);
}

BlockSelect::BlockSelect(Queue<Space::host> queue, const Pieces& pieces, const float* numbers,
                         const std::uint32_t* maxima, std::byte* scratch)
    : queue_{queue},
      pieces_{pieces},
      numbers_{numbers},
      maxima_{maxima},
      histograms_{reinterpret_cast<std::uint32_t*>(scratch)},
      above_{histograms_ + kParts * kRadixBins},
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
  RadixSearch search{0, k};
  for (const RadixDigit digit : kRadixDigits) {
    const std::uint32_t low = std::max(floor, search.prefix << (digit.shift + digit.width));
    parallel_parts(queue_, pieces_.size(), parts, 1, [&](std::size_t part, std::size_t first, std::size_t last) {
      std::uint32_t* histogram = histograms_ + part * kRadixBins;
      std::fill_n(histogram, kRadixBins, 0U);
      for (; first < last; ++first)
        count_digits(pieces_[first], numbers_, maxima_, low, search.prefix, digit, histogram);
    });
    take_digit(histograms_, parts, digit, search);
  }
  return {search.prefix, search.left, k};
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
