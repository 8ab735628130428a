#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <utility>
#include <vector>

namespace gradtool::hdf5 {

/// Unpacked chunks, those that were used last. It holds `most_bytes` at most, or one chunk that is larger.
class ChunkCache {
 public:
  /// The number of a data set, and where in it the chunk is.
  using Key = std::pair<std::uint64_t, std::array<std::uint64_t, 3>>;

  explicit ChunkCache(std::size_t most_bytes) : most_bytes_{most_bytes} {}

  /// The bytes of a chunk, which `unpack()` makes when they are not here. Valid until the next call.
  template <class Unpack>
  const std::vector<std::byte>& get(const Key& key, Unpack unpack) {
    const auto found = places_.find(key);
    if (found != places_.end()) {
      chunks_.splice(chunks_.begin(), chunks_, found->second);
      return found->second->bytes;
    }
    std::vector<std::byte> bytes = unpack();
    while (!chunks_.empty() && held_ + bytes.size() > most_bytes_) {
      held_ -= chunks_.back().bytes.size();
      places_.erase(chunks_.back().key);
      chunks_.pop_back();
    }
    held_ += bytes.size();
    chunks_.push_front({key, std::move(bytes)});
    places_[key] = chunks_.begin();
    return chunks_.front().bytes;
  }

 private:
  struct Chunk {
    Key key;
    std::vector<std::byte> bytes;
  };
  std::size_t most_bytes_, held_ = 0;
  std::list<Chunk> chunks_;  ///< the one used last comes first
  std::map<Key, std::list<Chunk>::iterator> places_;
};

}  // namespace gradtool::hdf5
