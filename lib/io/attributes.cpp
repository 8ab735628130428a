#include "lib/io/attributes.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>

#include "lib/core/utf8.hpp"
#include "lib/io/hdf5.hpp"
#include "lib/io/raw_file.hpp"

namespace gradtool::hdf5 {
namespace {

/// Type conversion, for HDF5, from a reference to opaque bytes. It leaves the bytes as they are, so that HDF5 does not
/// follow the reference.
herr_t keep_bytes(hid_t, hid_t, H5T_cdata_t* data, std::size_t, std::size_t, std::size_t, void*, void*, hid_t) {
  if (data->command == H5T_CONV_INIT) data->need_bkg = H5T_BKG_NO;
  return 0;
}

// Types and spaces are made once, because a file may have a million attributes.

/// UTF-8 of variable length.
hid_t variable_text() {
  static const Datatype type = [] {
    Datatype text{checked_id(H5Tcopy(H5T_C_S1), "make a type")};
    checked(H5Tset_size(text.get(), H5T_VARIABLE), "make a type");
    checked(H5Tset_cset(text.get(), H5T_CSET_UTF8), "make a type");
    return text;
  }();
  return type.get();
}

hid_t scalar_space() {
  static const Dataspace space{checked_id(H5Screate(H5S_SCALAR), "make a data space")};
  return space.get();
}

hid_t opaque_reference() {
  static const hid_t type = [] {
    const hid_t opaque = checked_id(H5Tcreate(H5T_OPAQUE, HeapReference::kBytes), "make a type");
    checked(H5Tregister(H5T_PERS_SOFT, "text reference", variable_text(), opaque, keep_bytes), "make a type");
    return opaque;
  }();
  return type;
}

/// The value of `attribute`, which is one text of variable length. HDF5 stores such a text in a global heap of the
/// file.
///
/// HDF5 1.10 trusts every number in such a heap: a damaged heap makes it loop for ever, overrun memory or allocate
/// gigabytes. So HDF5 is only asked for the reference, and the heap is read here, with checks. Throws Fault::data,
/// naming `place` and `name`, when the text is damaged or longer than `max_bytes`.
std::string read_heap_text(hid_t attribute, std::size_t max_bytes, const Place& place, const char* name) {
  const auto fail = [&](const char* problem) { place.fail(std::string{"the attribute '"} + name + "' " + problem); };
  const hid_t opaque = opaque_reference();
  std::array<unsigned char, 2 * HeapReference::kBytes> bytes{};
  // A file whose addresses have another size than 8 bytes has references of another size; RawFile refuses it.
  if (H5Aget_storage_size(attribute) > bytes.size()) fail("cannot be read");
  if (H5Aread(attribute, opaque, bytes.data()) < 0) fail("cannot be read");
  const HeapReference reference{bytes};
  if (reference.length == 0) return {};
  if (reference.length > max_bytes) fail("is too long, or damaged");
  auto text = RawFile{attribute}.text(reference);
  if (!text) fail("is damaged");
  return *std::move(text);
}

constexpr std::size_t kMaxText = std::size_t{1} << 20;

/// An open attribute, its type and its extent.
struct OpenAttribute {
  Attribute attribute;
  Datatype type;
  H5T_class_t kind = H5T_NO_CLASS;
  std::size_t size = 0;  ///< bytes of one value
  int rank = 0;
  hsize_t count = 0;
};

[[noreturn]] void wrong(const Place& place, const char* name, const char* problem) {
  place.fail(std::string{"the attribute '"} + name + "' " + problem);
}

std::optional<OpenAttribute> find_attribute(hid_t object, const Place& place, const char* name) {
  be_quiet();
  const htri_t exists = H5Aexists(object, name);
  readable(exists, place, "its attributes cannot be read");
  if (exists == 0) return std::nullopt;
  OpenAttribute found;
  found.attribute = Attribute{H5Aopen(object, name, H5P_DEFAULT)};
  if (!found.attribute) wrong(place, name, "cannot be read");
  found.type = Datatype{H5Aget_type(found.attribute.get())};
  const Dataspace space{H5Aget_space(found.attribute.get())};
  if (!found.type || !space) wrong(place, name, "cannot be read");
  found.kind = H5Tget_class(found.type.get());
  found.size = H5Tget_size(found.type.get());
  found.rank = H5Sget_simple_extent_ndims(space.get());
  const hssize_t count = H5Sget_simple_extent_npoints(space.get());
  if (found.size == 0 || found.rank < 0 || count < 0) wrong(place, name, "cannot be read");
  found.count = static_cast<hsize_t>(count);
  return found;
}

std::string read_fixed(const OpenAttribute& found, const Place& place, const char* name) {
  if (found.size > kMaxText) wrong(place, name, "is longer than 1 MiB");
  std::string text(found.size, '\0');
  if (H5Aread(found.attribute.get(), found.type.get(), text.data()) < 0) wrong(place, name, "cannot be read");
  if (H5Tget_strpad(found.type.get()) == H5T_STR_SPACEPAD) {
    text.erase(text.find_last_not_of(' ') + 1);
  } else if (const auto end = text.find('\0'); end != std::string::npos) {
    text.resize(end);
  }
  return text;
}

std::vector<std::int64_t> read_values(const OpenAttribute& found, const Place& place, const char* name) {
  std::vector<std::int64_t> values(found.count);
  // h5py writes a bool as an enumeration over one byte.
  if (found.kind == H5T_ENUM && found.size == 1) {
    std::vector<signed char> bytes(found.count);
    if (H5Aread(found.attribute.get(), found.type.get(), bytes.data()) < 0) wrong(place, name, "cannot be read");
    values.assign(bytes.begin(), bytes.end());
    return values;
  }
  if (found.kind != H5T_INTEGER || found.size > 8) wrong(place, name, "is not of integer type");
  if (H5Tget_sign(found.type.get()) == H5T_SGN_NONE) {
    // Read as unsigned, because HDF5 would clamp values that do not fit into a signed type.
    std::vector<std::uint64_t> wide(found.count);
    if (H5Aread(found.attribute.get(), H5T_NATIVE_UINT64, wide.data()) < 0) wrong(place, name, "cannot be read");
    for (std::size_t i = 0; i < wide.size(); ++i) {
      if (wide[i] > std::numeric_limits<std::int64_t>::max()) wrong(place, name, "exceeds 9223372036854775807");
      values[i] = static_cast<std::int64_t>(wide[i]);
    }
    return values;
  }
  if (H5Aread(found.attribute.get(), H5T_NATIVE_INT64, values.data()) < 0) wrong(place, name, "cannot be read");
  return values;
}

}  // namespace

std::optional<std::string> read_text(hid_t object, const Place& place, const char* name) {
  const auto found = find_attribute(object, place, name);
  if (!found) return std::nullopt;
  if (found->kind != H5T_STRING || found->count != 1) wrong(place, name, "is not a single text");
  std::string text = H5Tis_variable_str(found->type.get()) > 0
                         ? read_heap_text(found->attribute.get(), kMaxText, place, name)
                         : read_fixed(*found, place, name);
  if (!is_utf8(text)) wrong(place, name, "is not valid UTF-8");
  return text;
}

std::optional<std::int64_t> read_integer(hid_t object, const Place& place, const char* name) {
  const auto found = find_attribute(object, place, name);
  if (!found) return std::nullopt;
  if (found->count != 1) wrong(place, name, "is not a single integer");
  return read_values(*found, place, name).front();
}

std::optional<std::vector<std::int64_t>> read_integers(hid_t object, const Place& place, const char* name,
                                                       std::size_t max_count) {
  const auto found = find_attribute(object, place, name);
  if (!found) return std::nullopt;
  if (found->rank > 1) wrong(place, name, "is not a one-dimensional list of integers");
  if (found->count > max_count) wrong(place, name, "has too many entries");
  if (found->count == 0) return std::vector<std::int64_t>{};
  return read_values(*found, place, name);
}

void write_text(hid_t object, const char* name, const std::string& value) {
  const std::string doing = std::string{"write the attribute '"} + name + "'";
  const hid_t type = variable_text();
  const Attribute attribute{
      checked_id(H5Acreate2(object, name, type, scalar_space(), H5P_DEFAULT, H5P_DEFAULT), doing)};
  // A path on a command line may be anything; readers refuse a text that is no UTF-8.
  const std::string valid = as_utf8(value);
  const char* const text = valid.c_str();
  checked(H5Awrite(attribute.get(), type, &text), doing);
}

void write_integer(hid_t object, const char* name, std::int64_t value) {
  const std::string doing = std::string{"write the attribute '"} + name + "'";
  const Attribute attribute{
      checked_id(H5Acreate2(object, name, H5T_STD_I64LE, scalar_space(), H5P_DEFAULT, H5P_DEFAULT), doing)};
  checked(H5Awrite(attribute.get(), H5T_NATIVE_INT64, &value), doing);
}

void write_integers(hid_t object, const char* name, const std::vector<std::int64_t>& values) {
  const std::string doing = std::string{"write the attribute '"} + name + "'";
  const hsize_t count = values.size();
  const Dataspace space{checked_id(H5Screate_simple(1, &count, nullptr), doing)};
  const Attribute attribute{
      checked_id(H5Acreate2(object, name, H5T_STD_I64LE, space.get(), H5P_DEFAULT, H5P_DEFAULT), doing)};
  if (count > 0) checked(H5Awrite(attribute.get(), H5T_NATIVE_INT64, values.data()), doing);
}

void overwrite_integer(hid_t object, const char* name, std::int64_t value) {
  const std::string doing = std::string{"write the attribute '"} + name + "'";
  const Attribute attribute{checked_id(H5Aopen(object, name, H5P_DEFAULT), doing)};
  checked(H5Awrite(attribute.get(), H5T_NATIVE_INT64, &value), doing);
}

}  // namespace gradtool::hdf5
