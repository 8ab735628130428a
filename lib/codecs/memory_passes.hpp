#pragma once

#include <cstdint>
#include <string_view>

namespace gradtool {

/// The elements that a method must all have read before it can write the code of the first of them.
enum class ReadAgain : std::uint8_t {
  never,   ///< a block of elements at most, which a cache holds
  tensor,  ///< all of a tensor
  unit,    ///< all of what is encoded at once
};

/// The passes over memory that the definition of a method makes unavoidable, whatever the implementation. That the
/// payload is written in encoding and read in decoding, and that decoding writes every element of the result, holds for
/// all methods and is not said here; nor is the residual of error feedback, which is the reducer's. The conformance
/// suites hold this against the memory that implementations touch.
struct MemoryPasses {
  double reads = 1.0;  ///< the share of the gradient that encoding reads once, in float32, when no residual is kept
  /// When encoding reads the gradient a second time, unless a cache still holds that much of it.
  ReadAgain again = ReadAgain::never;
  std::string_view why = {};  ///< a clause that says why it reads twice, or less than all
  int kept = 0;               ///< float32 an element that the method keeps between steps, and reads and writes in each
  int side = 0;               ///< float32 an element of captured weights or second moments that encoding reads
  bool scatters = false;      ///< Codec::decode_add touches no elements but those that were sent

  /// Bytes that encoding n elements reads and writes beside its payload. `more`: float32 that are read beside one pass,
  /// elements that it reads a second time and side inputs.
  [[nodiscard]] double encode_bytes(double n, double more) const { return 4.0 * (n * (reads + 2.0 * kept) + more); }
};

}  // namespace gradtool
