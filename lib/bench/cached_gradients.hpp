#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "lib/io/changed_source.hpp"

namespace gradtool {

/// Another source, whose values are kept in memory once they have been read: a bench reads every tensor of every step
/// many times, for each codec, and a file has to be read and inflated each time. A tensor of one step and worker is
/// read whole when any part of it is first asked for, and kept as float32 while all that is kept takes `most_bytes` or
/// fewer. Nothing is ever given up for something else: whoever goes round and round through more than fits still finds
/// as much of it as does fit. The rest is read from the source each time, and so are large tensors that a source only
/// copies (GradientSource::only_copies) from the system's cache. Not thread-safe.
class CachedGradients final : public ChangedSource {
 public:
  /// `system_keeps`: what is read of the file stays in the system's own cache.
  CachedGradients(std::unique_ptr<GradientSource> source, std::uint64_t most_bytes, bool system_keeps);

  void read(const ArrayPart& part, std::span<float> out) const override;

 private:
  using Values = std::vector<float>;  ///< of a whole tensor; empty until they are kept

  bool system_keeps_;
  mutable std::uint64_t left_;                       ///< bytes that may still be kept
  mutable std::array<std::vector<Values>, 3> kept_;  ///< of each array, for each tensor, step and worker
};

}  // namespace gradtool
