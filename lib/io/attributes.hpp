#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lib/io/hdf5.hpp"

// Reading and writing attributes of HDF5 objects. The read functions accept what other programs write too: text of
// fixed or variable length, integers of any width and sign. `place` names `object` in messages. They return nothing
// when the attribute is absent and throw Fault::data when it has another type.
namespace gradtool::hdf5 {

[[nodiscard]] std::optional<std::string> read_text(hid_t object, const Place& place, const char* name);
[[nodiscard]] std::optional<std::int64_t> read_integer(hid_t object, const Place& place, const char* name);
/// A list of at most `max_count` integers. An empty list may have any type, because NumPy writes it as floats.
[[nodiscard]] std::optional<std::vector<std::int64_t>> read_integers(hid_t object, const Place& place, const char* name,
                                                                     std::size_t max_count);

/// The value; throws Fault::data "lacks the attribute '<name>'" when there is none.
template <class T>
[[nodiscard]] T required(std::optional<T> value, const Place& place, const char* name) {
  if (!value) place.fail(std::string{"lacks the attribute '"} + name + "'");
  return *std::move(value);
}

/// Writes a UTF-8 text of variable length, which h5py returns as str. The text ends at its first NUL.
void write_text(hid_t object, const char* name, const std::string& value);
void write_integer(hid_t object, const char* name, std::int64_t value);
void write_integers(hid_t object, const char* name, const std::vector<std::int64_t>& values);
/// Overwrites the value of an existing integer attribute.
void overwrite_integer(hid_t object, const char* name, std::int64_t value);

}  // namespace gradtool::hdf5
