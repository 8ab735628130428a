#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

#include "kernels/vector.hpp"
#include "lib/codecs/layout.hpp"
#include "lib/codecs/params.hpp"
#include "lib/core/arena.hpp"
#include "lib/methods/vgc/format.hpp"

/// The part that the CPU and the GPU version of codec vgc share: parameters, the layout of a payload, and the state of
/// a rank.
namespace gradtool {

struct VgcOptions {
  explicit VgcOptions(const Params& params)
      : rule{.alpha = static_cast<float>(params.real("alpha")),
             .zeta = static_cast<float>(params.real("zeta")),
             .tau = params.is("tau", "off") ? 0.0F : static_cast<float>(params.real("tau"))},
        keeps_dropped{params.is("dropped", "keep")},
        largest_of_all{params.is("largest", "all")} {}

  format::Vgc rule;
  bool keeps_dropped;   ///< dropped=keep: an element that was chosen but is too small for a word keeps its state
  bool largest_of_all;  ///< largest=all: the elements that are not sent count too when a group's exponent is chosen
};

/// How a bucket is cut into groups, and where a payload has what belongs to them: its own size (8 bytes), the counts of
/// words, the exponents (padded to 4 bytes), the words. A group has one exponent, and is short enough for the index
/// bits of a word: sections of up to 2^28 elements of each tensor, for the hybrid sections of up to 2^31 elements of
/// the bucket.
struct VgcGroups {
  struct Group {
    std::size_t first = 0, elements = 0;
  };
  static constexpr std::size_t kCountsOffset = 8;

  VgcGroups(const Layout& layout, bool hybrid) {
    const auto add = [&](std::size_t first, std::size_t elements, std::size_t longest) {
      for (std::size_t done = 0; done < elements; done += longest)
        groups.push_back({first + done, std::min(longest, elements - done)});
    };
    if (hybrid) {
      add(0, layout.elements, std::size_t{format::Vgc::kHybridIndex} + 1);
    } else {
      for (const auto& tensor : layout.tensors)
        add(tensor.first, tensor.elements, std::size_t{format::Vgc::kIndex} + 1);
    }
  }

  [[nodiscard]] std::size_t exponents_offset() const { return kCountsOffset + 4 * groups.size(); }
  [[nodiscard]] std::size_t words_offset() const { return exponents_offset() + (groups.size() + 3) / 4 * 4; }

  std::vector<Group> groups;
};

/// r and v of one rank. `VgcCodec` has step(queue, gradient, second moments, r, v, payload, scratch).
template <Space S, class VgcCodec>
class VgcEncoder final : public Encoder<S> {
 public:
  VgcEncoder(const VgcCodec& codec, std::size_t n, Queue<S> queue)
      : codec_{codec},
        arena_{2 * Arena<S>::padded_size(4 * n)},
        r_{arena_.template take<float>(n)},
        v_{arena_.template take<float>(n)} {
    VgcEncoder::reset(queue);
  }

  void encode(Queue<S> queue, View<const float, S> gradient, const SideInputs<S>& side,
              const EncodeContext& /*context*/, View<std::byte, S> payload, View<std::byte, S> scratch) override {
    had_moments_ = had_moments_ && !side.second_moment.empty();
    codec_.step(queue, gradient, side.second_moment, r_.data(), v_.data(), payload, scratch);
  }
  void reset(Queue<S> queue) override {
    fill_zero(queue, r_);
    fill_zero(queue, v_);
    had_moments_ = true;
  }
  void visit_state(StateVisitor& visitor) override {
    visitor.values("r", r_);
    visitor.values("v", v_);
    visitor.value("had moments", had_moments_);
  }
  [[nodiscard]] View<const float, S> residual() const override { return r_; }
  [[nodiscard]] std::string note() const override {
    return had_moments_
               ? ""
               : "no second moments of some tensors or all: v sums squares of whole mini-batch gradients (K = 1)";
  }

 private:
  const VgcCodec& codec_;
  Arena<S> arena_;
  View<float, S> r_, v_;
  bool had_moments_ = true;
};

}  // namespace gradtool
