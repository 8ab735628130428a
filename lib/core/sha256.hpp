#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace gradtool {

/// SHA-256 (FIPS 180-4), so that a report's file hash can be compared with `sha256sum`. Streaming.
class Sha256 {
 public:
  void update(std::span<const std::byte> bytes);
  /// 64 lower-case hexadecimal digits. Ends the stream; call once.
  [[nodiscard]] std::string hex();

 private:
  void block(const std::byte* bytes);

  std::array<std::uint32_t, 8> state_{0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                      0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::array<std::byte, 64> buffer_{};
  std::uint64_t length_ = 0;
};

/// Hash of a whole file's bytes. Throws Fault::data when it cannot be read.
[[nodiscard]] std::string sha256_of_file(const std::string& path);

}  // namespace gradtool
