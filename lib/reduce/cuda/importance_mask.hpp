#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/cuda/iwp.hpp"
#include "kernels/cuda/runtime.hpp"
#include "kernels/cuda/select.hpp"
#include "lib/reduce/host_reducer.hpp"
#include "lib/reduce/importance_mask.hpp"
#include "lib/reduce/marks.hpp"

namespace gradtool {

/// This rank's masks: ImportanceMask with its thresholds on the GPU. The host knows of them only whether they are above
/// 0, from the last mask.
class CudaImportanceMask {
 public:
  using Device = Arena<Space::cuda>;
  using Bytes = View<std::byte, Space::cuda>;
  template <class T>
  using DeviceView = View<T, Space::cuda>;

  CudaImportanceMask(const Params& params, const Layout& layout, Queue<Space::cuda> queue)
      : policy_{params}, tensors_{layout.tensors}, states_{tensors_.size() * sizeof(cuda::IwpLayer)} {
    expects(tensors_.size() < 65536, "iwp: a unit of more than 65535 tensors");
    for (const auto& tensor : tensors_) {
      quantile_.push_back(true);
      if (!has_mask(tensor)) continue;
      largest_ = std::max(largest_, tensor.elements);
      select_bytes_ = std::max(select_bytes_, cuda::Select::scratch_bytes(tensor.elements));
      sums_ += cuda::moment_sums(tensor.elements);
    }
    reset(queue);
  }

  void reset(Queue<Space::cuda> queue) {
    std::vector<cuda::IwpLayer> fresh(layers());
    std::uint64_t chunk = 0;
    for (std::size_t l = 0; l < layers(); ++l) {
      fresh[l].first = tensors_[l].first;
      fresh[l].elements = has_mask(tensors_[l]) ? tensors_[l].elements : 0;
      fresh[l].chunk = chunk;
      fresh[l].k = policy_.k;
      chunk += law::sum_cut(fresh[l].elements).count;
    }
    cuda::copy_elements(queue, states(), HostView<const cuda::IwpLayer>{fresh.data(), fresh.size()});
    cuda::synchronize(queue);
    std::fill(quantile_.begin(), quantile_.end(), true);
    step_ = 0;
  }

  [[nodiscard]] std::vector<std::uint32_t> dense_marks(std::size_t n) const {
    std::vector<std::uint32_t> marks(mark_words(n));
    for (const auto& tensor : tensors_) {
      if (!MaskPolicy::sent_whole(tensor)) continue;
      for (std::size_t i = tensor.first; i < tensor.first + tensor.elements; ++i) marks[i / 32] |= 1U << i % 32;
    }
    return marks;
  }

  /// Flags that `mark` writes: a uint64 for each layer, which `learn` is told of later.
  [[nodiscard]] std::size_t layers() const { return tensors_.size(); }
  [[nodiscard]] std::size_t scratch_bytes() const {
    return Device::padded_size(select_bytes_) + Device::padded_size(sums_ * sizeof(double));
  }

  /// marks := the important elements; `importances` is to work in.
  void mark(Queue<Space::cuda> queue, DeviceView<const float> held, DeviceView<const float> weight,
            const EncodeContext& context, DeviceView<float> importances, DeviceView<std::uint32_t> marks,
            DeviceView<std::uint64_t> positive, Bytes scratch) {
    Carver<Space::cuda> carve{scratch};
    const auto select = carve.take(select_bytes_);
    const auto sums = take<double>(carve, sums_);
    const cuda::IwpLayers all{states().data(), layers(), largest_, held.data(),
                              weight.empty() ? nullptr : weight.data()};
    cuda::fill(queue, as_writable_bytes(marks), 0);
    cuda::prepare_layers(queue, all, policy_.law, policy_.eps, sums.data());
    if (looks_at_sums()) {
      cuda::importances_of_layers(queue, all, importances.data());
      cuda::use_policy(queue, all, policy_.law, importances.data(), sums.data());
    } else {
      for (std::size_t l = 0; l < layers(); ++l) {
        if (!has_mask(tensors_[l]) || !takes_quantile(l)) continue;
        const auto own = importances.first(tensors_[l].elements);
        cuda::importances(queue, all, l, own.size(), own.data());
        find_quantile(queue, own, select, all.layers + l);
      }
    }
    cuda::mark_important(queue, all, policy_.bernoulli, context.key, marks.data());
    cuda::steer(queue, all, policy_.law, warming_up(), positive.data());
  }

  /// What `mark` wrote to `positive`: a threshold of 0 would never move, and is found anew.
  void learn(std::span<const std::uint64_t> positive) {
    if (warming_up()) return;
    for (std::size_t l = 0; l < layers(); ++l) quantile_[l] = positive[l] == 0;
  }
  void next_step() { ++step_; }

 private:
  using Kind = law::IwpPolicy::Kind;

  [[nodiscard]] static bool has_mask(const TensorShape& tensor) {
    return !MaskPolicy::sent_whole(tensor) && tensor.elements > 0;
  }
  [[nodiscard]] bool warming_up() const { return policy_.warmup_share(step_) > 0.0; }
  [[nodiscard]] DeviceView<cuda::IwpLayer> states() const { return states_.as<cuda::IwpLayer>().first(layers()); }

  // Else prepare_layers has set the threshold.
  [[nodiscard]] bool looks_at_sums() const {
    return !warming_up() && (policy_.law.kind == Kind::mean_std || policy_.law.kind == Kind::dispersion);
  }
  [[nodiscard]] bool takes_quantile(std::size_t layer) const {
    return warming_up() || (policy_.law.kind == Kind::target_density && quantile_[layer]);
  }

  void find_quantile(Queue<Space::cuda> queue, DeviceView<const float> importance, Bytes scratch,
                     cuda::IwpLayer* layer) const {
    const bool kept = !warming_up();
    const double share = kept ? policy_.law.density : policy_.warmup_share(step_);
    const std::size_t k = MaskPolicy::taken(share, importance.size());
    if (k == 0) return cuda::use_quantile(queue, nullptr, kept, layer);
    const cuda::Select select{queue, importance, scratch};
    select.largest(k + 1);
    cuda::use_quantile(queue, select.threshold(), kept, layer);
  }

  MaskPolicy policy_;
  std::vector<TensorShape> tensors_;
  std::vector<bool> quantile_;  ///< target_density has no threshold yet, or one of 0
  cuda::DeviceBuffer states_;
  std::size_t select_bytes_ = 0, sums_ = 0, largest_ = 0;
  std::int64_t step_ = 0;
};

}  // namespace gradtool
