#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <set>
#include <utility>

#include "lib/core/utf8.hpp"
#include "lib/import/array_file.hpp"

// The format: https://github.com/huggingface/safetensors, "Format". 8 bytes, little-endian: the length of the header.
// The header: one JSON object {"name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}, ...}, whose offsets
// count from its end, with an optional member "__metadata__" of texts. Tensors lie side by side: no byte belongs to two
// of them, and none to none. Spaces may pad the header, NULs may not. In the metadata, which nobody reads here, numbers
// and null are taken too, since programs write them.
namespace gradtool {
namespace {

/// The limit of the format's own library. Headers have some 100 bytes for each tensor.
constexpr std::uint64_t kMostHeaderBytes = 100'000'000;

struct Entry {
  std::string name, dtype;
  std::optional<std::vector<std::int64_t>> shape;
  std::vector<std::int64_t> offsets;
};

/// Takes the header's events from the parser, because a tree of a hostile header would take many times its size.
/// Returning false stops the parser; `problem` then says why.
class HeaderReader final : public nlohmann::json_sax<nlohmann::json> {
 public:
  std::vector<Entry> entries;
  std::string problem;

  bool null() override { return (depth_ == 1 && key_ == "__metadata__") || plain_metadata() || wrong("null"); }
  bool boolean(bool) override { return plain_metadata() || wrong("a truth value"); }
  bool number_float(number_float_t, const string_t&) override { return plain_metadata() || wrong("a fraction"); }
  bool binary(binary_t&) override { return wrong("binary data"); }
  bool number_integer(number_integer_t) override { return plain_metadata() || wrong("a negative number"); }
  bool number_unsigned(number_unsigned_t value) override {
    if (plain_metadata()) return true;
    if (metadata_ || depth_ != 2 || !in_list_) return wrong("a number");
    if (value > static_cast<number_unsigned_t>(std::numeric_limits<std::int64_t>::max())) return wrong("a huge number");
    auto& list = key_ == "shape" ? *entries.back().shape : entries.back().offsets;
    // One more than either may have is enough to see that there are too many.
    if (list.size() > 32) return wrong("a list of more than 32 numbers");
    list.push_back(static_cast<std::int64_t>(value));
    return true;
  }
  bool string(string_t& value) override {
    if (plain_metadata()) return true;
    if (depth_ != 2 || in_list_ || key_ != "dtype") return wrong("a text");
    entries.back().dtype = value;
    return true;
  }
  bool start_object(std::size_t) override {
    if (in_list_ || depth_ == 2) return wrong("an object");
    ++depth_;
    if (depth_ == 1) return true;
    metadata_ = key_ == "__metadata__";
    if (metadata_) return true;
    if (!names_.insert(key_).second) return problem = fmt::format("names '{}' twice", printable(key_)), false;
    entries.push_back({key_, "", {}, {}});
    return true;
  }
  bool end_object() override {
    --depth_;
    metadata_ = false;
    return true;
  }
  bool start_array(std::size_t) override {
    if (metadata_ || depth_ != 2 || in_list_ || (key_ != "shape" && key_ != "data_offsets")) return wrong("a list");
    in_list_ = true;
    if (key_ == "shape") entries.back().shape.emplace();
    if (key_ == "data_offsets") entries.back().offsets.clear();
    return true;
  }
  bool end_array() override {
    in_list_ = false;
    return true;
  }
  bool key(string_t& name) override {
    key_ = name;
    return true;
  }
  bool parse_error(std::size_t position, const std::string&, const nlohmann::detail::exception&) override {
    problem = fmt::format("is not JSON at its byte {}", position);
    return false;
  }

 private:
  [[nodiscard]] bool plain_metadata() const { return metadata_ && depth_ == 2; }
  bool wrong(const char* what) {
    problem = fmt::format("has {} at '{}', where the format has none", what, printable(key_.substr(0, 100)));
    return false;
  }

  std::set<std::string> names_;
  std::string key_;
  int depth_ = 0;
  bool in_list_ = false, metadata_ = false;
};

class Safetensors final : public ArrayFile {
 public:
  explicit Safetensors(const std::string& path) : ArrayFile{path} {
    std::array<std::byte, 8> prefix{};
    if (file_.size() < prefix.size()) file_.fail("is not a safetensors file: it has fewer than 8 bytes");
    file_.read(0, prefix);
    std::uint64_t length = 0;
    for (std::size_t i = prefix.size(); i-- > 0;) length = length << 8 | static_cast<std::uint64_t>(prefix[i]);
    if (length > file_.size() - prefix.size()) {
      file_.fail(fmt::format("is truncated, or no safetensors file: its header would have {} bytes, the file has {}",
                             length, file_.size()));
    }
    if (length > kMostHeaderBytes) file_.fail("has a header of more than 100 MB; must be at most that");
    std::string header(static_cast<std::size_t>(length), '\0');
    file_.read(prefix.size(), std::as_writable_bytes(std::span{header}));
    if (header.find('\0') != std::string::npos) file_.fail("its header has a NUL byte, which no JSON has");
    HeaderReader reader;
    const bool sound = nlohmann::json::sax_parse(header, &reader) && header.starts_with('{');
    if (!sound) {
      file_.fail("its header " + (reader.problem.empty() ? std::string{"is not a JSON object"} : reader.problem));
    }
    data_ = prefix.size() + length;
    for (const Entry& entry : reader.entries) add(entry);
    sort();
    expect_side_by_side();
  }

 private:
  void add(const Entry& entry) {
    const std::string what = fmt::format("the tensor '{}'", printable(entry.name));
    if (!entry.shape || entry.offsets.size() != 2) file_.fail(what + " lacks its shape or its two data_offsets");
    ArrayInfo info{.name = entry.name, .shape = *entry.shape};
    if (entry.dtype == "F32") {
      info.element = Element::f32;
    } else if (entry.dtype == "F16") {
      info.element = Element::f16;
    } else if (entry.dtype == "BF16") {
      info.element = Element::bf16;
    } else if (entry.dtype == "F64") {
      info.element = Element::f64;
    } else {
      info.foreign_type = entry.dtype.empty() ? "unnamed" : printable(entry.dtype.substr(0, 40));
    }
    const auto begin = static_cast<std::uint64_t>(entry.offsets[0]), end = static_cast<std::uint64_t>(entry.offsets[1]);
    if (begin > end || end > file_.size() - data_) {
      file_.fail(fmt::format("is truncated, or {} is damaged: its values would end at byte {} of {}", what, end,
                             file_.size() - data_));
    }
    const bool known = info.foreign_type.empty();
    if (known) info.elements = count_elements(info.shape, size_of(info.element), file_.path() + ": " + what);
    if (known && end - begin != info.elements * size_of(info.element)) {
      file_.fail(fmt::format("{} has {} bytes, but its shape says {}", what, end - begin,
                             info.elements * size_of(info.element)));
    }
    arrays_.push_back(std::move(info));
    offsets_.push_back(data_ + begin);
    ends_.push_back(data_ + end);
  }

  void expect_side_by_side() const {
    std::uint64_t next = data_;
    for (std::size_t i = 0; i < arrays_.size(); ++i) {
      if (offsets_[i] != next) {
        file_.fail(
            fmt::format("the tensor '{}' begins at byte {} of the values, where the one before ends at {}; they must "
                        "lie side by side",
                        printable(arrays_[i].name), offsets_[i] - data_, next - data_));
      }
      next = ends_[i];
    }
    if (next != file_.size())
      file_.fail(fmt::format("has {} bytes behind its last tensor; must have none", file_.size() - next));
  }

  /// By their places in the file, so that it is read from front to back.
  void sort() {
    std::vector<std::size_t> order(arrays_.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::stable_sort(order.begin(), order.end(), [&](auto a, auto b) {
      return std::pair{offsets_[a], ends_[a]} < std::pair{offsets_[b], ends_[b]};
    });
    std::vector<ArrayInfo> arrays;
    std::vector<std::uint64_t> offsets, ends;
    arrays.reserve(order.size()), offsets.reserve(order.size()), ends.reserve(order.size());
    for (const std::size_t i : order) {
      arrays.push_back(std::move(arrays_[i]));
      offsets.push_back(offsets_[i]), ends.push_back(ends_[i]);
    }
    arrays_ = std::move(arrays), offsets_ = std::move(offsets), ends_ = std::move(ends);
  }

  std::uint64_t data_ = 0;           ///< where the values begin
  std::vector<std::uint64_t> ends_;  ///< of the arrays' values in the file
};

}  // namespace

std::unique_ptr<ArrayFile> open_safetensors(const std::string& path) {
  return std::make_unique<Safetensors>(path);
}

}  // namespace gradtool
