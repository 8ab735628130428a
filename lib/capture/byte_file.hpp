#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace gradtool {

/// Reads a file from front to back and unpacks it when it is gzip-compressed. Every failure throws Fault::data with the
/// file's name.
class ByteFile {
 public:
  explicit ByteFile(std::string path);

  [[nodiscard]] const std::string& path() const { return path_; }
  /// Fills `out`. `what` names the part of the file, for the message when the file ends too early.
  void read(std::span<std::uint8_t> out, const char* what);
  /// Reads `count` bytes into a vector that grows as they arrive, so that a wrong count costs no more memory than the
  /// file is large.
  [[nodiscard]] std::vector<std::uint8_t> read_many(std::uint64_t count, const char* what);
  /// Everything up to the end of the file, which has fewer than 4 GiB.
  [[nodiscard]] std::vector<std::uint8_t> read_all();
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
