#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lib/io/hdf5.hpp"

// Attributes of any producer: text of fixed or variable length, integers of any width and sign.
// `place` is where `object` lies. Absent: nullopt. Present and of another kind: Fault::data.
namespace gradtool::hdf5 {

[[nodiscard]] std::optional<std::string> read_text(hid_t object, const Place& place, const char* name);
[[nodiscard]] std::optional<std::int64_t> read_integer(hid_t object, const Place& place, const char* name);
/// One dimension of at most `max_count` integers; an empty list may be of any type, as NumPy writes it.
[[nodiscard]] std::optional<std::vector<std::int64_t>> read_integers(hid_t object, const Place& place, const char* name,
                                                                     std::size_t max_count);

/// The value, or Fault::data "lacks the attribute '<name>'".
template <class T>
[[nodiscard]] T required(std::optional<T> value, const Place& place, const char* name) {
  if (!value) place.fail(std::string{"lacks the attribute '"} + name + "'");
  return *std::move(value);
}

/// UTF-8 of variable length, which h5py hands out as str. Ends at the first NUL.
void write_text(hid_t object, const char* name, const std::string& value);
void write_integer(hid_t object, const char* name, std::int64_t value);
void write_integers(hid_t object, const char* name, const std::vector<std::int64_t>& values);
/// Gives an existing integer attribute another value, in place.
void overwrite_integer(hid_t object, const char* name, std::int64_t value);

}  // namespace gradtool::hdf5
