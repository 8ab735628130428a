#include "lib/codecs/block_codec.hpp"
#include "lib/codecs/registry.hpp"
#include "lib/methods/qgz/format.hpp"
#include "lib/methods/qgz/reducer.hpp"

namespace gradtool {
namespace {

template <std::uint32_t Bits>
class QgzCodec final : public BlockCodec<format::QgzFormat<Bits>> {
 public:
  explicit QgzCodec(std::size_t block) : BlockCodec<format::QgzFormat<Bits>>{"qgz", {}, block, false} {}

  /// An element moves by at most half a unit, or by at most one unit where it lies above the last positive code.
  [[nodiscard]] ErrorBound bound(std::size_t n) const override {
    const double unit = 1.0 / static_cast<double>(1U << (Bits - 1)) * (1.0 + 1e-5);
    const double clamped = unit / (1.0 - unit);
    return {.nmse = static_cast<double>(std::min(n, this->block())) * unit * unit / 4.0 + clamped * clamped,
            .of_largest = unit,
            .absolute = 0x1p-100};
  }
};

constexpr ParamInfo kParams[] = {
    choice_param("bits", "4", "4|8", "of an element in the two all-to-all steps").searched("4|8"),
    integer_param("block", "512", {32, 1 << 20}, "elements that share a scale, a multiple of 32"),
    integer_param(
        "node", "8", {1, 1 << 16},
        "ranks in a node; one level where it does not divide the ranks, or there is one node, or one rank in each"),
    choice_param("gather", "8", "4|8", "bits of an element in the final all-gather").searched("4|8")};

}  // namespace

std::unique_ptr<Codec<Space::host>> make_qgz_codec(std::int64_t bits, std::size_t block) {
  expect_valid(block % format::kPackGroup == 0, "codec qgz: block must be a multiple of 32");
  if (bits == 8) return std::make_unique<QgzCodec<8>>(block);
  return std::make_unique<QgzCodec<4>>(block);
}

namespace {

std::unique_ptr<Reducer<Space::host>> make_qgz_reducer(const ReducerSetup<Space::host>& setup) {
  return std::make_unique<QgzReducer<Space::host>>(setup, make_qgz_codec);
}

}  // namespace

extern constinit const CodecDescriptor qgz_codec{
    .name = "qgz",
    .summary = "sends 4-bit integers by an all-to-all in two levels, then 8-bit integers by an all-gather",
    .reference = "Wang et al., ZeRO++, 2023, arXiv 2306.10209, section 3.3 (qgZ)",
    .params = kParams,
    .aggregation = Aggregation::own,
    .payload = "bits n + 32 ceil(n/block) bits at each level, gather n + 32 ceil(n/block) for the last; n of the step",
    .make_host =
        [](const Params& p, const Layout&) {
          return make_qgz_codec(p.is("bits", "8") ? 8 : 4, static_cast<std::size_t>(p.integer("block")));
        },
    .make_host_reducer = make_qgz_reducer,
};

}  // namespace gradtool
