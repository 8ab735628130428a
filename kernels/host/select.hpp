#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "lib/core/task_pool.hpp"
#include "lib/core/view.hpp"

namespace gradtool::host {

/// Where exactly k of n keys are cut off: all keys above `threshold`, and of those equal to it `ties`. Codecs that take
/// the first ones in index order choose the same whatever the threads.
struct Cut {
  std::uint32_t threshold = 0;
  std::size_t ties = 0;
};

/// Radix select over 31-bit keys in three digits of 11, 11 and 9 bits: n reads per digit, no copy of the keys.
/// Keys are patterns of non-negative floats, which order like the floats (NaN above infinity). For thresholds and
/// quantiles of keys that are computed on the fly; the k largest themselves are host::Largest's.
class Selector {
 public:
  static constexpr std::size_t kMaxParts = 64;
  static constexpr std::size_t kBins = 2048;

  /// Bytes of scratch for a selector, whatever n is.
  static constexpr std::size_t scratch_bytes() { return sizeof(std::uint32_t) * kMaxParts * kBins; }

  Selector(Queue<Space::host> queue, std::size_t n, HostView<std::byte> scratch)
      : queue_{queue},
        n_{n},
        parts_{std::min(kMaxParts, part_count(queue, n, 1 << 15))},
        histograms_{reinterpret_cast<std::uint32_t*>(scratch.data())} {}

  /// The cut for the k largest of key(0) .. key(n-1); 1 <= k <= n.
  template <class Key>
  [[nodiscard]] Cut find(std::size_t k, const Key& key) const {
    std::uint32_t prefix = 0;
    std::size_t left = k;  // how many of the keys with this prefix are wanted
    int shift = 20;
    for (const int width : {11, 11, 9}) {
      const std::uint32_t mask = (1u << width) - 1;
      const int above = shift + width;
      parallel_parts(queue_, n_, parts_, 16, [&](std::size_t part, std::size_t first, std::size_t last) {
        std::uint32_t* histogram = histograms_ + part * kBins;
        std::fill_n(histogram, kBins, 0u);
        if (above == 31) {
          for (std::size_t i = first; i < last; ++i) ++histogram[key(i) >> shift & mask];
        } else {
          for (std::size_t i = first; i < last; ++i) {
            const std::uint32_t bits = key(i);
            if (bits >> above == prefix) ++histogram[bits >> shift & mask];
          }
        }
      });
      std::uint32_t digit = mask;
      for (;; --digit) {
        std::size_t count = 0;
        for (std::size_t part = 0; part < parts_; ++part) count += histograms_[part * kBins + digit];
        if (count >= left || digit == 0) break;
        left -= count;
      }
      prefix = prefix << width | digit;
      shift = above == 31 ? 9 : 0;
    }
    return {prefix, left};
  }

 private:
  Queue<Space::host> queue_;
  std::size_t n_;
  std::size_t parts_;
  std::uint32_t* histograms_;
};

}  // namespace gradtool::host
