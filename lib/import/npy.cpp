#include "lib/import/npy.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <string_view>

#include "lib/core/utf8.hpp"

// The format: numpy.lib.format. "\x93NUMPY", two bytes of version, the length of the header (2 bytes in version 1, 4 in
// 2 and 3), and the header, which is a Python dictionary: {'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }.
namespace gradtool {
namespace {

/// A reader of the one dictionary that the format allows.
class DictReader {
 public:
  explicit DictReader(std::string_view text) : text_{text} {}

  /// Fills what it finds; false when the text is no such dictionary.
  bool read(std::optional<std::string>& descr, std::optional<bool>& fortran,
            std::optional<std::vector<std::int64_t>>& shape) {
    if (!take('{')) return false;
    while (!take('}')) {
      std::string key;
      if (!quoted(key) || !take(':')) return false;
      bool sound = false;
      if (key == "descr" && !descr) {
        std::string text;
        // A list describes a record of several fields; it is kept as text, as the name of a type that nobody knows.
        sound = quoted(text) || list(text);
        descr = std::move(text);
      } else if (key == "fortran_order" && !fortran) {
        const bool yes = word("True");
        sound = yes || word("False");
        fortran = yes;
      } else if (key == "shape" && !shape) {
        sound = tuple(shape.emplace());
      }
      if (!sound) return false;
      if (!take(',') && !at('}')) return false;
    }
    space();
    return text_.empty();
  }

 private:
  void space() { text_.remove_prefix(std::min(text_.find_first_not_of(" \t\n"), text_.size())); }
  bool at(char c) {
    space();
    return text_.starts_with(c);
  }
  bool take(char c) {
    if (!at(c)) return false;
    text_.remove_prefix(1);
    return true;
  }
  bool word(std::string_view wanted) {
    space();
    if (!text_.starts_with(wanted)) return false;
    text_.remove_prefix(wanted.size());
    return true;
  }
  bool quoted(std::string& out) {
    if (!at('\'') && !at('"')) return false;
    const std::size_t end = text_.find(text_.front(), 1);
    if (end == std::string_view::npos) return false;
    out = text_.substr(1, end - 1);
    text_.remove_prefix(end + 1);
    return true;
  }
  bool list(std::string& out) {
    if (!at('[')) return false;
    const std::size_t end = text_.find(']');
    if (end == std::string_view::npos) return false;
    out = text_.substr(0, end + 1);
    text_.remove_prefix(end + 1);
    return true;
  }
  bool tuple(std::vector<std::int64_t>& out) {
    if (!take('(')) return false;
    bool comma = true;  // (8) is a number in Python, (8,) a tuple
    while (!take(')')) {
      space();
      std::int64_t value = 0;
      const auto [end, status] = std::from_chars(text_.data(), text_.data() + text_.size(), value);
      if (status != std::errc{} || out.size() > 64) return false;
      text_.remove_prefix(static_cast<std::size_t>(end - text_.data()));
      out.push_back(value);
      take('L');  // Python 2 wrote its long integers so
      comma = take(',');
      if (!comma && !at(')')) return false;
    }
    return comma || out.size() != 1;
  }

  std::string_view text_;
};

class Npy final : public ArrayFile {
 public:
  Npy(const std::string& path, const std::string& name) : ArrayFile{path} {
    std::vector<std::byte> start(std::min<std::uint64_t>(kMostNpyHeader, file_.size()));
    file_.read(0, start);
    header_ = parse_npy_header(start, file_.size(), path);
    header_.info.name = name;
    arrays_.push_back(header_.info);
  }

  void read(std::size_t, std::uint64_t first, std::span<std::byte> out) override {
    const std::size_t size = size_of(header_.info.element);
    if (!header_.fortran) {
      file_.read(header_.bytes + first * size, out);
    } else {
      if (turned_.empty()) {
        turned_ = turn_fortran(header_.info, file_.path(), [this](std::uint64_t offset, std::span<std::byte> to) {
          file_.read(header_.bytes + offset, to);
        });
      }
      std::copy_n(turned_.begin() + static_cast<std::ptrdiff_t>(first * size), out.size(), out.begin());
    }
    if (header_.big_endian) swap_bytes(out, size);
  }

 private:
  NpyHeader header_;
  std::vector<std::byte> turned_;  ///< the whole array in C order, where the file has it in Fortran order
};

}  // namespace

NpyHeader parse_npy_header(std::span<const std::byte> bytes, std::uint64_t file_bytes, const std::string& what) {
  const auto fail = [&](const std::string& problem) { throw Error{Fault::data, what + ": " + problem}; };
  const std::string_view text{reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  constexpr std::string_view kMagic = "\x93NUMPY";
  if (text.size() < 10 || !text.starts_with(kMagic)) fail("is not a .npy file: it does not begin with \\x93NUMPY");
  const auto byte = [&](std::size_t i) { return static_cast<std::uint64_t>(bytes[i]); };
  const std::uint64_t version = byte(6);
  if (version < 1 || version > 3) fail(fmt::format("is of .npy version {}; must be 1, 2 or 3", version));
  const std::size_t start = version == 1 ? 10 : 12;
  if (text.size() < start) fail("is truncated");
  std::uint64_t length = byte(8) | byte(9) << 8;
  if (version > 1) length |= byte(10) << 16 | byte(11) << 24;
  if (length > file_bytes - start) fail("is truncated");
  if (length > kMostNpyHeader - start) fail("has a header of more than 64 KiB");

  std::optional<std::string> descr;
  std::optional<bool> fortran;
  std::optional<std::vector<std::int64_t>> shape;
  if (!DictReader{text.substr(start, length)}.read(descr, fortran, shape) || !descr || !fortran || !shape) {
    fail("has a damaged header; must be a dictionary of descr, fortran_order and shape");
  }
  NpyHeader header;
  header.bytes = start + length;
  header.info.shape = *shape;
  const std::string type = descr->size() == 3 ? descr->substr(1) : "";
  if (type == "f2") {
    header.info.element = Element::f16;
  } else if (type == "f4") {
    header.info.element = Element::f32;
  } else if (type == "f8") {
    header.info.element = Element::f64;
  }
  const char order = descr->empty() ? '\0' : descr->front();
  const bool known = (type == "f2" || type == "f4" || type == "f8") && (order == '<' || order == '>' || order == '=');
  if (!known) {
    header.info.foreign_type = printable(descr->substr(0, 40));
    return header;
  }
  header.big_endian = order == '>';
  const std::size_t size = size_of(header.info.element);
  header.info.elements = count_elements(*shape, size, what + ": the array");
  const auto real = std::count_if(shape->begin(), shape->end(), [](std::int64_t extent) { return extent > 1; });
  header.fortran = *fortran && real > 1;
  const std::uint64_t values = file_bytes - header.bytes;
  if (values < header.info.elements * size) {
    fail(fmt::format("is truncated: its shape says {} bytes of values, there are {}", header.info.elements * size,
                     values));
  }
  if (values > header.info.elements * size) {
    fail(fmt::format("has {} bytes behind its values; must be one array and nothing else",
                     values - header.info.elements * size));
  }
  return header;
}

void swap_bytes(std::span<std::byte> values, std::size_t value_bytes) {
  for (std::size_t i = 0; i + value_bytes <= values.size(); i += value_bytes) {
    std::reverse(values.begin() + static_cast<std::ptrdiff_t>(i),
                 values.begin() + static_cast<std::ptrdiff_t>(i + value_bytes));
  }
}

std::unique_ptr<ArrayFile> open_npy(const std::string& path, const std::string& name) {
  return std::make_unique<Npy>(path, name);
}

}  // namespace gradtool
