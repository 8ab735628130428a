#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/law/iwp.hpp"
#include "lib/codecs/codec.hpp"
#include "lib/codecs/layout.hpp"
#include "lib/codecs/params.hpp"
#include "lib/core/view.hpp"

namespace gradtool {

/// Codec iwp's parameters of masks.
struct MaskPolicy {
  explicit MaskPolicy(const Params& params);

  /// How many of a layer's elements a share is, at least one; 0 where it is all of them.
  [[nodiscard]] static std::size_t taken(double share, std::size_t elements);
  /// The share of the warm-up at a step; 0 when it is over.
  [[nodiscard]] double warmup_share(std::int64_t step) const;
  /// Tensors of one dimension whose kind is known have no mask.
  [[nodiscard]] static bool sent_whole(const TensorShape& tensor);

  law::IwpPolicy law;
  double k, eps;
  std::int64_t warmup;
  float bernoulli;
};

/// Which elements one rank finds important, layer by layer, and the thresholds that this rests on: the part of
/// importance-weighted pruning that ranks do for themselves. Parameters are those of codec iwp.
class ImportanceMask {
 public:
  ImportanceMask(const Params& params, const Layout& layout);

  /// Sets the bits of tensors that are always sent whole: those of one dimension whose kind is known.
  void mark_dense(HostView<std::uint32_t> marks) const;

  /// marks := the important elements of tensors that are not sent whole; their thresholds move. `held` are accumulated
  /// gradients; `importances` (as long) and `selector` (host::Selector) are to work in.
  void mark(Queue<Space::host> queue, HostView<const float> held, HostView<const float> weight,
            const EncodeContext& context, HostView<float> importances, HostView<std::byte> selector,
            HostView<std::uint32_t> marks);

  /// Counts steps, whether this rank has marked or not: the warm-up goes by them.
  void next_step() { ++step_; }
  void reset();

 private:
  /// One tensor, and where its threshold stands on this rank.
  struct Layer {
    std::size_t first = 0;
    std::size_t elements = 0;
    bool dense = false;
    bool started = false;
    float threshold = 0.0F;
    double k = 0.0;
  };

  void mark_layer(Queue<Space::host> queue, Layer& layer, HostView<const float> held, HostView<const float> weight,
                  const EncodeContext& context, HostView<float> all, HostView<std::byte> selector,
                  HostView<std::uint32_t> marks);
  void mark_words_of(const Layer& layer, HostView<const float> all, float threshold, const EncodeContext& context,
                     std::size_t from, std::size_t to, HostView<std::uint32_t> marks) const;
  [[nodiscard]] float threshold_for(Queue<Space::host> queue, Layer& layer, HostView<const float> importance,
                                    HostView<std::byte> selector) const;
  void steer(Layer& layer, double reached) const;

  MaskPolicy policy_;
  std::vector<Layer> layers_;
  std::int64_t step_ = 0;
};

}  // namespace gradtool
