#pragma once

#include <cstddef>
#include <memory>

#include "lib/core/view.hpp"

namespace gradtool {

/// Bit streams of the zfp library, each of a chunk of values as a one-dimensional field (Lindstrom 2014): at a fixed
/// rate, or to an absolute tolerance. Thread-safe; nothing allocates but the constructor.
class ZfpChunks {
 public:
  static constexpr std::size_t kChunk = 8192;  ///< values; threads share the work whatever their number
  [[nodiscard]] static std::size_t most_bytes();

  /// `rate`: bits per value; 0 for streams to a tolerance.
  explicit ZfpChunks(double rate);
  ~ZfpChunks();

  /// Of a chunk of `count` values at the fixed rate.
  [[nodiscard]] std::size_t rate_bytes(std::size_t count) const;
  /// Returns the bytes written to `to`, a multiple of 4.
  std::size_t write(const float* x, std::size_t count, float tolerance, std::byte* to) const;
  /// out += weight * the chunk's values. Fault::data for bytes that are none of such a chunk.
  void read_add(HostView<const std::byte> bytes, float tolerance, float weight, HostView<float> out) const;

 private:
  class Streams;
  double rate_;
  std::unique_ptr<Streams> streams_;
};

}  // namespace gradtool
