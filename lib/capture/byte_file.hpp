#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace gradtool {

/// Reads a file from front to back, through zlib when it is gzip-compressed. Every failure throws Fault::data naming
/// it.
class ByteFile {
 public:
  explicit ByteFile(std::string path);

  [[nodiscard]] const std::string& path() const { return path_; }
  /// Fills `out`; `what` names the part for the sentence about a file that ends before it.
  void read(std::span<std::uint8_t> out, const char* what);
  /// `count` bytes, appended to a vector that grows as they arrive: a false count costs no more memory than the file
  /// has.
  [[nodiscard]] std::vector<std::uint8_t> read_many(std::uint64_t count, const char* what);
  /// Throws unless the file ends here.
  void expect_end();

 private:
  std::size_t read_some(std::span<std::uint8_t> out);

  struct Close {
    void operator()(void* file) const noexcept;
  };
  std::string path_;
  std::unique_ptr<void, Close> file_;
};

}  // namespace gradtool
