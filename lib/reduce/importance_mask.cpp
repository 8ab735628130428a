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

/// The (k + 1)-th largest importance; -1 for k = 0, which MaskPolicy::taken says of all.
float quantile(Queue<Space::host> queue, HostView<const float> importance, std::size_t k, HostView<std::byte> scratch) {
  if (k == 0) return -1.0F;
  const float* x = importance.data();
  const host::Selector selector{queue, importance.size(), scratch};
  return law::float_of(selector.find(k + 1, [x](std::size_t i) { return law::bits_of(x[i]) & 0x7fffffffU; }).threshold);
}

law::IwpPolicy policy_of(const Params& params) {
  using Kind = law::IwpPolicy::Kind;
  law::IwpPolicy policy;
  policy.kind = params.is("policy", "fixed")        ? Kind::fixed
                : params.is("policy", "mean_std")   ? Kind::mean_std
                : params.is("policy", "dispersion") ? Kind::dispersion
                                                    : Kind::target_density;
  policy.fixed = params.real("threshold");
  policy.limit = std::max(policy.fixed, params.real("limit"));
  policy.density = params.real("density");
  return policy;
}

}  // namespace

MaskPolicy::MaskPolicy(const Params& params)
    : law{policy_of(params)},
      k{params.real("k")},
      eps{params.real("eps")},
      warmup{params.integer("warmup")},
      bernoulli{static_cast<float>(params.real("bernoulli"))} {}

std::size_t MaskPolicy::taken(double share, std::size_t elements) {
  const auto wanted = static_cast<std::size_t>(std::llround(share * static_cast<double>(elements)));
  const std::size_t k = std::max<std::size_t>(wanted, 1);
  return k < elements ? k : 0;
}

double MaskPolicy::warmup_share(std::int64_t step) const {
  return step < 5 * warmup ? std::pow(0.25, 1 + step / warmup) : 0.0;
}

bool MaskPolicy::sent_whole(const TensorShape& tensor) {
  return tensor.shape.size() < 2 && tensor.kind != "other";
}

ImportanceMask::ImportanceMask(const Params& params, const Layout& layout) : policy_{params} {
  for (const auto& tensor : layout.tensors) {
    layers_.push_back({.first = tensor.first, .elements = tensor.elements, .dense = MaskPolicy::sent_whole(tensor)});
  }
  reset();
}

void ImportanceMask::reset() {
  for (auto& layer : layers_) {
    layer.started = false;
    layer.k = policy_.k;
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
    floor = law::importance_floor(squares, policy_.eps, static_cast<double>(layer.elements));
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
    if (last - first == 32 && policy_.bernoulli == 0.0F) {  // as many whole words as there are
      const std::size_t whole = std::min(to, end / 32) - word;
      mark_range(all.data() + first, threshold, marks.data() + word, whole);
      word += whole - 1;
      continue;
    }
    for (std::size_t i = first; i < last; ++i) {
      bool sent = law::is_important(all[i], threshold);
      if (!sent && policy_.bernoulli > 0.0F) {
        const float draw = law::uniform(law::draw4(context.key, i / 4).bits[i % 4]);
        sent = draw * threshold < policy_.bernoulli * all[i];
      }
      marks[word] |= (sent ? 1U : 0U) << i % 32;
    }
  }
}

float ImportanceMask::threshold_for(Queue<Space::host> queue, Layer& layer, HostView<const float> importance,
                                    HostView<std::byte> selector) const {
  const auto at_share = [&](double share) {
    return quantile(queue, importance, MaskPolicy::taken(share, importance.size()), selector);
  };
  if (const double share = policy_.warmup_share(step_); share > 0.0) return at_share(share);
  using Kind = law::IwpPolicy::Kind;
  if (policy_.law.kind == Kind::target_density) {
    if (!layer.started || !(layer.threshold > 0.0F)) {  // a threshold of 0 would never move
      layer.threshold = at_share(policy_.law.density);
    }
    layer.started = true;
    return layer.threshold;
  }
  const Moments sums = policy_.law.kind == Kind::fixed ? Moments{} : moments(queue, importance);
  return law::importance_threshold(policy_.law, sums.sum, sums.squares, static_cast<double>(importance.size()),
                                   layer.k);
}

/// Moves the threshold of the next mask towards the density asked for.
void ImportanceMask::steer(Layer& layer, double reached) const {
  if (policy_.warmup_share(step_) > 0.0) return;
  law::steer_importance(policy_.law, reached, layer.threshold, layer.k);
}

}  // namespace gradtool
