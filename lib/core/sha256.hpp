#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace gradtool {

/// The hash function SHA-256 (FIPS 180-4) for input that arrives in pieces. Hashes in reports can be compared with
/// those of `sha256sum`.
class Sha256 {
 public:
  /// `portable`: without the instructions that processors have for it, to be compared with them.
  explicit Sha256(bool portable = false) : portable_{portable} {}

  void update(std::span<const std::byte> bytes);
  /// 64 lower-case hexadecimal digits. Ends the stream; call once.
  [[nodiscard]] std::string hex();

 private:
  void add_blocks(std::span<const std::byte> blocks);  ///< whole ones, of 64 bytes

  bool portable_;
  std::array<std::uint32_t, 8> state_{0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                      0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::array<std::byte, 64> buffer_{};
  std::uint64_t length_ = 0;
};

/// The hash of the bytes of a file. Throws Fault::data when the file cannot be opened.
[[nodiscard]] std::string sha256_of_file(const std::string& path);

}  // namespace gradtool
