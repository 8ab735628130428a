#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "lib/io/changed_source.hpp"

namespace gradtool {

/// Another source without the steps whose gradients overflowed on any worker (/steps/overflow). The training threw such
/// a step away, and because nearly every tensor of it holds infinite values, leaving out tensors that are not finite
/// would leave nothing.
class UsableSteps final : public ChosenSteps {
 public:
  /// Throws Fault::data when every step overflowed.
  explicit UsableSteps(std::unique_ptr<GradientSource> source);

  [[nodiscard]] std::size_t left_out() const { return source().steps().size() - steps().size(); }
};

/// "run.h5: 2 steps are left out because the gradients overflowed (/steps/overflow)", for people.
[[nodiscard]] std::string left_out_warning(const std::string& path, std::size_t left_out);

}  // namespace gradtool
