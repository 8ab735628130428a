#include "lib/train/checkpoint.hpp"

#include <fmt/format.h>

#include <cstdint>
#include <cstring>
#include <limits>
#include <span>
#include <string_view>

#include "lib/core/error.hpp"
#include "lib/core/files.hpp"
#include "lib/core/sha256.hpp"

namespace gradtool {
namespace {

constexpr std::string_view kMagic = "gradtool.checkpoint 1\n";
constexpr std::size_t kDigest = 64;

/// Writes and hashes.
class HashedFile {
 public:
  explicit HashedFile(const std::string& path) : file_{path} {}
  void write(std::span<const std::byte> bytes) {
    hash_.update(bytes);
    file_.write({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
  }
  void number(std::uint64_t value) { write(std::as_bytes(std::span{&value, 1})); }
  void commit() {
    file_.write(hash_.hex());
    file_.sync();
    file_.commit();
  }

 private:
  OutputFile file_;
  Sha256 hash_;
};

}  // namespace

void save_checkpoint(const std::string& path, const CheckpointParts& parts) {
  HashedFile file{path};
  file.write(std::as_bytes(std::span{kMagic}));
  file.number(parts.size());
  for (const auto& part : parts) {
    file.number(part.size());
    file.write(part);
  }
  file.commit();
}

CheckpointParts load_checkpoint(const std::string& path) {
  const auto damaged = [&]() -> Error {
    return {
        Fault::data,
        fmt::format(
            "{}: is damaged, or no checkpoint of gradtool train; without this file the run starts from its beginning",
            path)};
  };
  const std::string all = read_file(path, std::numeric_limits<std::uint64_t>::max());
  if (all.size() < kMagic.size() + 8 + kDigest || !all.starts_with(kMagic)) throw damaged();
  auto left = std::as_bytes(std::span{all}).first(all.size() - kDigest);
  Sha256 hash;
  hash.update(left);
  if (hash.hex() != all.substr(all.size() - kDigest)) throw damaged();
  left = left.subspan(kMagic.size());
  const auto take = [&](std::uint64_t size) {
    if (size > left.size()) throw damaged();
    const auto taken = left.first(size);
    left = left.subspan(size);
    return taken;
  };
  const auto number = [&] {
    std::uint64_t value = 0;
    std::memcpy(&value, take(8).data(), 8);
    return value;
  };
  CheckpointParts parts;
  for (std::uint64_t count = number(); count > 0; --count) {
    const auto bytes = take(number());
    parts.emplace_back(bytes.begin(), bytes.end());
  }
  return parts;
}

}  // namespace gradtool
