#include "kernels/host/largest.hpp"

#include <algorithm>
#include <array>
#include <utility>

#include "kernels/law/half.hpp"
#include "kernels/law/hd.hpp"
#include "kernels/law/keep_nan.hpp"
#include "lib/core/task_pool.hpp"

namespace gradtool::host {
namespace {

constexpr std::size_t kMaxParts = 64;
constexpr std::size_t kBins = 2048;
constexpr std::size_t kBlock = 32;
constexpr std::uint32_t kMagnitude = 0x7fffffffU;
constexpr int kTopShift = 20;  // digits of 11, 11 and 9 bits from the top

/// Neighbours often fall into one bin. Counting them in turn in four histograms keeps an increment from waiting for the
/// store of the one before.
void count_top(const float* x, std::size_t first, std::size_t last, std::uint32_t* histogram) {
  constexpr std::size_t kCopies = 4;
  std::array<std::array<std::uint32_t, kBins>, kCopies> counts{};
  std::size_t i = first;
  for (; i + kCopies <= last; i += kCopies) {
    for (std::size_t j = 0; j < kCopies; ++j) ++counts[j][(law::bits_of(x[i + j]) & kMagnitude) >> kTopShift];
  }
  for (; i < last; ++i) ++counts[0][(law::bits_of(x[i]) & kMagnitude) >> kTopShift];
  for (std::size_t bin = 0; bin < kBins; ++bin)
    histogram[bin] = counts[0][bin] + counts[1][bin] + counts[2][bin] + counts[3][bin];
}

/// The candidates: patterns and places of x[first, last) whose magnitude is at least `low`. There are `count` of them.
/// Blocks without one are told by their maximum, which is a vector's work; in the others every element is written and
/// only the candidates move the end on, which needs no branch that guesses.
GT_SIMD_CLONES void gather(const float* x, std::size_t first, std::size_t last, std::uint32_t low, std::size_t count,
                           std::uint32_t* patterns, std::uint32_t* places) {
  std::size_t at = 0;
  for (std::size_t block = first; block < last && at < count; block += kBlock) {
    const std::size_t end = std::min(last, block + kBlock);
    std::uint32_t largest = 0;
    for (std::size_t i = block; i < end; ++i) largest = std::max(largest, law::bits_of(x[i]) & kMagnitude);
    if (largest < low) continue;
    for (std::size_t i = block; i < end && at < count; ++i) {
      const std::uint32_t pattern = law::bits_of(x[i]);
      patterns[at] = pattern;
      places[at] = static_cast<std::uint32_t>(i);
      at += (pattern & kMagnitude) >= low ? 1 : 0;
    }
  }
}

/// How many of the magnitudes are above the threshold, and how many equal it.
struct Split {
  std::size_t above = 0;
  std::size_t equal = 0;
};
GT_SIMD_CLONES Split split(const std::uint32_t* patterns, std::size_t count, std::uint32_t threshold) {
  std::uint32_t above = 0;
  std::uint32_t equal = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint32_t magnitude = patterns[i] & kMagnitude;
    above += magnitude > threshold ? 1U : 0U;
    equal += magnitude == threshold ? 1U : 0U;
  }
  return {above, equal};
}

/// The highest bin from which on there are at least `left` counts; takes what lies above it off `left`.
std::uint32_t cut_bin(const std::uint32_t* histograms, std::size_t parts, std::uint32_t top, std::size_t& left) {
  for (std::uint32_t bin = top;; --bin) {
    std::size_t count = 0;
    for (std::size_t part = 0; part < parts; ++part) count += histograms[part * kBins + bin];
    if (count >= left || bin == 0) return bin;
    left -= count;
  }
}

}  // namespace

std::size_t Largest::scratch_bytes(std::size_t n) {
  return sizeof(std::uint32_t) * (kMaxParts * kBins + 2 * n);
}

Largest::Largest(Queue<Space::host> queue, HostView<const float> numbers, HostView<std::byte> scratch)
    : queue_{queue},
      numbers_{numbers},
      parts_{std::min(kMaxParts, part_count(queue, numbers.size(), 1 << 15))},
      histograms_{reinterpret_cast<std::uint32_t*>(scratch.data())},
      patterns_{histograms_ + kMaxParts * kBins},
      places_{patterns_ + numbers.size()} {}

void Largest::select(HostView<std::uint32_t> positions, float* values) const {
  const std::size_t n = numbers_.size();
  if (positions.empty()) return;
  const float* x = numbers_.data();
  parallel_parts(queue_, n, parts_, kBlock, [&](std::size_t part, std::size_t first, std::size_t last) {
    count_top(x, first, last, histograms_ + part * kBins);
  });
  std::size_t left = positions.size();  // how many of those with the threshold's leading digits are wanted
  const std::uint32_t top = cut_bin(histograms_, parts_, kBins - 1, left);

  struct Part {
    std::size_t first = 0;  ///< of its candidates
    std::size_t count = 0;
    std::size_t to = 0;  ///< where its share of the result starts
    std::size_t ties = 0;
    Split split{};
  };
  std::array<Part, kMaxParts> parts{};
  for (std::size_t part = 0, at = 0; part < parts_; ++part) {
    const std::uint32_t* histogram = histograms_ + part * kBins;
    parts[part].first = at;
    for (std::size_t bin = top; bin < kBins; ++bin) parts[part].count += histogram[bin];
    at += parts[part].count;
  }
  parallel_parts(queue_, n, parts_, kBlock, [&](std::size_t part, std::size_t first, std::size_t last) {
    const Part& own = parts[part];
    gather(x, first, last, top << kTopShift, own.count, patterns_ + own.first, places_ + own.first);
  });

  std::uint32_t threshold = top;  // its leading digits
  const auto for_candidates = [&](const auto& body) {
    parallel_parts(queue_, parts_, parts_, 1, [&](std::size_t part, std::size_t, std::size_t) { body(part); });
  };
  for (const auto& [shift, width] : {std::pair{9, 11}, std::pair{0, 9}}) {
    const std::uint32_t mask = (1U << width) - 1;
    for_candidates([&, shift = shift, width = width](std::size_t part) {
      std::uint32_t* histogram = histograms_ + part * kBins;
      std::fill_n(histogram, kBins, 0U);
      for (std::size_t i = parts[part].first; i < parts[part].first + parts[part].count; ++i) {
        const std::uint32_t magnitude = patterns_[i] & kMagnitude;
        if (magnitude >> (shift + width) == threshold) ++histogram[magnitude >> shift & mask];
      }
    });
    threshold = threshold << width | cut_bin(histograms_, parts_, mask, left);
  }

  for_candidates([&](std::size_t part) {
    parts[part].split = split(patterns_ + parts[part].first, parts[part].count, threshold);
  });
  for (std::size_t part = 0, at = 0; part < parts_; ++part) {
    Part& own = parts[part];
    own.ties = std::min(left, own.split.equal);
    own.to = at;
    left -= own.ties;
    at += own.split.above + own.ties;
  }
  for_candidates([&](std::size_t part) {
    const Part& own = parts[part];
    std::size_t ties = own.ties;
    std::size_t at = own.to;
    const std::size_t end = own.to + own.split.above + own.ties;
    for (std::size_t i = own.first; at < end; ++i) {
      const std::uint32_t pattern = patterns_[i];
      const std::size_t tie = (pattern & kMagnitude) == threshold && ties > 0 ? 1 : 0;
      positions[at] = places_[i];
      if (values != nullptr) values[at] = law::one_nan(law::float_of(pattern));
      at += tie + ((pattern & kMagnitude) > threshold ? 1 : 0);
      ties -= tie;
    }
  });
}

}  // namespace gradtool::host
