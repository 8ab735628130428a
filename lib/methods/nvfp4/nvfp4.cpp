#include <algorithm>
#include <cmath>

#include "lib/codecs/block_codec.hpp"
#include "lib/codecs/registry.hpp"
#include "lib/methods/nvfp4/format.hpp"

namespace gradtool {
namespace {

/// For MS-EDEN: codes of whole groups of rotated elements with their factors become those of the group's scales,
/// corrected. A draw for each block.
GT_SIMD_CLONES void correct_scales(const float* x, std::size_t groups, const float* factors, const std::uint8_t* codes,
                                   const std::uint32_t* draws, std::uint8_t* scales) {
  using Format = format::Nvfp4Format<true>;
  constexpr std::size_t kBlocks = 128 / Format::kBlock;
  for (std::size_t g = 0; g < groups; ++g) {
    format::EdenSums sums[kBlocks];
    for (std::size_t b = 0; b < kBlocks; ++b) {
      const std::size_t block = g * kBlocks + b;
      float squares[Format::kBlock];
      float products[Format::kBlock];
      for (std::size_t i = 0; i < Format::kBlock; ++i) {
        const float scaled = x[block * Format::kBlock + i] * factors[block];
        squares[i] = scaled * scaled;
        products[i] = scaled * Format::Element::decode(codes[block * Format::kBlock + i]);
      }
      for (std::size_t half = Format::kBlock / 2; half > 0; half /= 2) {
        for (std::size_t i = 0; i < half; ++i) {
          squares[i] = squares[i] + squares[i + half];
          products[i] = products[i] + products[i + half];
        }
      }
      const float scale = Format::BlockScale::decode(scales[block]);
      sums[b] = format::EdenSums{squares[0], products[0]}.times(scale * scale);
    }
    for (std::size_t half = kBlocks / 2; half > 0; half /= 2) {
      for (std::size_t b = 0; b < half; ++b) sums[b] = sums[b] + sums[b + half];
    }
    const float correction = sums[0].correction();
    for (std::size_t block = g * kBlocks; block < (g + 1) * kBlocks; ++block)
      scales[block] = format::corrected_scale(scales[block], correction, draws[block]);
  }
}

template <bool Eden>
class Nvfp4 final : public BlockCodec<format::Nvfp4Format<Eden>> {
  using Format = format::Nvfp4Format<Eden>;

 public:
  explicit Nvfp4(const Params& params)
      : BlockCodec<Format>{"nvfp4", Format::of(params), Format::kBlock, params.is("rounding", "stochastic")} {}

  /// An element of a block whose scale is a normal number, which rounding makes larger or smaller by a sixteenth at
  /// most, loses a fifth of itself or a quarter of the step: 1/16 of the largest, and 1/24 for rounding alone; rounded
  /// stochastically twice as much and more. A block with a smaller scale errs more and may be lost, but its elements
  /// are below 4e-5 of the unit's largest. A rotation keeps energies; an element is then as far off as its block
  /// allows. Rounded to nearest a group of MS-EDEN loses a share of 0.07 as well, which makes the angle that its
  /// correction leaves 0.274 in tangent, and its scales are off by an eighth at most: (0.274 + 0.125 * 1.04)^2 = 0.17.
  /// Elements behind the last group are rounded stochastically.
  [[nodiscard]] ErrorBound bound(std::size_t n) const override {
    const auto& rotation = this->format().rotation;
    const bool nearest = !Eden && !this->stochastic();
    const double in_block = nearest ? 0.07 : Eden && n % rotation.kSize == 0 ? 0.17 : 0.37;
    const double nmse = in_block + 1e-9 * static_cast<double>(n);
    return {.nmse = nmse,
            .of_largest = rotation.on ? std::sqrt(rotation.kSize * in_block) : (nearest ? 0.2 : 0.5) * 1.001,
            .absolute = 0x1p-120};
  }

 private:
  /// Elements behind the last whole group are not rotated, and rounded stochastically.
  void correct(const Format& format, const float* x, std::size_t first, std::size_t count, const format::DrawKey& key,
               const float* factors, std::uint8_t* scales, std::uint8_t* codes) const override {
    constexpr std::size_t kBlock = Format::kBlock;
    constexpr std::size_t kGroup = decltype(Format::rotation)::kSize;
    alignas(64) std::array<std::uint32_t, detail::kBlockTile / kBlock> draws;
    static_assert(draws.size() >= kGroup, "draws of the elements behind the last group fit");
    const std::size_t whole = count / kGroup * kGroup;
    host::draw_tile(key, first / kBlock, whole / kBlock, draws.data());
    correct_scales(x, whole / kGroup, factors, codes, draws.data(), scales);
    host::draw_tile(key, first + whole, count - whole, draws.data());
    for (std::size_t at = whole; at < count; at += kBlock) {
      const std::size_t size = std::min(kBlock, count - at);
      const auto scaled = format.scaled_up(detail::largest_magnitude(x + at, size));
      scales[at / kBlock] = scaled.stored;
      detail::encode_blocks<Format>(x + at, 0, size, kBlock, &scaled.factor, draws.data() + (at - whole), codes + at);
    }
  }
};

constexpr ParamInfo kParams[] = {
    choice_param("rounding", "nearest", "nearest|stochastic|eden",
                 "to nearest even, up with the probability of what is cut off, or MS-EDEN")
        .searched("nearest|stochastic"),
    choice_param("hadamard", "off", "off|on",
                 "rotate every block by random signs and a Hadamard transform first; eden rotates by itself")
        .searched("off|on"),
    integer_param("seed", "42", {0, 9007199254740992.0}, "seed of the rotation's random signs, the same on all ranks")};

}  // namespace

extern constinit const CodecDescriptor nvfp4_codec{
    .name = "nvfp4",
    .summary = "sends 4-bit floats, with an 8-bit scale for every 16 and a float32 scale for all",
    .reference = "NVIDIA, Pretraining Large Language Models with NVFP4, 2025, arXiv 2509.25149; TransformerEngine",
    .params = kParams,
    .payload = "32 + 4 n + 8 ceil(n/16) bits; rounding=eden: 32 more",
    .passes =
        [](const Params&) {
          return MemoryPasses{.again = ReadAgain::unit,
                              .why = "scales of blocks are in units of the largest magnitude"};
        },
    .make_host = [](const Params& p, const Layout&) -> std::unique_ptr<Codec<Space::host>> {
      if (p.is("rounding", "eden")) return std::make_unique<Nvfp4<true>>(p);
      return std::make_unique<Nvfp4<false>>(p);
    },
};

}  // namespace gradtool
