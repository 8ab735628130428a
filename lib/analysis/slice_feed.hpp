#pragma once

#include <span>

#include "lib/analysis/analysis.hpp"

namespace gradtool {

/// Where the slices of one part are read to, and how accumulators then see them: on the host, or on a GPU, to which
/// they are copied while the next one is read.
class SliceFeed {
 public:
  virtual ~SliceFeed() = default;
  /// Host memory for the part's elements of the next slice. The second moments' is empty where they are not wanted.
  [[nodiscard]] virtual std::span<float> gradient() = 0;
  [[nodiscard]] virtual std::span<float> second_moment() = 0;
  /// What was read last. It lasts until the slice after it, on a GPU until the step after it is handed out.
  [[nodiscard]] virtual Slice slice(std::size_t step, std::size_t worker, std::uint64_t first) = 0;
};

}  // namespace gradtool
