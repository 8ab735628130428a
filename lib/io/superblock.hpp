#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace gradtool::hdf5 {

/// The checksum of HDF5 metadata: Bob Jenkins' lookup3 `hashlittle` with initial value 0 (HDF5 file format
/// specification 3.0, section II.A; the hash is in the public domain).
[[nodiscard]] std::uint32_t metadata_checksum(std::span<const std::byte> bytes);

/// A version 3 superblock with 8-byte addresses and lengths: the first bytes of a file in HDF5 1.10's format.
class Superblock {
 public:
  static constexpr std::size_t kBytes = 48;

  /// Takes a copy of `bytes`. Returns false and changes nothing when they are not such a superblock.
  bool assign(std::span<const std::byte> bytes);
  [[nodiscard]] std::span<const std::byte> bytes() const { return bytes_; }
  /// The length of the file that the superblock states; 0 before `assign`.
  [[nodiscard]] std::uint64_t end_of_file() const;

  void set_end_of_file(std::uint64_t address);
  /// Clears the "file consistency flags", with which a program marks a file that it is writing.
  void clear_flags();

 private:
  void renew_checksum();

  std::array<std::byte, kBytes> bytes_{};
};

}  // namespace gradtool::hdf5
