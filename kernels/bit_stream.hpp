#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/float_bits.hpp"

/// Streams of bits, and Elias delta codes in them (Elias, IEEE Trans. Information Theory 1975). A code of x >= 1: with
/// N = floor(log2 x) and L = floor(log2(N + 1)), L zeros, a one, the low L bits of N + 1, the low N bits of x; numbers
/// of several bits start with their lowest.
namespace gradtool::format {

/// floor(log2 x), x >= 1.
GT_HD inline unsigned log2_floor(std::uint32_t x) {
#if defined(__CUDA_ARCH__)
  return 31u - static_cast<unsigned>(__clz(static_cast<int>(x)));
#else
  return static_cast<unsigned>(std::bit_width(x)) - 1u;
#endif
}

/// Bits of the longest code, that of numbers from 2^31 on.
inline constexpr unsigned kEliasLongest = 42;

struct EliasCode {
  std::uint64_t bits = 0;
  unsigned count = 0;  ///< how many bits; those above them are 0
};

/// The code of x >= 1.
GT_HD inline EliasCode elias_delta(std::uint32_t x) {
  const unsigned n = log2_floor(x);
  const unsigned l = log2_floor(n + 1);
  const std::uint64_t length = (std::uint64_t{1} << l) | (n + 1 - (std::uint64_t{1} << l)) << (l + 1);
  return {length | (x - (std::uint64_t{1} << n)) << (2 * l + 1), 2 * l + 1 + n};
}
GT_HD inline unsigned elias_delta_bits(std::uint32_t x) {
  const unsigned n = log2_floor(x);
  return n + 2 * log2_floor(n + 1) + 1;
}

/// The number that a code at the front of a stream stands for.
struct EliasFront {
  std::uint32_t value = 0;  ///< 0 where the bits are no code of a number below 2^32
  unsigned count = 1;       ///< bits of the code
};

/// The code at the front of a window of at least kEliasLongest bits.
GT_HD inline EliasFront elias_delta_front(std::uint64_t window) {
  const std::uint32_t low = static_cast<std::uint32_t>(window & 0xfffu) | 0x800u;
  const unsigned l = log2_floor(low & (0u - low));
  if (l > 5) return {};
  const unsigned n = (1u << l) + (static_cast<unsigned>(window >> (l + 1)) & ((1u << l) - 1u)) - 1u;
  if (n > 31) return {};
  const std::uint64_t below = window >> (2 * l + 1) & ((std::uint64_t{1} << n) - 1u);
  return {static_cast<std::uint32_t>((std::uint64_t{1} << n) + below), 2 * l + 1 + n};
}

}  // namespace gradtool::format

namespace gradtool::host {

/// Writes codes of up to 56 bits into a stream: bit j of the stream is bit j mod 8 of byte j div 8.
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

  /// Pads the last byte with zeros. Returns the number of bytes written in all.
  std::size_t finish() {
    for (; have_ > 0; have_ -= have_ < 8 ? have_ : 8, held_ >>= 8, ++bytes_) *out_++ = static_cast<std::byte>(held_);
    return bytes_;
  }

 private:
  /// Fewer than 32 bits are held back; whenever there are 32, four whole bytes are written.
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

/// Reads what BitWriter wrote. Behind the end of the stream it reads zeros, and `overrun` is true when some were taken.
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

using format::elias_delta_bits;

inline void put_elias_delta(BitWriter& out, std::uint32_t x) {
  const format::EliasCode code = format::elias_delta(x);
  out.put(code.bits, code.count);
}

/// The number whose code comes next; 0 where the bits are no code of a number below 2^32.
[[nodiscard]] inline std::uint32_t take_elias_delta(BitReader& in) {
  const format::EliasFront code = format::elias_delta_front(in.peek(format::kEliasLongest));
  in.skip(code.count);
  return code.value;
}

}  // namespace gradtool::host
