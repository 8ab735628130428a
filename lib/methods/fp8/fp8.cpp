#include <array>
#include <cmath>
#include <cstring>
#include <limits>

#include "lib/codecs/block_codec.hpp"
#include "lib/codecs/registry.hpp"
#include "lib/methods/fp8/format.hpp"

namespace gradtool {
namespace {

/// The bound of rounding for an element of a block whose largest is at the end of the range: `relative` for a normal
/// element, and `quantum`, a share of the block's largest, for a smaller one. Rounding to nearest moves a normal
/// element by at most half a unit in the last place, and a smaller one by half the spacing of subnormals; stochastic
/// rounding moves them up to twice as far.
template <format::SmallFloat Type>
ErrorBound rounding_bound(std::size_t in_block, bool stochastic, double absolute) {
  const double steps = stochastic ? 1.0 : 0.5;
  const double relative = steps * std::ldexp(1.0, -static_cast<int>(Type.mantissa)) * (1.0 + 1e-4);
  const double quantum =
      steps * std::ldexp(1.0, Type.quantum_exponent()) / static_cast<double>(format::Fp8Format<Type>::top());
  return {.nmse = relative * relative + static_cast<double>(in_block) * quantum * quantum,
          .of_largest = relative,
          .absolute = absolute};
}

std::size_t block_of(const Params& params) {
  return params.is("scale", "unit") ? format::kWholeUnit : static_cast<std::size_t>(params.integer("block"));
}

template <format::SmallFloat Type>
class Fp8 final : public BlockCodec<format::Fp8Format<Type>> {
 public:
  explicit Fp8(const Params& params)
      : BlockCodec<format::Fp8Format<Type>>{"fp8", {}, block_of(params), params.is("rounding", "stochastic")} {}

  [[nodiscard]] ErrorBound bound(std::size_t n) const override {
    const std::size_t block = this->block() == format::kWholeUnit ? n : this->block();
    return rounding_bound<Type>(std::min(n, block), this->stochastic(), static_cast<double>(format::kSmallestOfBlock));
  }
};

template <format::SmallFloat Type>
GT_SIMD_CLONES void add_quotients(const std::uint8_t* codes, std::size_t count, float factor, float weight,
                                  float* out) {
  for (std::size_t i = 0; i < count; ++i) out[i] += weight * (Type.value(codes[i]) / factor);
}

/// Rows as format::Fp8Rows lays them out, with the arithmetic of torchft's kernels.
template <format::SmallFloat Type>
class Fp8ByRow final : public Codec<Space::host> {
  using Format = format::Fp8Format<Type>;

 public:
  explicit Fp8ByRow(const Params& params)
      : rows_{static_cast<std::size_t>(params.integer("row"))}, stochastic_{params.is("rounding", "stochastic")} {
    expect_valid(rows_.row % 4 == 0, "a row must be a multiple of 4 elements");
  }

  [[nodiscard]] Footprint plan(std::size_t n) const override { return {.payload_bytes = rows_.bytes(n)}; }

  void encode(Queue<Space::host> queue, HostView<const float> gradient, const EncodeContext& context,
              HostView<std::byte> payload, HostView<std::byte> /*scratch*/) const override {
    each_row(queue, gradient.size(), [&](std::size_t first, std::size_t count, std::size_t offset) {
      const float* x = gradient.data() + first;
      const float factor = format::fp8_row_factor<Type>(detail::largest_magnitude(x, count));
      std::memcpy(payload.data() + offset, &factor, sizeof factor);
      auto* codes = section<std::uint8_t>(payload, offset + sizeof factor);
      alignas(64) std::array<std::uint32_t, detail::kBlockTile> draws;
      for (std::size_t at = 0; at < count; at += detail::kBlockTile) {
        const std::size_t part = std::min(detail::kBlockTile, count - at);
        if (stochastic_) host::draw_tile(context.key, first + at, part, draws.data());
        detail::encode_blocks<Format>(x + at, 0, part, part, &factor, stochastic_ ? draws.data() : nullptr, codes + at);
      }
      std::memset(codes + count, 0, (4 - count % 4) % 4);
    });
  }

  void decode_add(Queue<Space::host> queue, HostView<const std::byte> payload, float weight, HostView<float> out,
                  HostView<std::byte> /*scratch*/) const override {
    expect_length("fp8", payload.size(), rows_.bytes(out.size()));
    each_row(queue, out.size(), [&](std::size_t first, std::size_t count, std::size_t offset) {
      float factor = 0.0F;
      std::memcpy(&factor, payload.data() + offset, sizeof factor);
      add_quotients<Type>(section<std::uint8_t>(payload, offset + sizeof factor), count, factor, weight,
                          out.data() + first);
    });
  }

  /// Every element of a row may be lost if its largest element has no finite factor.
  [[nodiscard]] ErrorBound bound(std::size_t n) const override {
    return rounding_bound<Type>(
        std::min(n, rows_.row), stochastic_,
        static_cast<double>(Format::top()) / static_cast<double>(std::numeric_limits<float>::max()));
  }

 private:
  /// body(first, count, offset) for every row: its first element, its elements, and its place in the payload.
  template <class Body>
  void each_row(Queue<Space::host> queue, std::size_t n, const Body& body) const {
    parallel_for(queue, n, rows_.row, 1 << 14, [&](std::size_t begin, std::size_t end) {
      for (std::size_t first = begin; first < end; first += rows_.row)
        body(first, std::min(rows_.row, end - first), rows_.offset(first / rows_.row));
    });
  }

  format::Fp8Rows rows_;
  bool stochastic_;
};

constexpr ParamInfo kParams[] = {
    choice_param("format", "e4m3", "e4m3|e5m2", "3 mantissa bits and values to 448, or 2 and to 57344")
        .searched("e4m3|e5m2"),
    integer_param("block", "128", {4, 1 << 20}, "elements that share a scale, a multiple of 4").searched("32|128|1024"),
    choice_param("scale", "block", "block|row|unit",
                 "one for each block, each row, beside its codes, or the whole unit"),
    integer_param("row", "512", {4, 65536}, "elements of a row for scale=row, a multiple of 4"),
    choice_param("rounding", "nearest", "nearest|stochastic",
                 "to nearest even, or up with the probability of what is cut off")};

template <format::SmallFloat Type>
std::unique_ptr<Codec<Space::host>> make(const Params& params) {
  if (params.is("scale", "row")) return std::make_unique<Fp8ByRow<Type>>(params);
  return std::make_unique<Fp8<Type>>(params);
}

}  // namespace

extern constinit const CodecDescriptor fp8_codec{
    .name = "fp8",
    .summary = "sends 8-bit floats, with a float32 scale for each block",
    .reference =
        "Micikevicius et al., FP8 Formats for Deep Learning, 2022, arXiv 2209.05433; rows: torchft's quantised "
        "all-reduce",
    .params = kParams,
    .payload = "8 n + 32 ceil(n/block) bits; scale=row: ceil(n/row), scale=unit: 1",
    .passes =
        [](const Params& p) {
          if (!p.is("scale", "unit")) return MemoryPasses{};
          return MemoryPasses{.again = ReadAgain::unit, .why = "codes need the largest magnitude first"};
        },
    .make_host = [](const Params& p,
                    const Layout&) { return p.is("format", "e5m2") ? make<format::kE5M2>(p) : make<format::kE4M3>(p); },
};

}  // namespace gradtool
