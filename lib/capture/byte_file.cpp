#include "lib/capture/byte_file.hpp"

#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

#include "lib/core/throw_error.hpp"

namespace gradtool {
namespace {

constexpr std::uint64_t kChunk = std::uint64_t{16} << 20;     ///< bytes that are read at a time
constexpr std::uint64_t kMostBytes = std::uint64_t{4} << 30;  ///< of a file that is read as a whole
gzFile handle(void* file) {
  return static_cast<gzFile>(file);
}

}  // namespace

void ByteFile::Close::operator()(void* file) const noexcept {
  gzclose(handle(file));
}

ByteFile::ByteFile(std::string path) : path_{std::move(path)} {
  if (std::filesystem::is_directory(path_)) throw_error(Fault::data, "'{}' is a folder, not a file", path_);
  errno = 0;
  file_.reset(gzopen(path_.c_str(), "rb"));
  if (!file_) throw_error(Fault::data, "'{}' cannot be read: {}", path_, std::strerror(errno));
  gzbuffer(handle(file_.get()), 256 * 1024);
}

std::size_t ByteFile::read_some(std::span<std::uint8_t> out) {
  std::size_t got = 0;
  while (got < out.size()) {
    const auto wanted = static_cast<unsigned>(std::min<std::uint64_t>(out.size() - got, kChunk));
    const int count = gzread(handle(file_.get()), out.data() + got, wanted);
    int status = Z_OK;
    const char* message = gzerror(handle(file_.get()), &status);
    // A compressed stream that is cut short returns its last good bytes and then Z_BUF_ERROR.
    if (count < 0 || (status != Z_OK && status != Z_STREAM_END)) {
      throw_error(Fault::data, "'{}' cannot be read: {}", path_,
                  status == Z_BUF_ERROR ? "the compressed data are cut short" : message);
    }
    if (count == 0) break;
    got += static_cast<std::size_t>(count);
  }
  return got;
}

void ByteFile::read(std::span<std::uint8_t> out, const char* what) {
  const std::size_t got = read_some(out);
  if (got == out.size()) return;
  throw_error(Fault::data, "'{}' is truncated: {} of the {} bytes of its {}", path_, got, out.size(), what);
}

std::vector<std::uint8_t> ByteFile::read_many(std::uint64_t count, const char* what) {
  std::vector<std::uint8_t> bytes;
  while (bytes.size() < count) {
    const std::size_t old = bytes.size();
    bytes.resize(old + static_cast<std::size_t>(std::min(kChunk, count - old)));
    const std::size_t got = read_some(std::span{bytes}.subspan(old));
    if (old + got == bytes.size()) continue;
    throw_error(Fault::data, "'{}' is truncated: {} of the {} bytes of its {}", path_, old + got, count, what);
  }
  return bytes;
}

std::vector<std::uint8_t> ByteFile::read_all() {
  const auto limit = [&](std::uint64_t size) {
    if (size >= kMostBytes) throw_error(Fault::data, "'{}' has 4 GiB or more; give a part of it", path_);
  };
  limit(std::filesystem::file_size(path_));
  std::vector<std::uint8_t> bytes;
  for (std::size_t size = 0;; size = bytes.size()) {
    limit(size);
    bytes.resize(size + static_cast<std::size_t>(kChunk));
    const std::size_t got = read_some(std::span{bytes}.subspan(size));
    if (size + got == bytes.size()) continue;
    bytes.resize(size + got);
    return bytes;
  }
}

void ByteFile::expect_end() {
  std::uint8_t extra = 0;
  if (read_some({&extra, 1}) != 0) throw_error(Fault::data, "'{}' is longer than its header says", path_);
}

}  // namespace gradtool
