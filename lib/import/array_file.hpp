#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "lib/core/error.hpp"

namespace gradtool {

/// Types of values that can be imported.
enum class Element : std::uint8_t { f16, bf16, f32, f64 };

[[nodiscard]] constexpr std::size_t size_of(Element element) {
  return element == Element::f64 ? 8 : element == Element::f32 ? 4 : 2;
}
[[nodiscard]] constexpr const char* name_of(Element element) {
  return element == Element::f64 ? "f64" : element == Element::f32 ? "f32" : element == Element::f16 ? "f16" : "bf16";
}

/// One array of a file.
struct ArrayInfo {
  std::string name{};
  std::vector<std::int64_t> shape{};  ///< extents of 0 or more
  std::uint64_t elements = 0;         ///< their product; its size in bytes fits 63 bits
  Element element = Element::f32;
  std::string foreign_type{};  ///< the name of a type that cannot be imported; such an array cannot be read
};

/// The product of the extents. Throws Fault::data, naming `what`, for more than 32 of them, a negative one, and a size
/// in bytes beyond 2^63.
[[nodiscard]] std::uint64_t count_elements(const std::vector<std::int64_t>& shape, std::size_t value_bytes,
                                           const std::string& what);

/// A regular file that is open for reading.
class InputFile {
 public:
  /// Throws Fault::data when there is no such file, or it is none that can be read from any place.
  explicit InputFile(std::string path);
  ~InputFile();
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;

  [[nodiscard]] const std::string& path() const { return path_; }
  [[nodiscard]] std::uint64_t size() const { return size_; }
  /// Reads out.size() bytes at `offset`; throws Fault::data when the file has fewer.
  void read(std::uint64_t offset, std::span<std::byte> out) const;
  /// Throws Fault::data with the path in front.
  [[noreturn]] void fail(const std::string& problem) const { throw Error{Fault::data, path_ + ": " + problem}; }

 private:
  std::string path_;
  std::uint64_t size_ = 0;
  int descriptor_ = -1;
};

/// A file of named arrays. Nothing that the file says of sizes is believed before it was compared with what is there,
/// so memory is bounded by constants, whatever the bytes.
class ArrayFile {
 public:
  virtual ~ArrayFile() = default;
  ArrayFile(const ArrayFile&) = delete;
  ArrayFile& operator=(const ArrayFile&) = delete;

  [[nodiscard]] const std::string& path() const { return file_.path(); }
  /// In the order of the file. Names are unique.
  [[nodiscard]] const std::vector<ArrayInfo>& arrays() const { return arrays_; }
  /// The values from `first` on, in C order and the machine's byte order: out.size() is a multiple of the element's
  /// size. Cheap from front to back; compressed arrays start again for any other place. Throws Fault::data when the
  /// bytes are damaged.
  virtual void read(std::size_t array, std::uint64_t first, std::span<std::byte> out) {
    file_.read(offsets_.at(array) + first * size_of(arrays_.at(array).element), out);
  }

 protected:
  explicit ArrayFile(const std::string& path) : file_{path} {}

  InputFile file_;
  std::vector<ArrayInfo> arrays_;
  std::vector<std::uint64_t> offsets_;  ///< of the arrays' values in the file, where they lie there as they are read
};

/// Hugging Face's safetensors: its own format, 8 bytes of length, a JSON header and the values.
[[nodiscard]] std::unique_ptr<ArrayFile> open_safetensors(const std::string& path);
/// One array of NumPy's save(); its name is `name`.
[[nodiscard]] std::unique_ptr<ArrayFile> open_npy(const std::string& path, const std::string& name);
/// The arrays of NumPy's savez() and savez_compressed().
[[nodiscard]] std::unique_ptr<ArrayFile> open_npz(const std::string& path);
/// Values of one type without any header, one array behind the other, in little-endian byte order.
[[nodiscard]] std::unique_ptr<ArrayFile> open_raw(const std::string& path, const std::vector<ArrayInfo>& arrays);

/// The arrays that a list of shapes names: a line for each, `conv1.weight 64,3,7,7`; `scalar` for no extent; empty
/// lines and what begins with # do not count. Throws Fault::data naming the file and the line.
[[nodiscard]] std::vector<ArrayInfo> read_shapes(const std::string& path, Element element);

}  // namespace gradtool
