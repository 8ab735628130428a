#include "lib/io/raw_file.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <limits>

namespace gradtool::hdf5 {
namespace {

/// Bytes before HDF5's own; empty when addresses or lengths have another size than 8 bytes.
std::optional<hsize_t> userblock(hid_t file) {
  const Properties creation{H5Fget_create_plist(file)};
  hsize_t bytes = 0;
  std::size_t addresses = 0, lengths = 0;
  if (H5Pget_userblock(creation.get(), &bytes) < 0 || H5Pget_sizes(creation.get(), &addresses, &lengths) < 0 ||
      addresses != 8 || lengths != 8)
    return std::nullopt;
  return bytes;
}

}  // namespace

std::uint64_t little_endian(std::span<const unsigned char> bytes) {
  std::uint64_t value = 0;
  for (std::size_t i = bytes.size(); i-- > 0;) value = value << 8 | bytes[i];
  return value;
}

RawFile::RawFile(hid_t object) : file_{H5Iget_file_id(object)} {
  void* handle = nullptr;
  struct stat now {};
  sound_ = H5Fget_vfd_handle(file_.get(), H5P_DEFAULT, &handle) >= 0 && fstat(*static_cast<int*>(handle), &now) == 0;
  if (!sound_) return;
  descriptor_ = *static_cast<int*>(handle);
  // A file has thousands of texts, and HDF5 copies a whole property list for the two numbers that are asked for here.
  thread_local struct stat known {};
  thread_local std::optional<hsize_t> base;
  const bool same = known.st_dev == now.st_dev && known.st_ino == now.st_ino &&
                    known.st_ctim.tv_sec == now.st_ctim.tv_sec && known.st_ctim.tv_nsec == now.st_ctim.tv_nsec;
  if (!same) base = userblock(file_.get());
  known = now;
  sound_ = base.has_value();
  base_ = base.value_or(0);
}

bool RawFile::read(std::uint64_t address, std::span<unsigned char> out) {
  if (out.size() > window_.size()) return read_now(address, out) == out.size();
  if (address < window_begin_ || address - window_begin_ > window_bytes_ ||
      out.size() > window_bytes_ - (address - window_begin_)) {
    window_begin_ = address;
    window_bytes_ = read_now(address, window_);
  }
  if (out.size() > window_bytes_) return false;
  std::copy_n(window_.begin() + static_cast<std::ptrdiff_t>(address - window_begin_), out.size(), out.begin());
  return true;
}

std::size_t RawFile::read_now(std::uint64_t address, std::span<unsigned char> out) const {
  constexpr std::uint64_t kLast = std::numeric_limits<off_t>::max();
  if (!sound_ || address > kLast - base_ || out.size() > kLast - base_ - address) return 0;
  const ssize_t got = ::pread(descriptor_, out.data(), out.size(), static_cast<off_t>(base_ + address));
  return got < 0 ? 0 : static_cast<std::size_t>(got);
}

/// A collection (HDF5 file format specification 3.0, section III.E) is a header of 16 bytes, which holds its size,
/// followed by objects. Each object has a header of 16 bytes and is padded to 8 bytes; object 0 is the free rest.
std::optional<std::string> RawFile::text(const HeapReference& wanted) {
  std::array<unsigned char, 16> header;
  if (!read(wanted.collection, header)) return std::nullopt;
  if (std::memcmp(header.data(), "GCOL\1", 5) != 0) return std::nullopt;
  const std::uint64_t size = little_endian(std::span{header}.subspan(8, 8));
  std::uint64_t offset = header.size();
  // Objects have 16-bit numbers; this bound ends the loop also in a damaged collection.
  for (int count = 0; count < 0x10000 && offset < size && size - offset >= header.size(); ++count) {
    if (wanted.collection > std::numeric_limits<std::uint64_t>::max() - offset) return std::nullopt;
    if (!read(wanted.collection + offset, header)) return std::nullopt;
    const std::uint64_t object = little_endian(std::span{header}.first(2));
    const std::uint64_t bytes = little_endian(std::span{header}.subspan(8, 8));
    const std::uint64_t available = size - offset - header.size();
    if (object == 0 || bytes > available) return std::nullopt;
    if (object == wanted.object) {
      if (wanted.length > bytes) return std::nullopt;
      std::string text(wanted.length, '\0');
      if (!read(wanted.collection + offset + header.size(),
                {reinterpret_cast<unsigned char*>(text.data()), text.size()}))
        return std::nullopt;
      // C strings may be stored together with their terminating zero.
      text.resize(std::min(text.size(), text.find('\0')));
      return text;
    }
    offset += header.size() + (bytes + 7) / 8 * 8;
  }
  return std::nullopt;
}

}  // namespace gradtool::hdf5
