#include <algorithm>
#include <cstring>
#include <memory>
#include <vector>

#include "kernels/float_bits.hpp"
#include "kernels/select.hpp"
#include "kernels/vector.hpp"
#include "lib/core/task_pool.hpp"
#include "lib/methods/iwp/reducer.hpp"

namespace gradtool {
namespace {

constexpr std::size_t kGrain = 1 << 14;  ///< elements that are worth a thread

/// u := mu u + factor g, a += u. With u null, a += factor g.
GT_SIMD_CLONES void accumulate_range(const float* g, float factor, float mu, float* u, float* a, std::size_t count) {
  if (u == nullptr) {
    for (std::size_t i = 0; i < count; ++i) a[i] += factor * g[i];
    return;
  }
  for (std::size_t i = 0; i < count; ++i) {
    u[i] = mu * u[i] + factor * g[i];
    a[i] += u[i];
  }
}

/// Without weights (w null) the importance is |a|.
GT_SIMD_CLONES void importances_of_range(const float* a, const float* w, float floor, float* out, std::size_t count) {
  if (w == nullptr) {
    for (std::size_t i = 0; i < count; ++i) out[i] = format::importance(a[i], 0.0F, 1.0F);
    return;
  }
  for (std::size_t i = 0; i < count; ++i) out[i] = format::importance(a[i], w[i], floor);
}

/// Writes whole words of a bitmap: bit i mod 32 of out[i div 32] for i in [0, 32 words).
GT_SIMD_CLONES void mark_whole_words(const float* importance, float threshold, std::uint32_t* out, std::size_t words) {
  for (std::size_t w = 0; w < words; ++w) {
    std::uint32_t word = 0;
    for (std::uint32_t bit = 0; bit < 32; ++bit) {
      word |= (format::is_important(importance[32 * w + bit], threshold) ? 1U : 0U) << bit;
    }
    out[w] = word;
  }
}

/// The steps of IwpReducer on the CPU.
class HostSteps {
  using Queue = gradtool::Queue<Space::host>;
  using Floats = HostView<float>;
  using ConstFloats = HostView<const float>;
  using Bitmap = HostView<std::uint32_t>;

 public:
  struct Workspace {
    Workspace(const HostSteps& steps, Scratch<Space::host>& scratch)
        : largest{scratch.take_bytes(host::Largest::scratch_bytes(steps.n_, 0))} {}
    HostView<std::byte> largest;  ///< of host::Largest
  };

  HostSteps(const MaskPolicy& policy, std::vector<IwpLayer> layers, const IndexCoding& coding, std::size_t n)
      : policy_{policy}, layers_{std::move(layers)}, coding_{coding}, n_{n} {}

  /// See Reducer::visit_state.
  void visit_state(StateVisitor& visitor) { visitor.values("thresholds", layers_); }
  void reset(Queue /*queue*/) {
    for (IwpLayer& layer : layers_) {
      layer.k = policy_.k;
      layer.threshold = 0.0F;
    }
  }
  void upload(Queue /*queue*/, HostView<const std::uint32_t> words, Bitmap out) const {
    std::copy(words.span().begin(), words.span().end(), out.data());
  }
  void copy(Queue queue, HostView<const std::uint32_t> words, Bitmap out) const { upload(queue, words, out); }

  void accumulate(Queue queue, ConstFloats gradient, double largest_norm, float mu, Floats u, Floats a,
                  const Workspace& /*work*/) const {
    const float factor =
        largest_norm > 0.0 ? format::clip_factor(moments(queue, gradient).squares, largest_norm) : 1.0F;
    parallel_for(queue, n_, 16, kGrain, [&](std::size_t first, std::size_t last) {
      accumulate_range(gradient.data() + first, factor, mu, u.empty() ? nullptr : u.data() + first, a.data() + first,
                       last - first);
    });
  }

  void mark(Queue queue, const MaskInput<Space::host>& input, Floats importances, Bitmap mask,
            HostView<std::uint64_t> positive, const Workspace& work) {
    std::fill(mask.span().begin(), mask.span().end(), 0U);
    for (std::size_t l = 0; l < layers_.size(); ++l) {
      if (layers_[l].elements > 0) mark_layer(queue, layers_[l], input, importances, mask, work);
      positive[l] = layers_[l].threshold > 0.0F ? 1 : 0;
    }
  }
  void learn(std::span<const std::uint64_t> /*positive*/) {}  // layers_ has the thresholds already

  void encode_mask(Queue queue, HostView<const std::uint32_t> mask, HostView<std::uint32_t> positions,
                   HostView<std::byte> slot, HostView<MaskHeader> header, const Workspace& /*work*/) const {
    const std::size_t count = for_each_mark(
        queue, mask, [&](std::size_t place, std::size_t i) { positions[place] = static_cast<std::uint32_t>(i); });
    const IndexCoding::Choice choice = coding_.choose(positions.first(count), n_);
    header[0] = {choice.bytes, static_cast<std::uint32_t>(count), static_cast<std::uint32_t>(choice.code)};
    IndexCoding::write(queue, choice, positions.first(count), n_, slot.data() + sizeof(SparseHeader));
  }

  void merge_mask(Queue queue, const MaskHeader& header, HostView<MaskHeader> /*device_header*/,
                  HostView<const std::byte> slot, HostView<std::uint32_t> positions, Bitmap marks,
                  const Workspace& /*work*/) const {
    const auto mask = slot.part(sizeof(SparseHeader), static_cast<std::size_t>(header.bytes));
    const auto code = static_cast<IndexCode>(header.code);
    if (code == IndexCode::bitmap && header.bytes == marks.bytes()) {
      const auto* words = reinterpret_cast<const std::uint32_t*>(mask.data());
      if (n_ % 32 != 0 && words[marks.size() - 1] >> n_ % 32 != 0)
        throw Error{Fault::data, "iwp: a rank's mask goes past the end"};
      parallel_for(queue, marks.size(), 16, kGrain, [&](std::size_t first, std::size_t last) {
        for (std::size_t i = first; i < last; ++i) marks[i] |= words[i];
      });
      return;
    }
    const auto marked = positions.first(header.count);
    IndexCoding::read("iwp", code, mask, n_, marked);
    for (const std::uint32_t i : marked.span()) marks[i / 32] |= 1U << i % 32;
  }

  std::size_t take_marked(Queue queue, Bitmap marks, HostView<const std::uint32_t> dense, Floats a, Floats u,
                          Floats values, const Workspace& /*work*/) const {
    return for_each_mark(queue, marks, [&](std::size_t place, std::size_t i) {
      values[place] = format::one_nan(a[i]);
      a[i] = 0.0F;
      if (!u.empty() && (dense[i / 32] >> i % 32 & 1U) == 0) u[i] = 0.0F;
    });
  }
  void place_marked(Queue queue, Bitmap marks, ConstFloats values, float factor, Floats out,
                    const Workspace& /*work*/) const {
    fill_zero(queue, out);
    for_each_mark(queue, marks, [&](std::size_t place, std::size_t i) { out[i] = values[place] * factor; });
  }

 private:
  /// Marks the important elements of one layer, and moves its threshold.
  void mark_layer(Queue queue, IwpLayer& layer, const MaskInput<Space::host>& input, Floats all_importances,
                  Bitmap mask, const Workspace& work) const {
    const Floats importances = all_importances.part(layer.first, layer.elements);
    const float* weight = input.weight.empty() ? nullptr : input.weight.data() + layer.first;
    const auto elements = static_cast<double>(layer.elements);
    if (weight != nullptr) {
      const double squares = moments(queue, input.weight.part(layer.first, layer.elements)).squares;
      layer.floor = format::importance_floor(squares, policy_.eps, elements);
    }
    parallel_for(queue, layer.elements, 16, kGrain, [&](std::size_t first, std::size_t last) {
      importances_of_range(input.accumulated.data() + layer.first + first, weight == nullptr ? nullptr : weight + first,
                           layer.floor, importances.data() + first, last - first);
    });
    layer.used = threshold(queue, layer, importances, input.warmup_density, work);

    const std::size_t first_word = layer.first / 32;
    const std::size_t last_word = mark_words(layer.first + layer.elements);
    // The layer's first word may already hold marks of the layer before it.
    const std::size_t marked_before = count_marks(mask.part(first_word, last_word - first_word));
    parallel_for(queue, last_word - first_word, 1, kGrain / 32, [&](std::size_t first, std::size_t last) {
      mark_words_of_layer(layer, all_importances, input.key, first_word + first, first_word + last, mask);
    });
    const std::size_t marked = count_marks(mask.part(first_word, last_word - first_word)) - marked_before;
    if (input.warmup_density > 0.0) return;
    format::steer_threshold(policy_.threshold, static_cast<double>(marked) / elements, layer.threshold, layer.k);
  }

  /// This step's threshold of a layer.
  float threshold(Queue queue, IwpLayer& layer, ConstFloats importances, double warmup_density,
                  const Workspace& work) const {
    switch (policy_.source(warmup_density)) {
      case MaskPolicy::Source::quantile:
        return quantile(queue, importances, warmup_density, work);
      case MaskPolicy::Source::kept_or_quantile:
        if (!(layer.threshold > 0.0F)) layer.threshold = quantile(queue, importances, policy_.threshold.density, work);
        return layer.threshold;
      case MaskPolicy::Source::constant:
        return format::importance_threshold(policy_.threshold, 0.0, 0.0, 1.0, 0.0);
      case MaskPolicy::Source::sums:
        break;
    }
    const Moments sums = moments(queue, importances);
    return format::importance_threshold(policy_.threshold, sums.sum, sums.squares,
                                        static_cast<double>(importances.size()), layer.k);
  }

  /// The (k + 1)-th largest importance, where k elements are the share `density` of all; -1, which every importance
  /// exceeds, where k would be all of them.
  static float quantile(Queue queue, ConstFloats importances, double density, const Workspace& work) {
    const std::size_t k = MaskPolicy::elements_at(density, importances.size());
    if (k == 0) return -1.0F;
    return host::Largest{queue, importances, work.largest}.threshold(k + 1);
  }

  /// Sets the layer's bits in the words [from, to) of the bucket's bitmap.
  void mark_words_of_layer(const IwpLayer& layer, ConstFloats importances, const format::DrawKey& key, std::size_t from,
                           std::size_t to, Bitmap mask) const {
    const std::size_t end = layer.first + layer.elements;
    for (std::size_t word = from; word < to; ++word) {
      const std::size_t first = std::max<std::size_t>(layer.first, 32 * word);
      const std::size_t last = std::min(end, 32 * word + 32);
      if (last - first == 32 && policy_.bernoulli == 0.0F) {  // all words that are whole, in one go
        const std::size_t whole = std::min(to, end / 32) - word;
        mark_whole_words(importances.data() + first, layer.used, mask.data() + word, whole);
        word += whole - 1;
        continue;
      }
      for (std::size_t i = first; i < last; ++i) {
        bool marked = format::is_important(importances[i], layer.used);
        if (!marked && policy_.bernoulli > 0.0F) {
          const float draw = format::uniform(format::draw4(key, i / 4).bits[i % 4]);
          marked = draw * layer.used < policy_.bernoulli * importances[i];
        }
        mask[word] |= (marked ? 1U : 0U) << i % 32;
      }
    }
  }

  const MaskPolicy& policy_;
  std::vector<IwpLayer> layers_;
  IndexCoding coding_;
  std::size_t n_;
};

constexpr ParamInfo kParams[] = {
    choice_param("policy", "target_density", "fixed|mean_std|dispersion|target_density",
                 "how a layer's threshold follows from its importances"),
    real_param("threshold", "0.01", {0.0, 1e6}, "t of fixed and dispersion"),
    real_param("limit", "1", {0.0, 1e9}, "largest threshold of dispersion, at least t"),
    real_param("k", "3", {0.0, 1e6}, "standard deviations above the mean that mean_std starts from"),
    real_param("density", "0.01", {1e-6, 1.0}, "share of a layer that mean_std and target_density aim at for one mask")
        .searched("0.001|0.004|0.016|0.064|0.25"),
    real_param("eps", "0.001", {0.0, 1e3}, "added to |w|, in units of the layer's rms weight"),
    integer_param("roots", "2", {1, 4096}, "ranks that broadcast a mask in a step, at most all of them"),
    choice_param("mask", "auto", "auto|bitmap|elias|u32", "how a mask is written; auto takes the smallest"),
    real_param("mu", "0", {0.0, 0.9999}, "momentum correction; 0.9 in training, where the optimiser then has none"),
    choice_param("masking", "on", "on|off", "whether sent elements also lose their momentum"),
    real_param("clip", "0", {0.0, 1e9}, "largest gradient norm times sqrt(ranks), over the unit; 0 does not clip"),
    integer_param("warmup", "0", {0, 1e9},
                  "steps in each of the five stages 25 %, 6.25 %, 1.56 %, 0.39 %, 0.098 %; 0 has none"),
    real_param("bernoulli", "0", {0.0, 1.0},
               "q: an element below the threshold passes with probability q importance / threshold")};

}  // namespace

extern constinit const CodecDescriptor iwp_codec{
    .name = "iwp",
    .summary =
        "sends gradients that are large beside their weight, at places that a few ranks pick for all, round a ring",
    .reference = "Cheng and Xu, arXiv 1901.01544 (reconstruction)",
    .params = kParams,
    .aggregation = Aggregation::own,
    .memory = true,
    .delays = true,
    .by_layout = true,
    .needs_weight = true,
    .momentum = "mu",
    .payload = "32 |M| bits, and (n or about |m| (log2(n/|m|) + 2)) + 128 bits on a rank that broadcasts its mask m",
    .passes = [](const Params& p) { return MemoryPasses{.kept = p.real("mu") > 0.0 ? 2 : 1, .side = 1}; },
    .make_host_reducer = make_method_reducer<Space::host, IwpReducer<Space::host, HostSteps>>,
};

}  // namespace gradtool
