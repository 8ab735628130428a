#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "lib/core/words.hpp"
#include "lib/io/changed_source.hpp"

namespace gradtool {

/// The values of a capture that are replayed.
enum class ReplayedValues : std::uint8_t {
  automatic,    ///< in an all-gather the weights, where a capture of gradients has them; else its values
  own,          ///< its values: gradients, or what its attribute `quantity` says
  weights,      ///< the weights beside them
  differences,  ///< what weights changed by from one captured step to the next
};
constexpr auto spellings(ReplayedValues) {
  return words("auto", "own", "weight", "weight-difference");
}

/// The weights of another source in the place of its gradients, the same for every worker; or their differences, a step
/// less. What ranks gather in sharded training, each from the owner of its shard.
class ReplayedWeights final : public ChangedSource {
 public:
  /// Throws Fault::usage where a tensor has no weights, or for differences of a single step.
  ReplayedWeights(std::unique_ptr<GradientSource> source, bool differences);

  [[nodiscard]] static bool has_all(const GradientSource& source);

  [[nodiscard]] const FileInfo& info() const override { return info_; }
  [[nodiscard]] const std::vector<TensorInfo>& tensors() const override { return tensors_; }
  [[nodiscard]] const std::vector<StepInfo>& steps() const override { return steps_; }
  void read(const ArrayPart& part, std::span<float> out) const override;

 private:
  bool differences_;
  FileInfo info_;
  std::vector<TensorInfo> tensors_;
  std::vector<StepInfo> steps_;
};

}  // namespace gradtool
