#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "kernels/host/select.hpp"
#include "kernels/law/half.hpp"
#include "lib/codecs/payload.hpp"
#include "lib/codecs/registry.hpp"
#include "lib/core/task_pool.hpp"

namespace gradtool {
namespace {

/// Exactly k values of the largest magnitude; ties go to the lower index. Values first, then where they belong.
class TopK final : public Codec<Space::host> {
 public:
  explicit TopK(const Params& params) : ratio_{params.real("ratio")}, index_{params.word("index")} {}

  [[nodiscard]] Footprint plan(std::size_t n) const override {
    return {.payload_bytes = 4 * values_sent(n) + index_bytes(n), .scratch_bytes = host::Selector::scratch_bytes()};
  }

  void encode(Queue<Space::host> queue, HostView<const float> gradient, const EncodeContext& /*context*/,
              HostView<std::byte> payload, HostView<std::byte> scratch) const override {
    const std::size_t n = gradient.size();
    if (n == 0) return;
    const std::size_t k = values_sent(n);
    const float* x = gradient.data();
    const auto key = [x](std::size_t i) { return law::bits_of(x[i]) & 0x7fffffffu; };
    const host::Selector selector{queue, n, scratch};
    const host::Cut cut = selector.find(k, key);
    auto* values = section<float>(payload);
    auto* where = section<std::uint32_t>(payload, 4 * k);
    const bool bitmap = uses_bitmap(n);
    selector.for_each_part(
        cut, key, [&](std::size_t, std::size_t first, std::size_t last, std::size_t at, std::size_t ties) {
          for (std::size_t word = first; word < last; word += 32) {  // parts start at multiples of 32
            std::uint32_t kept = 0;
            const std::size_t end = std::min<std::size_t>(32, last - word);
            for (std::size_t bit = 0; bit < end; ++bit) kept |= (key(word + bit) >= cut.threshold ? 1u : 0u) << bit;
            if (kept == 0 && !bitmap) continue;
            for (std::uint32_t rest = kept; rest != 0; rest &= rest - 1) {
              const auto bit = static_cast<std::size_t>(std::countr_zero(rest));
              const std::size_t i = word + bit;
              if (key(i) == cut.threshold && ties-- == 0) {
                ties = 0;
                kept &= ~(1u << bit);
                continue;
              }
              values[at] = x[i];
              if (!bitmap) where[at] = static_cast<std::uint32_t>(i);
              ++at;
            }
            if (bitmap) where[word / 32] = kept;
          }
        });
  }

  void decode_add(Queue<Space::host> /*queue*/, HostView<const std::byte> payload, float weight, HostView<float> out,
                  HostView<std::byte> /*scratch*/) const override {
    const std::size_t n = out.size();
    const std::size_t k = values_sent(n);
    expect_length("topk", payload.size(), 4 * k + index_bytes(n));
    const auto* values = section<float>(payload);
    const auto* where = section<std::uint32_t>(payload, 4 * k);
    if (!uses_bitmap(n)) {
      for (std::size_t i = 0; i < k; ++i) {
        if (where[i] >= n) throw Error{Fault::data, fmt::format("topk payload: index {} of {} elements", where[i], n)};
        out[where[i]] += weight * values[i];
      }
      return;
    }
    std::size_t at = 0;
    for (std::size_t word = 0; word < (n + 31) / 32; ++word) {
      for (std::uint32_t rest = where[word]; rest != 0; rest &= rest - 1) {
        const std::size_t i = 32 * word + static_cast<std::size_t>(std::countr_zero(rest));
        if (i >= n || at == k)
          throw Error{Fault::data, fmt::format("topk payload: bitmap does not mark {} of {} elements", k, n)};
        out[i] += weight * values[at++];
      }
    }
    if (at != k) throw Error{Fault::data, fmt::format("topk payload: bitmap marks {} elements, not {}", at, k)};
  }

  /// Dropping the n-k smallest squares keeps at least their share k/n.
  [[nodiscard]] ErrorBound bound(std::size_t n) const override {
    const double kept = n == 0 ? 1.0 : static_cast<double>(values_sent(n)) / static_cast<double>(n);
    return {.nmse = (1.0 - kept) * (1.0 + 1e-9), .of_largest = 1.0};
  }

  /// k = round(ratio n), at least one.
  [[nodiscard]] std::size_t values_sent(std::size_t n) const override {
    const auto wanted = static_cast<std::size_t>(std::llround(ratio_ * static_cast<double>(n)));
    return std::clamp<std::size_t>(wanted, std::min<std::size_t>(n, 1), n);
  }

 private:
  /// A bitmap costs n bits, a list 32 k: the bitmap wins from k/n > 1/32 on.
  [[nodiscard]] bool uses_bitmap(std::size_t n) const {
    if (index_ != "auto") return index_ == "bitmap";
    return (n + 31) / 32 < values_sent(n);
  }
  [[nodiscard]] std::size_t index_bytes(std::size_t n) const {
    return 4 * (uses_bitmap(n) ? (n + 31) / 32 : values_sent(n));
  }

  double ratio_;
  std::string index_;
};

constexpr ParamInfo kParams[] = {{.name = "ratio",
                                  .kind = ParamInfo::Kind::real,
                                  .default_value = "0.01",
                                  .min = 0.0,
                                  .max = 1.0,
                                  .meaning = "share of the elements that is sent; at least one is"},
                                 {.name = "index",
                                  .kind = ParamInfo::Kind::choice,
                                  .default_value = "auto",
                                  .choices = "auto|u32|bitmap",
                                  .meaning = "how positions are written; auto takes the smaller"}};

}  // namespace

extern constinit const CodecDescriptor topk_codec{
    .name = "topk",
    .summary = "the k largest magnitudes, exactly, with error feedback",
    .reference = "Aji and Heafield, EMNLP 2017; Stich et al., NeurIPS 2018",
    .params = kParams,
    .aggregation = Aggregation::gather,
    .error_feedback = true,
    .payload = "32 k + min(32 k, n) bits, k = round(ratio n)",
    .make_host = [](const Params& p, const Layout&) -> std::unique_ptr<Codec<Space::host>> {
      return std::make_unique<TopK>(p);
    },
    .make_cuda = nullptr,
};

}  // namespace gradtool
