#include "lib/io/plain_tensor.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <map>
#include <utility>

#include "lib/core/utf8.hpp"
#include "lib/io/schema.hpp"
#include "lib/io/superblock.hpp"

// Numbers of sections are those of the HDF5 file format specification 3.0.
namespace gradtool::hdf5 {
namespace {

using Bytes = std::span<const unsigned char>;

/// Something is not as gradtool writes it. It does not leave this file.
struct Unusual {};

void expect(bool usual) {
  if (!usual) throw Unusual{};
}

/// Takes numbers from the front of some bytes; throws Unusual where they end.
class Cursor {
 public:
  explicit Cursor(Bytes bytes) : left_{bytes} {}

  Bytes take(std::size_t count) {
    expect(count <= left_.size());
    const Bytes front = left_.first(count);
    left_ = left_.subspan(count);
    return front;
  }
  std::uint64_t number(std::size_t bytes) { return little_endian(take(bytes)); }
  void skip(std::size_t count) { take(count); }
  void tag(const char* text) { expect(std::memcmp(take(4).data(), text, 4) == 0); }
  [[nodiscard]] std::size_t left() const { return left_.size(); }

 private:
  Bytes left_;
};

/// The `count` bytes at `address`, whose last 4 are their checksum, without it.
std::vector<unsigned char> checked_block(RawFile& file, std::uint64_t address, std::uint64_t count) {
  constexpr std::uint64_t kMost = 1 << 16;  // more than any header that gradtool writes
  expect(count > 4 && count <= kMost);
  std::vector<unsigned char> bytes(count);
  expect(file.read(address, bytes));
  const Bytes content = Bytes{bytes}.first(count - 4);
  expect(metadata_checksum(std::as_bytes(content)) == little_endian(Bytes{bytes}.last(4)));
  bytes.resize(count - 4);
  return bytes;
}

constexpr std::uint64_t kUndefined = ~std::uint64_t{0};

/// The kinds of messages in an object header (IV.A.2) that are looked at. Others that gradtool's files have say nothing
/// about values: times of modification, fill values and comments.
enum class Kind : std::uint8_t {
  nil = 0,
  space = 1,
  link_info = 2,
  type = 3,
  old_fill = 4,
  fill = 5,
  link = 6,
  layout = 8,
  group_info = 10,
  attribute = 12,
  comment = 13,
  continuation = 16,
  modified = 18,
  attribute_info = 21
};

/// The messages of an object header of version 2 (IV.A.1.b), in order.
class ObjectHeader {
 public:
  ObjectHeader(RawFile& file, std::uint64_t address) {
    std::array<unsigned char, 34> front{};  // the longest prefix
    expect(file.read(address, front));
    Cursor prefix{front};
    prefix.tag("OHDR");
    expect(prefix.number(1) == 2);
    const std::uint64_t flags = prefix.number(1);
    ordered_ = (flags & 4U) != 0;
    prefix.skip(((flags & 0x20U) != 0 ? 16 : 0) + ((flags & 0x10U) != 0 ? 4 : 0));
    const std::uint64_t size = prefix.number(std::size_t{1} << (flags & 3U));
    const std::uint64_t header = front.size() - prefix.left();
    expect(size < (1U << 16));
    add(checked_block(file, address, header + size + 4), header);
    // A header has few continuations; the bound ends the loop also where one names itself.
    for (std::size_t i = 0; i < continuations_.size() && i < 16; ++i) {
      auto block = checked_block(file, continuations_[i].first, continuations_[i].second);
      expect(block.size() >= 4 && std::memcmp(block.data(), "OCHK", 4) == 0);
      add(std::move(block), 4);
    }
    expect(continuations_.size() <= 16);
  }

  /// Calls visit(message) for each message of the kind.
  template <class Visit>
  void each(Kind kind, Visit visit) const {
    for (const auto& [own, block, first, count] : messages_) {
      if (own == kind) visit(Cursor{Bytes{blocks_[block]}.subspan(first, count)});
    }
  }
  /// The only message of the kind.
  [[nodiscard]] Cursor one(Kind kind) const {
    std::optional<Cursor> found;
    each(kind, [&](Cursor message) { expect(!found), found = message; });
    expect(found.has_value());
    return *found;
  }
  /// Attributes and links are not moved to a heap, which is said where there are very many.
  void expect_all_here() const {
    each(Kind::attribute_info, [](Cursor message) { message.skip(1), expect_no_heap(message, 2); });
    each(Kind::link_info, [](Cursor message) { message.skip(1), expect_no_heap(message, 8); });
  }

 private:
  struct Message {
    Kind kind;
    std::size_t block, first, count;
  };

  /// The flags of an info message say whether an index of `index_bytes` comes before the heap's address.
  static void expect_no_heap(Cursor message, std::size_t index_bytes) {
    const std::uint64_t flags = message.number(1);
    if ((flags & 1U) != 0) message.skip(index_bytes);
    expect(message.number(8) == kUndefined);
  }

  void add(std::vector<unsigned char> block, std::size_t from) {
    const std::size_t head = ordered_ ? 6 : 4;
    // A rest that is shorter than the head of a message is a gap.
    for (std::size_t at = from; block.size() - at >= head;) {
      Cursor message{Bytes{block}.subspan(at)};
      const auto kind = static_cast<Kind>(message.number(1));
      const std::uint64_t count = message.number(2), flags = message.number(1);
      constexpr std::array kKnown{Kind::nil,        Kind::space,         Kind::link_info, Kind::type,
                                  Kind::old_fill,   Kind::fill,          Kind::link,      Kind::layout,
                                  Kind::group_info, Kind::attribute,     Kind::comment,   Kind::continuation,
                                  Kind::modified,   Kind::attribute_info};
      // Bit 1 says that the message lies elsewhere.
      expect(std::find(kKnown.begin(), kKnown.end(), kind) != kKnown.end() && (flags & 2U) == 0);
      message.skip(head - 4);
      Cursor content{message.take(count)};
      if (kind == Kind::continuation) {
        const std::uint64_t address = content.number(8);
        continuations_.emplace_back(address, content.number(8));
      }
      messages_.push_back({kind, blocks_.size(), at + head, count});
      at += head + count;
    }
    blocks_.push_back(std::move(block));
  }

  bool ordered_ = false;  ///< messages have a number of their creation
  std::vector<std::vector<unsigned char>> blocks_;
  std::vector<Message> messages_;
  std::vector<std::pair<std::uint64_t, std::uint64_t>> continuations_;  ///< address and bytes
};

/// A data space (IV.A.2.b), version 2: the extents, and the most that they may become.
struct Extents {
  std::vector<hsize_t> dims, most;
};

Extents extents_in(Cursor message) {
  expect(message.number(1) == 2);
  const std::uint64_t rank = message.number(1), flags = message.number(1), kind = message.number(1);
  expect(kind == (rank == 0 ? 0U : 1U) && rank <= 3);
  Extents extents;
  for (std::uint64_t i = 0; i < rank; ++i) extents.dims.push_back(message.number(8));
  extents.most = extents.dims;
  if ((flags & 1U) != 0) std::generate(extents.most.begin(), extents.most.end(), [&] { return message.number(8); });
  return extents;
}

/// An attribute (IV.A.2.m), version 3.
struct AttributeMessage {
  Bytes type, space, data;
};

/// A type of a text that lies in a heap: of variable length, of characters.
bool is_heap_text(Bytes type) {
  Cursor message{type};
  const std::uint64_t kind = message.number(1), bits = message.number(3);
  return (kind & 15U) == 9 && (bits & 15U) == 1 && message.number(4) == HeapReference::kBytes;
}

std::string text_in(RawFile& texts, const AttributeMessage& attribute) {
  constexpr std::uint64_t kMostText = 4096;
  expect(is_heap_text(attribute.type) && extents_in(Cursor{attribute.space}).dims.empty() &&
         attribute.data.size() == HeapReference::kBytes);
  const HeapReference reference{attribute.data};
  if (reference.length == 0) return {};
  expect(reference.length <= kMostText);
  auto text = texts.text(reference);
  expect(text && is_utf8(*text));
  return *std::move(text);
}

/// A list of signed 64-bit integers in little-endian order.
std::vector<std::int64_t> integers_in(const AttributeMessage& attribute) {
  const auto extents = extents_in(Cursor{attribute.space});
  expect(extents.dims.size() == 1 && extents.dims[0] <= schema::kMaxRank);
  Cursor type{attribute.type};
  // Class 0, little-endian, zeros as padding, signed; then the size, no offset and all 64 bits.
  expect((type.number(1) & 15U) == 0 && type.number(3) == 8 && type.number(4) == 8 && type.number(2) == 0 &&
         type.number(2) == 64);
  std::vector<std::int64_t> values;
  Cursor data{attribute.data};
  for (hsize_t i = 0; i < extents.dims[0]; ++i) values.push_back(static_cast<std::int64_t>(data.number(8)));
  return values;
}

std::map<std::string, AttributeMessage> attributes_of(const ObjectHeader& header) {
  std::map<std::string, AttributeMessage> attributes;
  header.each(Kind::attribute, [&](Cursor message) {
    expect(message.number(1) == 3 && message.number(1) == 0);  // neither type nor space lies elsewhere
    const std::uint64_t name = message.number(2), type = message.number(2), space = message.number(2);
    message.skip(1);  // ASCII or UTF-8
    const Bytes text = message.take(name);
    AttributeMessage attribute{message.take(type), message.take(space), {}};
    attribute.data = message.take(message.left());
    expect(name > 0 && text.back() == 0);
    expect(attributes.emplace(reinterpret_cast<const char*>(text.data()), attribute).second);
  });
  return attributes;
}

/// The hard links of a group (IV.A.2.g): name and address.
std::map<std::string, std::uint64_t> links_of(const ObjectHeader& header) {
  std::map<std::string, std::uint64_t> links;
  header.each(Kind::link, [&](Cursor message) {
    expect(message.number(1) == 1);
    const std::uint64_t flags = message.number(1);
    if ((flags & 8U) != 0) expect(message.number(1) == 0);  // a hard link
    message.skip(((flags & 4U) != 0 ? 8 : 0) + ((flags & 16U) != 0 ? 1 : 0));
    const Bytes name = message.take(message.number(std::size_t{1} << (flags & 3U)));
    expect(links.emplace(std::string{name.begin(), name.end()}, message.number(8)).second);
  });
  return links;
}

/// The type of the values, with the attribute that tells bfloat16 from an integer.
Dtype dtype_of(RawFile& texts, const ObjectHeader& header) {
  const auto is = [&](std::initializer_list<unsigned char> wanted) {
    Cursor type = header.one(Kind::type);
    if (type.left() < wanted.size()) return false;
    const Bytes bytes = type.take(wanted.size());
    // The upper half of the first byte is the version of the encoding.
    return (bytes[0] & 15U) == *wanted.begin() && std::equal(bytes.begin() + 1, bytes.end(), wanted.begin() + 1);
  };
  // Class 1: byte order and normalisation, place of the sign, size, offset, precision, then exponent and mantissa, each
  // with its place and size, and the bias of the exponent.
  if (is({1, 0x20, 31, 0, 4, 0, 0, 0, 0, 0, 32, 0, 23, 8, 0, 23, 127, 0, 0, 0})) return Dtype::f32;
  if (is({1, 0x20, 15, 0, 2, 0, 0, 0, 0, 0, 16, 0, 10, 5, 0, 10, 15, 0, 0, 0})) return Dtype::f16;
  expect(is({0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 16, 0}));
  const auto attributes = attributes_of(header);
  const auto dtype = attributes.find("dtype");
  expect(dtype != attributes.end() && text_in(texts, dtype->second) == "bfloat16");
  return Dtype::bf16;
}

/// How an extensible array (VII.D) indexes chunks, as a layout message says it.
struct ArrayShape {
  std::uint64_t bits, in_index, block_pointers, least_block, page_bits;
};

/// The addresses of `count` chunks in the extensible array at `address`: the first ones stand in its index block, the
/// others in data blocks, of which those are read whose addresses are in the index block too.
std::vector<std::uint64_t> array_elements(RawFile& file, std::uint64_t address, ArrayShape shape, std::size_t count) {
  constexpr std::uint64_t kHeaderBytes = 72;
  const auto header = checked_block(file, address, kHeaderBytes);
  Cursor fields{header};
  fields.tag("EAHD");
  expect(fields.number(2) == 0 && fields.number(1) == 8);  // version 0, of chunks without filters: 8 bytes each
  for (const std::uint64_t wanted :
       {shape.bits, shape.in_index, shape.least_block, shape.block_pointers, shape.page_bits})
    expect(fields.number(1) == wanted);
  fields.skip(6 * 8);
  const std::uint64_t index = fields.number(8);
  // Blocks of super blocks u = 0, 1, ...: 2^(u/2) blocks of 2^((u+1)/2) times the least. These are libraries' defaults.
  expect(shape.bits == 32 && shape.in_index == 4 && shape.least_block == 16 && shape.block_pointers == 4);
  constexpr std::array<std::uint64_t, 6> kBlocks{16, 32, 32, 32, 64, 64};
  constexpr std::uint64_t kSuperBlocks = 25;  // 1 + 32 - log2 of the least block - 4 whose blocks are in the index
  const auto block = checked_block(file, index, 14 + 8 * (shape.in_index + kBlocks.size() + kSuperBlocks) + 4);
  const auto begin = [&](Cursor& cursor, const char* tag) {
    cursor.tag(tag);
    expect(cursor.number(2) == 0 && cursor.number(8) == address);
  };
  Cursor elements{block};
  begin(elements, "EAIB");
  std::vector<std::uint64_t> found;
  for (std::uint64_t i = 0; i < shape.in_index; ++i) found.push_back(elements.number(8));
  for (const std::uint64_t size : kBlocks) {
    const std::uint64_t data = elements.number(8);
    if (found.size() >= count) break;
    const auto content = checked_block(file, data, 18 + 8 * size + 4);
    Cursor values{content};
    begin(values, "EADB");
    values.skip(4);
    for (std::uint64_t i = 0; i < size; ++i) found.push_back(values.number(8));
  }
  expect(found.size() >= count);
  found.resize(count);
  return found;
}

PlainSet read_set(RawFile& headers, RawFile& texts, std::uint64_t address, std::size_t rank) {
  const ObjectHeader header{headers, address};
  header.expect_all_here();
  PlainSet set;
  set.dtype = dtype_of(texts, header);
  const auto extents = extents_in(header.one(Kind::space));
  set.dims = extents.dims;
  expect(set.dims.size() == rank && std::equal(set.dims.begin() + 1, set.dims.end(), extents.most.begin() + 1));
  // Layout (IV.A.2.i), version 3 or 4. Contiguous: address and bytes.
  Cursor layout = header.one(Kind::layout);
  const std::uint64_t version = layout.number(1), kind = layout.number(1);
  if ((version == 3 || version == 4) && kind == 1) {
    set.chunk = set.dims;
    set.addresses = {layout.number(8)};
    std::uint64_t bytes = size_of(set.dtype);
    for (const hsize_t extent : set.dims) expect(!__builtin_mul_overflow(bytes, extent, &bytes));
    expect(extents.most == set.dims && bytes > 0 && layout.number(8) == bytes && set.addresses[0] != kUndefined);
    return set;
  }
  // Version 4 and chunked, without flags, then one extent of a chunk more than axes, the bytes of a value.
  expect(version == 4 && kind == 2 && extents.most[0] == H5S_UNLIMITED && layout.number(1) == 0 &&
         layout.number(1) == rank + 1);
  const std::uint64_t width = layout.number(1);
  expect(width >= 1 && width <= 8);
  std::uint64_t chunks = 1;
  for (std::size_t i = 0; i < rank; ++i) {
    set.chunk.push_back(layout.number(width));
    expect(set.chunk[i] > 0 && set.chunk[i] <= schema::kMaxChunkBytes);
    expect(!__builtin_mul_overflow(chunks, (set.dims[i] + set.chunk[i] - 1) / set.chunk[i], &chunks));
  }
  expect(layout.number(width) == size_of(set.dtype));
  constexpr std::uint64_t kExtensibleArray = 4;
  expect(layout.number(1) == kExtensibleArray);
  const ArrayShape shape{layout.number(1), layout.number(1), layout.number(1), layout.number(1), layout.number(1)};
  expect(chunks > 0 && chunks <= 1024);
  set.addresses = array_elements(headers, layout.number(8), shape, static_cast<std::size_t>(chunks));
  expect(std::find(set.addresses.begin(), set.addresses.end(), kUndefined) == set.addresses.end());
  return set;
}

}  // namespace

std::optional<PlainTensor> read_plain_tensor(RawFile& headers, RawFile& texts, std::uint64_t address) try {
  if constexpr (std::endian::native != std::endian::little) return std::nullopt;
  const ObjectHeader header{headers, address};
  header.expect_all_here();
  const auto attributes = attributes_of(header);
  const auto attribute = [&](const char* name) -> const AttributeMessage& {
    const auto found = attributes.find(name);
    expect(found != attributes.end());
    return found->second;
  };
  PlainTensor tensor;
  tensor.name = text_in(texts, attribute("name"));
  tensor.kind = text_in(texts, attribute("kind"));
  tensor.shape = integers_in(attribute("shape"));
  if (attributes.contains("layout")) tensor.layout = text_in(texts, attribute("layout"));
  const auto links = links_of(header);
  const auto set = [&](const char* name, std::size_t rank) -> std::optional<PlainSet> {
    const auto found = links.find(name);
    if (found == links.end()) return std::nullopt;
    return read_set(headers, texts, found->second, rank);
  };
  auto gradient = set("gradient", 3);
  expect(gradient.has_value());
  tensor.gradient = *std::move(gradient);
  tensor.second_moment = set("second_moment", 3);
  tensor.weight = set("weight", 2);
  return tensor;
} catch (const Unusual&) {
  return std::nullopt;
}

}  // namespace gradtool::hdf5
