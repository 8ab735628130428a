#include <algorithm>
#include <array>

#include "kernels/draws.hpp"
#include "kernels/float_bits.hpp"
#include "kernels/marks.hpp"
#include "kernels/sparse.hpp"
#include "lib/codecs/payload.hpp"
#include "lib/codecs/registry.hpp"
#include "lib/core/error.hpp"
#include "lib/methods/randomk/format.hpp"

namespace gradtool {

void host::mark_random_subset(const format::DrawKey& key, std::size_t n, std::size_t count, std::uint32_t* marks) {
  const std::size_t words = (n + 31) / 32;
  const bool complement = count > n / 2;
  const std::size_t drawn = complement ? n - count : count;
  std::fill_n(marks, words, 0U);
  std::array<std::uint32_t, 8 * host::kDrawGroup> draws{};
  for (std::size_t i = 0; i < drawn; ++i) {
    const std::size_t next = 2 * i % draws.size();
    if (next == 0) host::draw_tile(key, 2 * i, std::min(draws.size(), 2 * (drawn - i)), draws.data());
    const std::uint64_t j = n - drawn + i;
    const std::uint64_t t = format::subset_place(draws[next], draws[next + 1], j);
    const std::uint64_t mark = (marks[t / 32] >> t % 32 & 1U) == 0 ? t : j;
    marks[mark / 32] |= 1U << mark % 32;
  }
  if (!complement || words == 0) return;
  for (std::size_t w = 0; w < words; ++w) marks[w] = ~marks[w];
  if (n % 32 != 0) marks[words - 1] &= (1U << n % 32) - 1U;
}

namespace {

using format::RandomKKey;

/// k elements that all ranks draw alike, and their values only: payloads that the ring can add.
class RandomK final : public Codec<Space::host> {
 public:
  explicit RandomK(const Params& params) : ratio_{params.real("ratio")}, scaled_{params.is("scale", "on")} {}

  [[nodiscard]] Footprint plan(std::size_t n) const override {
    if (n == 0) return {};
    return {.payload_bytes = 4 * (values_sent(n) + RandomKKey::kTrailer), .scratch_bytes = 4 * mark_words(n)};
  }

  void encode(Queue<Space::host> queue, HostView<const float> gradient, const EncodeContext& context,
              HostView<std::byte> payload, HostView<std::byte> scratch) const override {
    const std::size_t n = gradient.size();
    if (n == 0) return;
    const std::size_t k = values_sent(n);
    auto* values = section<float>(payload);
    const RandomKKey key = RandomKKey::written(context.key, values + k);
    const HostView<std::uint32_t> marks{section<std::uint32_t>(scratch), mark_words(n)};
    host::mark_random_subset(key.draws(), n, k, marks.data());
    const float factor = scaled_ ? static_cast<float>(static_cast<double>(n) / static_cast<double>(k)) : 1.0F;
    for_each_mark(queue, HostView<const std::uint32_t>{marks},
                  [&](std::size_t place, std::size_t i) { values[place] = format::times(gradient[i], factor); });
  }

  void decode_add(Queue<Space::host> queue, HostView<const std::byte> payload, float weight, HostView<float> out,
                  HostView<std::byte> scratch) const override {
    const std::size_t n = out.size();
    expect_length("randomk", payload.size(), plan(n).payload_bytes);
    if (n == 0) return;
    const std::size_t k = values_sent(n);
    const auto* values = section<float>(payload);
    const RandomKKey key = RandomKKey::read(values + k);
    if (!key.valid) throw Error{Fault::data, "randomk payload: what stands behind the values is no key"};
    const HostView<std::uint32_t> marks{section<std::uint32_t>(scratch), mark_words(n)};
    host::mark_random_subset(key.draws(), n, k, marks.data());
    for_each_mark(queue, HostView<const std::uint32_t>{marks},
                  [&](std::size_t place, std::size_t i) { out[i] += weight * values[place]; });
  }

  /// Unscaled, every element is either exact or lost. Scaled, one that is sent is n/k times itself.
  [[nodiscard]] ErrorBound bound(std::size_t n) const override {
    if (n == 0) return {.nmse = 0.0, .of_largest = 0.0};
    const double k = static_cast<double>(values_sent(n));
    const double worst = scaled_                      ? std::max(1.0, static_cast<double>(n) / k - 1.0) * (1.0 + 1e-6)
                         : k < static_cast<double>(n) ? 1.0
                                                      : 0.0;
    return {.nmse = worst * worst, .of_largest = worst};
  }

  [[nodiscard]] std::size_t values_sent(std::size_t n) const override { return share_of(ratio_, n); }

 private:
  double ratio_;
  bool scaled_;
};

constexpr ParamInfo kParams[] = {
    real_param("ratio", "0.01", {0.0, 1.0}, "share of the elements that is sent; at least one is")
        .searched("0.001|0.004|0.016|0.064|0.25|0.5"),
    choice_param("scale", "off", "off|on",
                 "on multiplies by n/k, which makes it unbiased; error feedback is off then, since it would diverge")};

}  // namespace

extern constinit const CodecDescriptor randomk_codec{
    .name = "randomk",
    .summary = "sends k elements that all ranks draw alike, so that an all-reduce adds them, with error feedback",
    .reference = "Stich et al., Sparsified SGD with Memory, NeurIPS 2018; Wangni et al., NeurIPS 2018",
    .params = kParams,
    .aggregation = Aggregation::sum,
    .sum_dtype = Dtype::f32,
    .error_feedback = true,
    .amplifier = "scale",
    .payload = "32 k + 160 bits, k = round(ratio n)",
    .passes =
        [](const Params& p) {
          return MemoryPasses{
              .reads = p.real("ratio"), .why = "elements that it does not draw are not looked at", .scatters = true};
        },
    .make_host = make_method_codec<Space::host, RandomK>,
};

}  // namespace gradtool
