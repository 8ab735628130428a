#include "lib/reduce/importance_mask.hpp"

#include <algorithm>
#include <cmath>

#include "kernels/host/select.hpp"
#include "kernels/law/half.hpp"
#include "kernels/law/iwp.hpp"
#include "lib/core/task_pool.hpp"
#include "lib/reduce/marks.hpp"
#include "lib/reduce/ops.hpp"

namespace gradtool {
namespace {

constexpr std::size_t kGrain = 1 << 14;
constexpr float kAbsoluteFloor = 1e-8F;

GT_SIMD_CLONES void importances(const float* a, const float* w, float floor, float* out, std::size_t count) {
  if (w == nullptr) {
    for (std::size_t i = 0; i < count; ++i) out[i] = law::importance(a[i], 0.0F, 1.0F);
    return;
  }
  for (std::size_t i = 0; i < count; ++i) out[i] = law::importance(a[i], w[i], floor);
}

/// Bit i of word i / 32 for i in [0, 32 words).
GT_SIMD_CLONES void mark_range(const float* importance, float threshold, std::uint32_t* out, std::size_t words) {
  for (std::size_t w = 0; w < words; ++w) {
    std::uint32_t word = 0;
    for (std::uint32_t bit = 0; bit < 32; ++bit) {
      word |= (law::is_important(importance[32 * w + bit], threshold) ? 1U : 0U) << bit;
    }
    out[w] = word;
  }
}

/// The largest importance that is not among the round(density m) largest, at least one; -1 where all of them are.
float quantile(Queue<Space::host> queue, HostView<const float> importance, double density,
               HostView<std::byte> scratch) {
  const std::size_t m = importance.size();
  const auto wanted = static_cast<std::size_t>(std::llround(density * static_cast<double>(m)));
  const std::size_t k = std::max<std::size_t>(wanted, 1);
  if (k >= m) return -1.0F;
  const float* x = importance.data();
  const host::Selector selector{queue, m, scratch};
  return law::float_of(selector.find(k + 1, [x](std::size_t i) { return law::bits_of(x[i]) & 0x7fffffffU; }).threshold);
}

}  // namespace

ImportanceMask::ImportanceMask(const Params& params, const Layout& layout)
    : policy_{params.word("policy")},
      fixed_{params.real("threshold")},
      limit_{std::max(fixed_, params.real("limit"))},
      k_{params.real("k")},
      density_{params.real("density")},
      eps_{params.real("eps")},
      warmup_{params.integer("warmup")},
      bernoulli_{static_cast<float>(params.real("bernoulli"))} {
  for (const auto& tensor : layout.tensors) {
    const bool dense = tensor.shape.size() < 2 && tensor.kind != "other";
    layers_.push_back({.first = tensor.first, .elements = tensor.elements, .dense = dense});
  }
  reset();
}

void ImportanceMask::reset() {
  for (auto& layer : layers_) {
    layer.started = false;
    layer.k = k_;
  }
  step_ = 0;
}

void ImportanceMask::mark_dense(HostView<std::uint32_t> marks) const {
  for (const auto& layer : layers_) {
    if (!layer.dense) continue;
    for (std::size_t i = layer.first; i < layer.first + layer.elements; ++i) marks[i / 32] |= 1U << i % 32;
  }
}

void ImportanceMask::mark(Queue<Space::host> queue, HostView<const float> held, HostView<const float> weight,
                          const EncodeContext& context, HostView<float> importances, HostView<std::byte> selector,
                          HostView<std::uint32_t> marks) {
  std::fill(marks.span().begin(), marks.span().end(), 0U);
  for (auto& layer : layers_) {
    if (!layer.dense && layer.elements > 0)
      mark_layer(queue, layer, held, weight, context, importances, selector, marks);
  }
}

/// This rank's mask for one layer; moves the layer's threshold.
void ImportanceMask::mark_layer(Queue<Space::host> queue, Layer& layer, HostView<const float> held,
                                HostView<const float> weight, const EncodeContext& context, HostView<float> all,
                                HostView<std::byte> selector, HostView<std::uint32_t> marks) {
  const auto importance = all.part(layer.first, layer.elements);
  float floor = 0.0F;
  if (!weight.empty()) {
    const double squares = moments(queue, weight.part(layer.first, layer.elements)).squares;
    floor = static_cast<float>(eps_ * std::sqrt(squares / static_cast<double>(layer.elements))) + kAbsoluteFloor;
  }
  parallel_for(queue, layer.elements, 16, kGrain, [&](std::size_t first, std::size_t last) {
    importances(held.data() + layer.first + first, weight.empty() ? nullptr : weight.data() + layer.first + first,
                floor, importance.data() + first, last - first);
  });
  const float threshold = threshold_for(queue, layer, importance, selector);
  const std::size_t first_word = layer.first / 32;
  const std::size_t last_word = mark_words(layer.first + layer.elements);
  // Its first word may already have marks of the layer before.
  const std::size_t before = count_marks(marks.part(first_word, last_word - first_word));
  parallel_for(queue, last_word - first_word, 1, kGrain / 32, [&](std::size_t from, std::size_t to) {
    mark_words_of(layer, all, threshold, context, first_word + from, first_word + to, marks);
  });
  const auto marked = count_marks(marks.part(first_word, last_word - first_word)) - before;
  steer(layer, static_cast<double>(marked) / static_cast<double>(layer.elements));
}

void ImportanceMask::mark_words_of(const Layer& layer, HostView<const float> all, float threshold,
                                   const EncodeContext& context, std::size_t from, std::size_t to,
                                   HostView<std::uint32_t> marks) const {
  const std::size_t end = layer.first + layer.elements;
  for (std::size_t word = from; word < to; ++word) {
    const std::size_t first = std::max(layer.first, 32 * word);
    const std::size_t last = std::min(end, 32 * word + 32);
    if (last - first == 32 && bernoulli_ == 0.0F) {  // as many whole words as there are
      const std::size_t whole = std::min(to, end / 32) - word;
      mark_range(all.data() + first, threshold, marks.data() + word, whole);
      word += whole - 1;
      continue;
    }
    for (std::size_t i = first; i < last; ++i) {
      bool sent = law::is_important(all[i], threshold);
      if (!sent && bernoulli_ > 0.0F) {
        const float draw = law::uniform(law::draw4(context.key, i / 4).bits[i % 4]);
        sent = draw * threshold < bernoulli_ * all[i];
      }
      marks[word] |= (sent ? 1U : 0U) << i % 32;
    }
  }
}

float ImportanceMask::threshold_for(Queue<Space::host> queue, Layer& layer, HostView<const float> importance,
                                    HostView<std::byte> selector) const {
  if (warming_up()) return quantile(queue, importance, std::pow(0.25, 1 + step_ / warmup_), selector);
  if (policy_ == "fixed") return static_cast<float>(fixed_);
  if (policy_ == "target_density") {
    if (!layer.started || !(layer.threshold > 0.0F)) {  // a threshold of 0 would never move
      layer.threshold = quantile(queue, importance, density_, selector);
    }
    layer.started = true;
    return layer.threshold;
  }
  const Moments sums = moments(queue, importance);
  const double mean = sums.sum / static_cast<double>(importance.size());
  const double variance = std::max(0.0, sums.squares / static_cast<double>(importance.size()) - mean * mean);
  if (policy_ == "mean_std") return static_cast<float>(mean + layer.k * std::sqrt(variance));
  return static_cast<float>(
      std::clamp(fixed_ * (1.0 + variance / (mean + static_cast<double>(kAbsoluteFloor))), fixed_, limit_));
}

/// Moves the threshold of the next mask towards the density asked for.
void ImportanceMask::steer(Layer& layer, double reached) const {
  if (warming_up()) return;
  const double factor = reached > 1.25 * density_ ? 1.05 : reached < 0.8 * density_ ? 1.0 / 1.05 : 1.0;
  if (policy_ == "target_density") layer.threshold *= static_cast<float>(factor);
  if (policy_ == "mean_std") layer.k *= factor;
}

}  // namespace gradtool
