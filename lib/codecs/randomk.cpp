#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <utility>

#include "kernels/host/random_subset.hpp"
#include "kernels/law/keep_nan.hpp"
#include "kernels/law/randomk.hpp"
#include "lib/codecs/cuda_factories.hpp"
#include "lib/codecs/payload.hpp"
#include "lib/codecs/registry.hpp"
#include "lib/core/task_pool.hpp"

namespace gradtool {
namespace {

using law::RandomKKey;

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
    auto* marks = section<std::uint32_t>(scratch);
    host::mark_random_subset(key.draws(), n, k, marks);
    const float factor = scaled_ ? static_cast<float>(static_cast<double>(n) / static_cast<double>(k)) : 1.0F;
    for_marked(queue, marks, n, [&](std::size_t at, std::size_t i) { values[at] = law::times(gradient[i], factor); });
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
    auto* marks = section<std::uint32_t>(scratch);
    host::mark_random_subset(key.draws(), n, k, marks);
    for_marked(queue, marks, n, [&](std::size_t at, std::size_t i) { out[i] += weight * values[at]; });
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

  /// k = round(ratio n), at least one.
  [[nodiscard]] std::size_t values_sent(std::size_t n) const override {
    const auto wanted = static_cast<std::size_t>(std::llround(ratio_ * static_cast<double>(n)));
    return std::clamp<std::size_t>(wanted, std::min<std::size_t>(n, 1), n);
  }

 private:
  static constexpr std::size_t kMostParts = 64;

  static std::size_t mark_words(std::size_t n) { return (n + 31) / 32; }

  /// body(how many marked ones are before it, i) for the marked elements i.
  template <class Body>
  static void for_marked(Queue<Space::host> queue, const std::uint32_t* marks, std::size_t n, const Body& body) {
    const std::size_t words = mark_words(n);
    const std::size_t parts = std::min(kMostParts, part_count(queue, words, 1 << 10));
    std::array<std::size_t, kMostParts> before{};
    parallel_parts(queue, words, parts, 1, [&](std::size_t part, std::size_t first, std::size_t last) {
      std::size_t count = 0;
      for (std::size_t w = first; w < last; ++w) count += static_cast<std::size_t>(std::popcount(marks[w]));
      before[part] = count;
    });
    for (std::size_t part = 0, sum = 0; part < parts; ++part) sum += std::exchange(before[part], sum);
    parallel_parts(queue, words, parts, 1, [&](std::size_t part, std::size_t first, std::size_t last) {
      std::size_t at = before[part];
      for (std::size_t w = first; w < last; ++w) {
        for (std::uint32_t rest = marks[w]; rest != 0; rest &= rest - 1)
          body(at++, 32 * w + static_cast<std::size_t>(std::countr_zero(rest)));
      }
    });
  }

  double ratio_;
  bool scaled_;
};

constexpr ParamInfo kParams[] = {
    {.name = "ratio",
     .kind = ParamInfo::Kind::real,
     .default_value = "0.01",
     .min = 0.0,
     .max = 1.0,
     .meaning = "share of the elements that is sent; at least one is"},
    {.name = "scale",
     .kind = ParamInfo::Kind::choice,
     .default_value = "off",
     .choices = "off|on",
     .meaning = "on multiplies by n/k, which makes it unbiased: for ef=off only, error feedback diverges with it"}};

}  // namespace

extern constinit const CodecDescriptor randomk_codec{
    .name = "randomk",
    .summary = "k elements drawn alike on all ranks, summed by the all-reduce, with error feedback",
    .reference = "Stich et al., Sparsified SGD with Memory, NeurIPS 2018; Wangni et al., NeurIPS 2018",
    .description =
        "All ranks draw the same k elements, without repetition and every subset equally likely, from a key of seed, "
        "step and tensor, and sum the values in a ring: no positions travel and the traffic does not grow with the "
        "ranks. k = round(ratio n). With error feedback, the default, values are sent as they are; scale=on multiplies "
        "them by n/k, which makes the mean over draws the gradient and is meant for ef=off, where without it only the "
        "share k/n of every gradient would arrive. What is ours: the subset is drawn by Floyd's method, and 20 bytes "
        "behind the values say the key, so that a sum of payloads can be decoded by itself. Elements that are not "
        "drawn are not looked at, so a value that is not finite shows when its turn comes. It pays on slow networks "
        "with many ranks; for the same k, topk keeps far more of a gradient's energy.",
    .params = kParams,
    .aggregation = Aggregation::sum,
    .sum_dtype = Dtype::f32,
    .error_feedback = true,
    .payload = "32 k + 160 bits, k = round(ratio n)",
    .make_host = [](const Params& p, const Layout&) -> std::unique_ptr<Codec<Space::host>> {
      return std::make_unique<RandomK>(p);
    },
    .make_cuda = GT_MAKE_CUDA(make_cuda_randomk),
};

}  // namespace gradtool
