#include "lib/io/heap_text.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <limits>
#include <span>

namespace gradtool::hdf5 {
namespace {

/// What an attribute holds instead of the text: its length, and the heap (collection) and object that have it.
struct Reference {
  std::uint64_t length, collection, object;
};
constexpr std::size_t kReferenceBytes = 16;

std::uint64_t little_endian(std::span<const unsigned char> bytes) {
  std::uint64_t value = 0;
  for (std::size_t i = bytes.size(); i-- > 0;) value = value << 8 | bytes[i];
  return value;
}

/// The "conversion" of a reference to opaque bytes: there is nothing to do, and HDF5 never follows it.
herr_t keep_bytes(hid_t, hid_t, H5T_cdata_t* data, std::size_t, std::size_t, std::size_t, void*, void*, hid_t) {
  if (data->command == H5T_CONV_INIT) data->need_bkg = H5T_BKG_NO;
  return 0;
}

hid_t opaque_reference() {
  static const hid_t type = [] {
    const hid_t opaque = checked_id(H5Tcreate(H5T_OPAQUE, kReferenceBytes), "make a type");
    const Datatype text{checked_id(H5Tcopy(H5T_C_S1), "make a type")};
    checked(H5Tset_size(text.get(), H5T_VARIABLE), "make a type");
    checked(H5Tregister(H5T_PERS_SOFT, "text reference", text.get(), opaque, keep_bytes), "make a type");
    return opaque;
  }();
  return type;
}

/// The file's bytes as HDF5 counts addresses: from the end of the user block.
class RawFile {
 public:
  explicit RawFile(hid_t object) : file_{H5Iget_file_id(object)} {
    const Properties creation{H5Fget_create_plist(file_.get())};
    std::size_t lengths = 0;
    void* handle = nullptr;
    sound_ = H5Pget_userblock(creation.get(), &base_) >= 0 &&
             H5Pget_sizes(creation.get(), &addresses_, &lengths) >= 0 && addresses_ == 8 && lengths == 8 &&
             H5Fget_vfd_handle(file_.get(), H5P_DEFAULT, &handle) >= 0;
    if (sound_) descriptor_ = *static_cast<int*>(handle);
  }
  /// False when the file has not that many bytes there.
  bool read(std::uint64_t address, std::span<unsigned char> out) const {
    constexpr std::uint64_t kLast = std::numeric_limits<off_t>::max();
    if (!sound_ || address > kLast - base_ || out.size() > kLast - base_ - address) return false;
    const ssize_t got = ::pread(descriptor_, out.data(), out.size(), static_cast<off_t>(base_ + address));
    return got >= 0 && static_cast<std::size_t>(got) == out.size();
  }

 private:
  File file_;
  hsize_t base_ = 0;
  std::size_t addresses_ = 0;
  bool sound_ = false;
  int descriptor_ = -1;
};

/// Walks a collection (HDF5 file format specification 3.0, section III.E): a header of 16 bytes with its size, then
/// objects, each with a header of 16 bytes and padded to 8; object 0 is the free rest. False when it is damaged.
bool find_text(const RawFile& file, const Reference& wanted, std::string& text) {
  std::array<unsigned char, 16> header;
  if (!file.read(wanted.collection, header)) return false;
  if (std::memcmp(header.data(), "GCOL\1", 5) != 0) return false;
  const std::uint64_t size = little_endian(std::span{header}.subspan(8, 8));
  std::uint64_t at = header.size();
  // No more objects than there are numbers for them, in case the walk does not end by itself.
  for (int count = 0; count < 0x10000 && at < size && size - at >= header.size(); ++count) {
    if (wanted.collection > std::numeric_limits<std::uint64_t>::max() - at) return false;
    if (!file.read(wanted.collection + at, header)) return false;
    const std::uint64_t object = little_endian(std::span{header}.first(2));
    const std::uint64_t bytes = little_endian(std::span{header}.subspan(8, 8));
    const std::uint64_t room = size - at - header.size();
    if (object == 0 || bytes > room) return false;
    if (object == wanted.object) {
      text.resize(wanted.length);
      return wanted.length <= bytes && file.read(wanted.collection + at + header.size(),
                                                 {reinterpret_cast<unsigned char*>(text.data()), text.size()});
    }
    at += header.size() + (bytes + 7) / 8 * 8;
  }
  return false;
}

}  // namespace

std::string read_heap_text(hid_t attribute, std::size_t max_bytes, const Place& place, const char* name) {
  const auto fail = [&](const char* problem) { place.fail(std::string{"the attribute '"} + name + "' " + problem); };
  const hid_t opaque = opaque_reference();
  std::array<unsigned char, 2 * kReferenceBytes> bytes{};
  // A file with addresses of unusual size has references of another size, and RawFile refuses it.
  if (H5Aget_storage_size(attribute) > bytes.size()) fail("cannot be read");
  if (H5Aread(attribute, opaque, bytes.data()) < 0) fail("cannot be read");
  const std::span all{bytes};
  const Reference reference{little_endian(all.first(4)), little_endian(all.subspan(4, 8)),
                            little_endian(all.subspan(12, 4))};
  std::string text;
  if (reference.length == 0) return text;
  if (reference.length > max_bytes) fail("is too long, or damaged");
  if (!find_text(RawFile{attribute}, reference, text)) fail("is damaged");
  // C strings may be stored with their end.
  text.resize(std::min(text.size(), text.find('\0')));
  return text;
}

}  // namespace gradtool::hdf5
