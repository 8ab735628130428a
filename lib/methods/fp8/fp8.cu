#include "lib/codecs/gpu_block_codec.hpp"
#include "lib/methods/fp8/format.hpp"

namespace gradtool {
namespace cuda {
namespace {

using format::Fp8Rows;
using format::SmallFloat;

/// A warp encodes a row.
template <SmallFloat Type, bool Stochastic>
struct EncodeRows {
  Fp8Rows rows;
  format::DrawKey key;

  std::size_t blocks(std::size_t n) const { return blocks_for(rows.count(n), kBlockWarps); }
  __device__ void run(const Unit& unit, std::uint32_t index, const Place& place) const {
    using Element = typename format::Fp8Format<Type>::Element;
    const auto* gradient = static_cast<const float*>(unit.from);
    auto* payload = static_cast<std::byte*>(unit.to);
    const bool aligned = aligned_to(gradient, 16);
    format::DrawKey own_key = key;
    own_key.tensor += index;
    for (std::size_t r = place.warp(); r < rows.count(unit.n); r += place.warps()) {
      const float* x = gradient + r * rows.row;
      const std::size_t count = rows.elements(r, unit.n);
      const float factor = format::fp8_row_factor<Type>(format::float_of(largest_pattern(x, count, aligned)));
      auto* words = reinterpret_cast<std::uint32_t*>(payload + rows.offset(r));
      if (lane_in_warp() == 0) words[0] = format::bits_of(factor);
      encode_elements<Element, Stochastic>(x, r * rows.row, count, aligned, factor, own_key, nullptr, words + 1);
    }
  }
};

/// A warp decodes a row.
template <SmallFloat Type>
struct DecodeRows {
  Fp8Rows rows;
  float weight;

  std::size_t blocks(std::size_t n) const { return blocks_for(rows.count(n), kBlockWarps); }
  __device__ void run(const Unit& unit, std::uint32_t /*index*/, const Place& place) const {
    const auto* payload = static_cast<const std::byte*>(unit.from);
    auto* out = static_cast<float*>(unit.to);
    const bool aligned = aligned_to(out, 16);
    for (std::size_t r = place.warp(); r < rows.count(unit.n); r += place.warps()) {
      const auto* words = reinterpret_cast<const std::uint32_t*>(payload + rows.offset(r));
      const std::size_t count = rows.elements(r, unit.n);
      const float factor = format::float_of(words[0]);
      add_values(count, out + r * rows.row, aligned, [&](std::size_t at) {
        const Four<std::uint32_t> codes = load_codes<8>(words + 1, at, count);
        Four<float> four;
        for (unsigned i = 0; i < 4; ++i) four.value[i] = weight * (Type.value(codes.value[i]) / factor);
        return four;
      });
    }
  }
};

}  // namespace
}  // namespace cuda

namespace {

template <format::SmallFloat Type>
class GpuFp8ByRow final : public BatchedGpuCodec {
 public:
  explicit GpuFp8ByRow(const Params& params)
      : BatchedGpuCodec{"fp8", params},
        rows_{static_cast<std::size_t>(params.integer("row"))},
        stochastic_{params.is("rounding", "stochastic")} {}

 private:
  [[nodiscard]] std::size_t payload_bytes(std::size_t n) const override { return rows_.bytes(n); }
  void encode_units(Queue<Space::cuda> queue, std::span<const cuda::Unit> units,
                    const EncodeContext& context) const override {
    if (stochastic_)
      cuda::launch_units(queue, "fp8 rows", cuda::EncodeRows<Type, true>{rows_, context.key}, units);
    else
      cuda::launch_units(queue, "fp8 rows", cuda::EncodeRows<Type, false>{rows_, context.key}, units);
  }
  void decode_units(Queue<Space::cuda> queue, std::span<const cuda::Unit> units, float weight) const override {
    cuda::launch_units(queue, "fp8 decode rows", cuda::DecodeRows<Type>{rows_, weight}, units);
  }

  format::Fp8Rows rows_;
  bool stochastic_;
};

template <format::SmallFloat Type>
std::unique_ptr<Codec<Space::cuda>> make_gpu(const Params& params) {
  if (params.is("scale", "row")) return std::make_unique<GpuFp8ByRow<Type>>(params);
  const auto block =
      params.is("scale", "unit") ? format::kWholeUnit : static_cast<std::size_t>(params.integer("block"));
  return make_gpu_block_codec<format::Fp8Format<Type>>("fp8", params, block);
}

std::unique_ptr<Codec<Space::cuda>> make_gpu_fp8(const Params& params, const Layout& /*layout*/) {
  return params.is("format", "e5m2") ? make_gpu<format::kE5M2>(params) : make_gpu<format::kE4M3>(params);
}

}  // namespace

extern constinit const GpuFactories fp8_gpu{.codec = make_gpu_fp8};

}  // namespace gradtool
