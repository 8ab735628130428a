#include "lib/import/array_file.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <limits>
#include <span>
#include <string_view>
#include <utility>

#include "lib/core/files.hpp"
#include "lib/io/schema.hpp"

namespace gradtool {

std::uint64_t count_elements(const std::vector<std::int64_t>& shape, std::size_t value_bytes, const std::string& what) {
  const auto fail = [&](const std::string& problem) { throw Error{Fault::data, what + problem}; };
  if (shape.size() > schema::kMaxRank) fail(" has more than 32 dimensions");
  std::uint64_t count = 1;
  for (const std::int64_t extent : shape) {
    if (extent < 0) fail(" has a negative extent");
    if (extent == 0) return 0;
  }
  constexpr std::uint64_t kMostBytes = std::numeric_limits<std::int64_t>::max();
  for (const std::int64_t extent : shape) {
    if (__builtin_mul_overflow(count, static_cast<std::uint64_t>(extent), &count) || count > kMostBytes / value_bytes) {
      fail(" has a shape whose product is beyond 2^63 bytes");
    }
  }
  return count;
}

InputFile::InputFile(std::string path) : path_{std::move(path)} {
  // Without O_NONBLOCK the opening of a pipe would wait for a writer.
  descriptor_ = open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  struct stat found {};
  if (descriptor_ < 0 || fstat(descriptor_, &found) != 0) {
    if (errno == ENOENT) fail("there is no such file");
    fail(std::string{"cannot be read ("} + std::strerror(errno) + ")");
  }
  if (!S_ISREG(found.st_mode)) {
    close(std::exchange(descriptor_, -1));
    fail(S_ISDIR(found.st_mode) ? "is a folder, not a file" : "is not a regular file");
  }
  size_ = static_cast<std::uint64_t>(found.st_size);
  std::array<char, kLfsPointer.size()> begin{};
  if (size_ < begin.size()) return;
  read(0, std::as_writable_bytes(std::span{begin}));
  if (std::string_view{begin.data(), begin.size()} == kLfsPointer) {
    close(std::exchange(descriptor_, -1));
    fail(kLfsPointerProblem);
  }
}

InputFile::~InputFile() {
  if (descriptor_ >= 0) close(descriptor_);
}

void InputFile::read(std::uint64_t offset, std::span<std::byte> out) const {
  if (offset > size_ || out.size() > size_ - offset) fail("is truncated");
  while (!out.empty()) {
    const ssize_t got = pread(descriptor_, out.data(), out.size(), static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail(std::string{"cannot be read ("} + std::strerror(errno) + ")");
    if (got == 0) fail("is truncated: it became shorter while it was read");
    out = out.subspan(static_cast<std::size_t>(got));
    offset += static_cast<std::uint64_t>(got);
  }
}

}  // namespace gradtool
