#include "lib/codecs/sidco_moments.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <numbers>

#include "kernels/law/half.hpp"
#include "kernels/law/hd.hpp"

namespace gradtool {
namespace {

constexpr std::uint32_t kMagnitude = 0x7fffffffU;
constexpr std::uint32_t kInfinity = 0x7f800000U;
constexpr std::uint32_t kOne = 127U << 23;  // the pattern of 1
constexpr std::uint32_t kSmallestNormal = 0x00800000U;
constexpr std::size_t kBlock = 32;
constexpr std::size_t kLanes = 16;
constexpr std::size_t kFloatRun = 256;  // elements whose lanes are summed in float32

/// What a fit needs besides count and sum.
enum class Needs : std::uint8_t { nothing, squares, logarithms };

// Lanes that stay in registers: with arrays the compiler stores and reloads them in every round.
using Words = std::uint32_t __attribute__((vector_size(4 * kLanes)));
using Floats = float __attribute__((vector_size(4 * kLanes)));
using Doubles = double __attribute__((vector_size(8 * kLanes)));

/// Sums of blocks, lane j taking elements j and j + 16 of each: what they exceed `origin` by where their patterns are
/// in [low, infinity). For logarithms, exponents add as integers and mantissas multiply, so that one serves many
/// elements.
template <Needs What>
struct Sums {
  std::uint32_t low = 1;
  float origin = 0.0F;
  Floats sum{};
  Doubles squares{}, mantissas = Doubles{} + 1.0;
  Words count{}, exponents{};

  [[gnu::always_inline]] void add(const float* x) {
    Words pattern;
    std::memcpy(&pattern, x, sizeof pattern);
    pattern &= kMagnitude;
    const Words taken = reinterpret_cast<Words>((pattern - low) < (Words{} + (kInfinity - low)));  // all bits or none
    const Floats above =
        reinterpret_cast<Floats>(reinterpret_cast<Words>(reinterpret_cast<Floats>(pattern) - origin) & taken);
    sum += above;
    count -= taken;
    if constexpr (What == Needs::squares) {
      const Doubles wide = __builtin_convertvector(above, Doubles);
      squares += wide * wide;
    }
    if constexpr (What == Needs::logarithms) {
      const Words normal = (pattern & taken) | (~taken & kOne);
      exponents += (normal >> 23) - 127U;
      mantissas *= __builtin_convertvector(reinterpret_cast<Floats>((normal & 0x007fffffU) | kOne), Doubles);
    }
  }
};
// A lane's product of a piece's mantissas stays below 2^1024.
static_assert(host::kPiece / kLanes < 1024);

/// The largest finite pattern of a block.
std::uint32_t largest_finite(const float* x, std::size_t size) {
  std::uint32_t largest = 0;
  for (std::size_t j = 0; j < size; ++j) {
    const std::uint32_t pattern = law::bits_of(x[j]) & kMagnitude;
    if (pattern < kInfinity) largest = std::max(largest, pattern);
  }
  return largest;
}

/// One piece: float lanes for 256 elements at a time, then float64.
template <Needs What>
GT_SIMD_CLONES SidcoPart part_of(const host::Piece& piece, const float* x, const std::uint32_t* maxima,
                                 std::uint32_t low, float origin) {
  SidcoPart part;
  Sums<What> sums{.low = low, .origin = origin};
  for (std::size_t from = 0; from < piece.count; from += kFloatRun) {
    for (std::size_t at = from; at < std::min(piece.count, from + kFloatRun); at += kBlock) {
      const std::uint32_t largest = maxima[piece.word + at / kBlock];
      if (largest < low) continue;
      const float* own = x + piece.first + at;
      const std::size_t size = std::min(kBlock, piece.count - at);
      part.largest = std::max(part.largest, largest < kInfinity ? largest : largest_finite(own, size));
      if (size == kBlock) {
        sums.add(own);
        sums.add(own + kLanes);
      } else {
        std::array<float, kBlock> padded{};  // zeros are below any low
        std::copy_n(own, size, padded.data());
        sums.add(padded.data());
        sums.add(padded.data() + kLanes);
      }
    }
    double sum = 0.0;
    for (std::size_t j = 0; j < kLanes; ++j) sum += static_cast<double>(sums.sum[j]);
    part.moments.sum += sum;
    sums.sum = Floats{};
  }
  std::uint32_t count = 0;
  for (std::size_t j = 0; j < kLanes; ++j) {
    count += sums.count[j];
    part.moments.squares += sums.squares[j];
    if constexpr (What == Needs::logarithms)
      part.moments.log_sum += std::log(sums.mantissas[j]) +
                              static_cast<double>(static_cast<std::int32_t>(sums.exponents[j])) * std::numbers::ln2;
  }
  part.moments.count = static_cast<double>(count);
  return part;
}

}  // namespace

SidcoPart sidco_part(SidcoFit fit, const host::Piece& piece, const float* x, const std::uint32_t* maxima,
                     std::uint32_t low, float origin) {
  switch (fit) {
    case SidcoFit::pareto:
      return part_of<Needs::squares>(piece, x, maxima, low, origin);
    case SidcoFit::gamma:
      return part_of<Needs::logarithms>(piece, x, maxima, kSmallestNormal, origin);
    case SidcoFit::exponential:
      break;
  }
  return part_of<Needs::nothing>(piece, x, maxima, low, origin);
}

}  // namespace gradtool
