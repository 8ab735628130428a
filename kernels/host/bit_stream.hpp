#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/law/elias.hpp"

namespace gradtool::host {

/// Writes codes of any length into a stream of bits: bit j of the stream is bit j mod 8 of byte j div 8.
class BitWriter {
 public:
  explicit BitWriter(std::byte* out) : out_{out} {}

  /// The low `count` bits of `bits`; count <= 56, and the bits above are zero.
  void put(std::uint64_t bits, unsigned count) {
    if (count > 32) {
      push(bits & 0xffffffffU, 32);
      bits >>= 32;
      count -= 32;
    }
    push(bits, count);
  }

  /// Pads the last byte with zeros; the number of bytes written in all.
  std::size_t finish() {
    for (; have_ > 0; have_ -= have_ < 8 ? have_ : 8, held_ >>= 8, ++bytes_) *out_++ = static_cast<std::byte>(held_);
    return bytes_;
  }

 private:
  /// Fewer than 32 bits wait: four bytes go at once, and never one that is not full.
  void push(std::uint64_t bits, unsigned count) {
    held_ |= bits << have_;
    have_ += count;
    if (have_ < 32) return;
    const auto word = static_cast<std::uint32_t>(held_);
    std::memcpy(out_, &word, sizeof word);
    out_ += sizeof word;
    bytes_ += sizeof word;
    held_ >>= 32;
    have_ -= 32;
  }

  std::byte* out_;
  std::uint64_t held_ = 0;
  unsigned have_ = 0;
  std::size_t bytes_ = 0;
};

/// Reads what BitWriter wrote. Behind the end come zeros, and `overrun` says that some were asked for.
class BitReader {
 public:
  BitReader(const std::byte* in, std::size_t bytes) : in_{in}, left_{bytes} {}

  /// The next `count` bits, count <= 56.
  [[nodiscard]] std::uint64_t peek(unsigned count) {
    if (have_ < count) fill();
    return held_ & ((std::uint64_t{1} << count) - 1);
  }
  void skip(unsigned count) {
    held_ >>= count;
    overrun_ = overrun_ || count > have_;
    have_ -= count < have_ ? count : have_;
  }
  [[nodiscard]] std::uint64_t take(unsigned count) {
    const std::uint64_t bits = peek(count);
    skip(count);
    return bits;
  }
  [[nodiscard]] bool overrun() const { return overrun_; }

 private:
  void fill() {
    if (left_ >= 8) {  // eight bytes at once; those that do not fit are read again next time
      std::uint64_t next = 0;
      std::memcpy(&next, in_, 8);
      held_ |= next << have_;
      const unsigned bytes = (63 - have_) / 8;
      in_ += bytes;
      left_ -= bytes;
      have_ += 8 * bytes;
      held_ &= have_ == 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << have_) - 1;
      return;
    }
    while (have_ <= 56 && left_ > 0) {
      held_ |= static_cast<std::uint64_t>(*in_++) << have_;
      have_ += 8;
      --left_;
    }
  }

  const std::byte* in_;
  std::size_t left_;
  std::uint64_t held_ = 0;
  unsigned have_ = 0;
  bool overrun_ = false;
};

using law::elias_delta_bits;

inline void put_elias_delta(BitWriter& out, std::uint32_t x) {
  const law::EliasCode code = law::elias_delta(x);
  out.put(code.bits, code.count);
}

/// 0 where the bits are no such code of a number below 2^32.
[[nodiscard]] inline std::uint32_t take_elias_delta(BitReader& in) {
  const law::EliasFront code = law::elias_delta_front(in.peek(law::kEliasLongest));
  in.skip(code.count);
  return code.value;
}

}  // namespace gradtool::host
