#include <fmt/format.h>

#include <charconv>
#include <set>
#include <string_view>

#include "lib/core/throw_error.hpp"
#include "lib/core/utf8.hpp"
#include "lib/import/array_file.hpp"

namespace gradtool {
namespace {

/// A list of shapes with more is not one of a model.
constexpr std::uint64_t kMostListBytes = std::uint64_t{64} << 20;

/// "64,3,7,7", or "scalar". False for anything else.
bool parse_shape(std::string_view text, std::vector<std::int64_t>& shape) {
  if (text == "scalar") return true;
  while (true) {
    std::int64_t extent = 0;
    const auto [end, status] = std::from_chars(text.data(), text.data() + text.size(), extent);
    if (status != std::errc{} || extent < 1) return false;
    shape.push_back(extent);
    text.remove_prefix(static_cast<std::size_t>(end - text.data()));
    if (text.empty()) return true;
    if (text.front() != ',') return false;
    text.remove_prefix(1);
  }
}

class Raw final : public ArrayFile {
 public:
  Raw(const std::string& path, const std::vector<ArrayInfo>& arrays) : ArrayFile{path} {
    arrays_ = arrays;
    std::uint64_t bytes = 0;
    for (const auto& info : arrays_) {
      offsets_.push_back(bytes);
      if (__builtin_add_overflow(bytes, info.elements * size_of(info.element), &bytes)) {
        file_.fail("the list of shapes has more than 2^64 bytes in all");
      }
    }
    if (bytes != file_.size()) {
      file_.fail(fmt::format("has {} bytes, but the list of shapes says {}", file_.size(), bytes));
    }
  }
};

}  // namespace

std::unique_ptr<ArrayFile> open_raw(const std::string& path, const std::vector<ArrayInfo>& arrays) {
  return std::make_unique<Raw>(path, arrays);
}

std::vector<ArrayInfo> read_shapes(const std::string& path, Element element) {
  const InputFile file{path};
  if (file.size() > kMostListBytes) file.fail("is larger than 64 MiB; must be a list of names and shapes");
  std::string text(static_cast<std::size_t>(file.size()), '\0');
  file.read(0, std::as_writable_bytes(std::span{text}));
  std::vector<ArrayInfo> arrays;
  std::set<std::string> names;
  std::size_t line_number = 0;
  for (std::size_t start = 0; start < text.size();) {
    const std::size_t end = std::min(text.find('\n', start), text.size());
    std::string_view line{text.data() + start, end - start};
    start = end + 1;
    ++line_number;
    constexpr std::string_view kSpace = " \t\r";
    line.remove_prefix(std::min(line.find_first_not_of(kSpace), line.size()));
    line = line.substr(0, line.find_last_not_of(kSpace) + 1);
    if (line.empty() || line.front() == '#') continue;
    const std::string where = fmt::format("{}: line {}", path, line_number);
    const std::size_t gap = line.find_first_of(kSpace);
    ArrayInfo info{.name = std::string{line.substr(0, gap)}, .element = element};
    std::string_view shape = gap == std::string_view::npos ? std::string_view{} : line.substr(gap);
    shape.remove_prefix(std::min(shape.find_first_not_of(kSpace), shape.size()));
    if (!parse_shape(shape, info.shape)) {
      throw_error(Fault::data, "{} is '{}'; must be a name and a shape, such as: conv1.weight 64,3,7,7", where,
                  printable(line.substr(0, 100)));
    }
    info.elements = count_elements(info.shape, size_of(element), where);
    if (!names.insert(info.name).second)
      throw_error(Fault::data, "{} has the name '{}' again", where, printable(info.name));
    arrays.push_back(std::move(info));
  }
  if (arrays.empty()) file.fail("names no array; must have a line for each, such as: conv1.weight 64,3,7,7");
  return arrays;
}

}  // namespace gradtool
