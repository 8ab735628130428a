#pragma once

#include <cstddef>
#include <span>

#include "lib/core/view.hpp"

namespace gradtool::cuda {

/// Payloads that a kernel adds in one pass over its output, passed by value.
inline constexpr std::size_t kMostPayloads = 16;
struct Payloads {
  const std::byte* at[kMostPayloads] = {};
  unsigned count = 0;
};

/// Elements of the output that a warp takes at a time where it adds several payloads: they stay in the nearest cache
/// while the payloads are added one after the other. Whole windows and whole words of codes.
inline constexpr std::size_t kAddedAtOnce = 512;

/// Calls add(Payloads) for `payloads`, kMostPayloads at a time.
template <class Add>
void in_batches(std::span<const View<const std::byte, Space::cuda>> payloads, const Add& add) {
  for (std::size_t first = 0; first < payloads.size(); first += kMostPayloads) {
    Payloads batch;
    for (std::size_t i = first; i < payloads.size() && batch.count < kMostPayloads; ++i)
      batch.at[batch.count++] = payloads[i].data();
    add(batch);
  }
}

}  // namespace gradtool::cuda
