#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "lib/io/hdf5.hpp"

namespace gradtool::hdf5 {

/// The number that `bytes`, at most 8 of them, are in little-endian order.
[[nodiscard]] std::uint64_t little_endian(std::span<const unsigned char> bytes);

/// The reference that an attribute holds instead of a text of variable length: the length of the text, the address of
/// its heap (a "collection" in the words of HDF5) and the number of the object in it.
struct HeapReference {
  std::uint64_t length, collection, object;

  static constexpr std::size_t kBytes = 16;
  explicit HeapReference(std::span<const unsigned char> bytes)
      : length{little_endian(bytes.first(4))},
        collection{little_endian(bytes.subspan(4, 8))},
        object{little_endian(bytes.subspan(12, 4))} {}
};

/// Reads bytes of an open file at HDF5's addresses, which count from the end of the user block. It keeps a window of
/// what it read last, because what belongs together mostly lies together.
class RawFile {
 public:
  /// `object`: anything of the file, which must stay open. A file that is not a plain one, or whose addresses have
  /// another size than 8 bytes, has no bytes.
  explicit RawFile(hid_t object);

  /// Returns false when the file does not have that many bytes at `address`.
  bool read(std::uint64_t address, std::span<unsigned char> out);
  /// The text that `wanted` refers to, or nothing when its collection is damaged.
  [[nodiscard]] std::optional<std::string> text(const HeapReference& wanted);

 private:
  std::size_t read_now(std::uint64_t address, std::span<unsigned char> out) const;

  File file_;
  hsize_t base_ = 0;
  bool sound_ = false;
  int descriptor_ = -1;
  std::array<unsigned char, 4096> window_{};  ///< bytes from `window_begin_` on; HDF5's collections mostly have as many
  std::uint64_t window_begin_ = 0;
  std::size_t window_bytes_ = 0;
};

}  // namespace gradtool::hdf5
