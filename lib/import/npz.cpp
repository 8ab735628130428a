#include <fmt/format.h>
#include <zlib.h>

#include <algorithm>
#include <array>
#include <limits>
#include <optional>
#include <set>
#include <string_view>

#include "lib/core/utf8.hpp"
#include "lib/import/npy.hpp"

// The container is ZIP (PKWARE's APPNOTE.TXT 6.3; section numbers below are its own), each member a .npy file.
namespace gradtool {
namespace {

constexpr std::uint64_t kMostMembers = std::uint64_t{1} << 20;
constexpr std::uint64_t kMostDirectoryBytes = std::uint64_t{256} << 20;
/// Deflate makes at most so many bytes of one: a match of 258 bytes takes two bits at least.
constexpr std::uint64_t kMostInflation = 1032;

/// A number of `count` bytes, little-endian.
std::uint64_t number(std::span<const std::byte> bytes, std::size_t at, std::size_t count) {
  std::uint64_t value = 0;
  for (std::size_t i = count; i-- > 0;) value = value << 8 | static_cast<std::uint64_t>(bytes[at + i]);
  return value;
}

struct Member {
  std::string name;
  std::uint64_t header = 0;  ///< where its local header is
  std::uint64_t stored = 0, bytes = 0;
  std::uint32_t crc = 0;
  bool deflated = false;
};

/// A member's bytes, from front to back.
class MemberStream {
 public:
  MemberStream(const InputFile& file, const Member& member) : file_{file}, member_{member} {
    // The local header has a name and an extra field of its own lengths (4.3.7).
    std::array<std::byte, 30> local{};
    file_.read(member.header, local);
    if (number(local, 0, 4) != 0x04034b50) fail("has no local header");
    at_ = member.header + local.size() + number(local, 26, 2) + number(local, 28, 2);
    if (at_ > file_.size() || member.stored > file_.size() - at_) fail("is truncated");
    left_ = member.stored;
    if (member.deflated && inflateInit2(&stream_, -MAX_WBITS) != Z_OK) {
      throw Error{Fault::backend, "zlib cannot be started"};
    }
  }
  ~MemberStream() {
    if (member_.deflated) inflateEnd(&stream_);
  }
  MemberStream(const MemberStream&) = delete;
  MemberStream& operator=(const MemberStream&) = delete;

  [[nodiscard]] std::uint64_t position() const { return position_; }
  /// The next out.size() bytes, which the member has; throws Fault::data where they are damaged.
  void read(std::span<std::byte> out) {
    if (member_.deflated) {
      inflate_to(out);
    } else {
      file_.read(at_, out);
      at_ += out.size(), left_ -= out.size();
    }
    crc_ = static_cast<std::uint32_t>(crc32_z(crc_, reinterpret_cast<const Bytef*>(out.data()), out.size()));
    position_ += out.size();
    if (position_ == member_.bytes && crc_ != member_.crc) fail("is damaged: its checksum does not match");
  }

 private:
  [[noreturn]] void fail(const char* problem) const {
    file_.fail(fmt::format("the member '{}' {}", printable(member_.name), problem));
  }

  void inflate_to(std::span<std::byte> out) {
    while (!out.empty()) {
      if (stream_.avail_in == 0 && left_ > 0) {
        const auto count = static_cast<std::size_t>(std::min<std::uint64_t>(left_, buffer_.size()));
        file_.read(at_, std::span{buffer_}.first(count));
        at_ += count, left_ -= count;
        stream_.next_in = reinterpret_cast<Bytef*>(buffer_.data());
        stream_.avail_in = static_cast<uInt>(count);
      }
      const auto wanted = static_cast<uInt>(std::min<std::size_t>(out.size(), std::size_t{1} << 30));
      stream_.next_out = reinterpret_cast<Bytef*>(out.data());
      stream_.avail_out = wanted;
      const int status = inflate(&stream_, Z_NO_FLUSH);
      const std::size_t got = wanted - stream_.avail_out;
      out = out.subspan(got);
      const bool ended = status == Z_STREAM_END && !out.empty();
      if ((status != Z_OK && status != Z_STREAM_END && status != Z_BUF_ERROR) || ended ||
          (got == 0 && stream_.avail_in == 0 && left_ == 0 && !out.empty())) {
        fail("is damaged: its compressed bytes do not unpack to its size");
      }
    }
  }

  const InputFile& file_;
  const Member& member_;
  std::uint64_t at_ = 0, left_ = 0, position_ = 0;
  std::uint32_t crc_ = 0;
  z_stream stream_{};
  std::vector<std::byte> buffer_ = std::vector<std::byte>(std::size_t{64} << 10);
};

/// The place of the central directory, and its number of members.
struct Directory {
  std::uint64_t offset = 0, bytes = 0, members = 0;
};

/// Finds the end record, which a comment may follow (4.3.16), and its larger form (4.3.14).
Directory find_directory(const InputFile& file) {
  constexpr std::size_t kEnd = 22, kLocator = 20, kEnd64 = 56;
  const std::uint64_t tail_bytes = std::min<std::uint64_t>(file.size(), kEnd + 0xffff);
  std::vector<std::byte> tail(static_cast<std::size_t>(tail_bytes));
  file.read(file.size() - tail_bytes, tail);
  for (std::size_t at = tail.size() < kEnd ? 0 : tail.size() - kEnd + 1; at-- > 0;) {
    if (number(tail, at, 4) != 0x06054b50 || number(tail, at + 20, 2) != tail.size() - at - kEnd) continue;
    Directory found{number(tail, at + 16, 4), number(tail, at + 12, 4), number(tail, at + 10, 2)};
    const std::uint64_t end = file.size() - tail_bytes + at;
    if (found.offset != 0xffffffff && found.bytes != 0xffffffff && found.members != 0xffff) return found;
    if (end < kLocator) break;
    std::array<std::byte, kLocator> locator{};
    file.read(end - kLocator, locator);
    if (number(locator, 0, 4) != 0x07064b50) return found;
    const std::uint64_t where = number(locator, 8, 8);
    if (file.size() < kEnd64 || where > file.size() - kEnd64) break;
    std::array<std::byte, kEnd64> end64{};
    file.read(where, end64);
    if (number(end64, 0, 4) != 0x06064b50) break;
    return {number(end64, 48, 8), number(end64, 40, 8), number(end64, 32, 8)};
  }
  file.fail("is not a .npz file, or truncated: it has no directory of a ZIP archive at its end");
}

/// Bytes that two members share would be read, and stored, once for each: a small file could fill a disk.
void expect_apart(const InputFile& file, const std::vector<Member>& members) {
  constexpr std::uint64_t kLeastHeader = 30;
  std::vector<const Member*> by_place;
  by_place.reserve(members.size());
  for (const Member& member : members) by_place.push_back(&member);
  std::sort(by_place.begin(), by_place.end(), [](auto* a, auto* b) { return a->header < b->header; });
  for (std::size_t i = 1; i < by_place.size(); ++i) {
    const Member &before = *by_place[i - 1], &member = *by_place[i];
    if (member.header - before.header >= kLeastHeader && member.header - before.header - kLeastHeader >= before.stored)
      continue;
    file.fail(fmt::format("the members '{}' and '{}' overlap; each must have bytes of its own", printable(before.name),
                          printable(member.name)));
  }
}

std::vector<Member> read_members(const InputFile& file) {
  constexpr std::size_t kEntry = 46;
  const Directory directory = find_directory(file);
  if (directory.offset > file.size() || directory.bytes > file.size() - directory.offset) {
    file.fail("is truncated, or its directory is damaged");
  }
  if (directory.bytes > kMostDirectoryBytes || directory.members > kMostMembers) {
    file.fail("has more than 1048576 members");
  }
  std::vector<std::byte> bytes(static_cast<std::size_t>(directory.bytes));
  file.read(directory.offset, bytes);
  std::vector<Member> members;
  std::size_t at = 0;
  const auto damaged = [&] { file.fail(fmt::format("its directory is damaged at member {}", members.size())); };
  for (std::uint64_t i = 0; i < directory.members; ++i) {
    if (bytes.size() - at < kEntry || number(bytes, at, 4) != 0x02014b50) damaged();
    const std::size_t name = number(bytes, at + 28, 2), extra = number(bytes, at + 30, 2);
    const std::size_t comment = number(bytes, at + 32, 2);
    if (bytes.size() - at - kEntry < name + extra + comment) damaged();
    Member member{.name = {reinterpret_cast<const char*>(bytes.data()) + at + kEntry, name},
                  .header = number(bytes, at + 42, 4),
                  .stored = number(bytes, at + 20, 4),
                  .bytes = number(bytes, at + 24, 4),
                  .crc = static_cast<std::uint32_t>(number(bytes, at + 16, 4))};
    const std::string what = fmt::format("the member '{}'", printable(member.name));
    const std::uint64_t method = number(bytes, at + 10, 2);
    if ((number(bytes, at + 8, 2) & 1U) != 0) file.fail(what + " is encrypted");
    if (method != 0 && method != 8) {
      file.fail(fmt::format("{} is compressed with method {}; must be stored (0) or deflated (8)", what, method));
    }
    member.deflated = method == 8;
    // Sizes that do not fit 32 bits are in an extra field, those that do are left out of it (4.5.3).
    for (std::size_t field = at + kEntry + name; field + 4 <= at + kEntry + name + extra;) {
      const std::size_t length = number(bytes, field + 2, 2), end = field + 4 + length;
      if (end > at + kEntry + name + extra) damaged();
      std::size_t next = field + 4;
      for (std::uint64_t* const value : {&member.bytes, &member.stored, &member.header}) {
        if (number(bytes, field, 2) != 1 || *value != 0xffffffff || next + 8 > end) continue;
        *value = number(bytes, next, 8);
        next += 8;
      }
      field = end;
    }
    at += kEntry + name + extra + comment;
    if (member.header > file.size() || member.stored > file.size() - member.header) {
      file.fail(what + " lies beyond the end of the file: truncated or damaged");
    }
    if (member.deflated ? member.bytes / kMostInflation > member.stored : member.bytes != member.stored) {
      file.fail(what + " states a size that its bytes cannot have");
    }
    members.push_back(std::move(member));
  }
  expect_apart(file, members);
  return members;
}

class Npz final : public ArrayFile {
 public:
  explicit Npz(const std::string& path) : ArrayFile{path}, members_{read_members(file_)} {
    std::set<std::string> names;
    for (const Member& member : members_) {
      const std::string what = fmt::format("{}: the member '{}'", path, printable(member.name));
      if (!member.name.ends_with(".npy")) throw Error{Fault::data, what + " is not an array, NAME.npy"};
      std::vector<std::byte> start(static_cast<std::size_t>(std::min<std::uint64_t>(kFirstBytes, member.bytes)));
      MemberStream{file_, member}.read(start);
      if (start.size() >= 10 && start.size() < member.bytes) {
        // Few headers are longer; then it is read again.
        const std::uint64_t wanted = 12 + number(start, 8, number(start, 6, 1) == 1 ? 2 : 4);
        if (wanted > start.size()) {
          start.resize(static_cast<std::size_t>(std::min<std::uint64_t>({wanted, kMostNpyHeader, member.bytes})));
          MemberStream{file_, member}.read(start);
        }
      }
      NpyHeader header = parse_npy_header(start, member.bytes, what);
      header.info.name = member.name.substr(0, member.name.size() - 4);
      if (!names.insert(header.info.name).second) throw Error{Fault::data, what + " is there twice"};
      arrays_.push_back(header.info);
      headers_.push_back(std::move(header));
    }
  }

  void read(std::size_t array, std::uint64_t first, std::span<std::byte> out) override {
    const NpyHeader& header = headers_.at(array);
    const std::size_t size = size_of(header.info.element);
    if (header.fortran) {
      if (turned_of_ != array) {
        turned_ = turn_fortran(header.info, fmt::format("{}: the array '{}'", path(), printable(header.info.name)),
                               [&](std::uint64_t offset, std::span<std::byte> to) { read_bytes(array, offset, to); });
        turned_of_ = array;
      }
      std::copy_n(turned_.begin() + static_cast<std::ptrdiff_t>(first * size), out.size(), out.begin());
    } else {
      read_bytes(array, first * size, out);
    }
    if (header.big_endian) swap_bytes(out, size);
  }

 private:
  static constexpr std::size_t kFirstBytes = 512;
  static constexpr std::size_t kNone = std::numeric_limits<std::size_t>::max();

  /// Bytes of the values, as they stand in the member.
  void read_bytes(std::size_t array, std::uint64_t offset, std::span<std::byte> out) {
    const std::uint64_t wanted = headers_[array].bytes + offset;
    if (!stream_ || stream_of_ != array || stream_->position() > wanted) {
      stream_.emplace(file_, members_[array]);
      stream_of_ = array;
    }
    std::vector<std::byte> skipped;
    while (stream_->position() < wanted) {
      skipped.resize(static_cast<std::size_t>(std::min<std::uint64_t>(wanted - stream_->position(), 1U << 20)));
      stream_->read(skipped);
    }
    stream_->read(out);
  }

  std::vector<Member> members_;
  std::vector<NpyHeader> headers_;
  std::optional<MemberStream> stream_;  ///< of the member that is being read
  std::size_t stream_of_ = kNone, turned_of_ = kNone;
  std::vector<std::byte> turned_;
};

}  // namespace

std::unique_ptr<ArrayFile> open_npz(const std::string& path) {
  return std::make_unique<Npz>(path);
}

}  // namespace gradtool
