#include "lib/comm/udp/packet.hpp"

#include <bit>
#include <cstring>

namespace gradtool::udp {
namespace {

/// The state of SipHash while words of 8 bytes are fed to it.
class SipState {
 public:
  explicit SipState(const JobKey& key)
      : v0_{key[0] ^ 0x736f6d6570736575},
        v1_{key[1] ^ 0x646f72616e646f6d},
        v2_{key[0] ^ 0x6c7967656e657261},
        v3_{key[1] ^ 0x7465646279746573} {}

  void word(std::uint64_t m) {
    v3_ ^= m;
    round();
    round();
    v0_ ^= m;
  }
  std::uint64_t end() {
    v2_ ^= 0xff;
    for (int i = 0; i < 4; ++i) round();
    return v0_ ^ v1_ ^ v2_ ^ v3_;
  }

 private:
  void round() {
    v0_ += v1_;
    v2_ += v3_;
    v1_ = std::rotl(v1_, 13) ^ v0_;
    v3_ = std::rotl(v3_, 16) ^ v2_;
    v0_ = std::rotl(v0_, 32);
    v2_ += v1_;
    v0_ += v3_;
    v1_ = std::rotl(v1_, 17) ^ v2_;
    v3_ = std::rotl(v3_, 21) ^ v0_;
    v2_ = std::rotl(v2_, 32);
  }
  std::uint64_t v0_, v1_, v2_, v3_;
};

/// Bytes that were fed but do not fill a word yet, and how many there were in all.
struct Tail {
  std::uint64_t bits = 0;
  std::size_t bytes = 0;
};

void feed(SipState& state, Tail& tail, std::span<const std::byte> data) {
  std::size_t i = 0;
  for (; tail.bytes % 8 != 0 && i < data.size(); ++i, ++tail.bytes) {
    tail.bits |= std::to_integer<std::uint64_t>(data[i]) << 8 * (tail.bytes % 8);
    if (tail.bytes % 8 == 7) {
      state.word(tail.bits);
      tail.bits = 0;
    }
  }
  for (; i + 8 <= data.size(); i += 8, tail.bytes += 8) {
    std::uint64_t word = 0;
    std::memcpy(&word, data.data() + i, 8);
    state.word(word);
  }
  for (; i < data.size(); ++i, ++tail.bytes) {
    tail.bits |= std::to_integer<std::uint64_t>(data[i]) << 8 * (tail.bytes % 8);
  }
}

std::uint64_t tag_of(PacketHeader header, const JobKey& key, std::uint64_t message, std::span<const std::byte> data) {
  header.tag = message;
  return siphash(key, std::as_bytes(std::span{&header, 1}), data);
}

}  // namespace

std::uint64_t siphash(const JobKey& key, std::span<const std::byte> first, std::span<const std::byte> second) {
  SipState state{key};
  Tail tail;
  feed(state, tail, first);
  feed(state, tail, second);
  state.word(tail.bits | static_cast<std::uint64_t>(tail.bytes) << 56);
  return state.end();
}

void seal(PacketHeader& header, const JobKey& key, std::uint64_t message, std::span<const std::byte> data) {
  header.tag = tag_of(header, key, message, data);
}

bool is_sealed(const PacketHeader& header, const JobKey& key, std::uint64_t message, std::span<const std::byte> data) {
  return header.tag == tag_of(header, key, message, data);
}

}  // namespace gradtool::udp
