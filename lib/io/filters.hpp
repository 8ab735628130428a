#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace gradtool::hdf5 {

/// The filters of the chunks of one data set, undone here and not by HDF5: version 1.10 inflates a chunk to whatever
/// size its bytes say, and then reads as many bytes as a chunk should have had.
class Filters {
 public:
  enum class Kind : std::uint8_t { deflate, shuffle, fletcher32 };

  Filters() = default;
  /// `kinds` is the order in which a writer applied them, with deflate once at most. `value_bytes` is what shuffle
  /// worked on, `chunk_bytes` the size of a chunk without filters.
  Filters(std::vector<Kind> kinds, std::size_t value_bytes, std::size_t chunk_bytes);

  [[nodiscard]] bool empty() const { return kinds_.empty(); }
  [[nodiscard]] std::size_t chunk_bytes() const { return chunk_bytes_; }
  /// The most bytes that a chunk can honestly occupy in a file.
  [[nodiscard]] std::size_t most_stored_bytes() const;

  /// Makes the chunk's values of the bytes that the file holds; bit i of `skipped` says that filter i was left out for
  /// this chunk. Returns nothing when they are not exactly one chunk, or when a checksum does not match. Never holds
  /// more than twice the size of a chunk.
  [[nodiscard]] std::vector<std::byte> undo(std::span<const std::byte> stored, std::uint32_t skipped) const;

 private:
  std::vector<Kind> kinds_;
  std::size_t value_bytes_ = 0, chunk_bytes_ = 0;
};

}  // namespace gradtool::hdf5
