#include "lib/io/usable_steps.hpp"

#include <fmt/format.h>

#include <utility>

#include "lib/core/error.hpp"

namespace gradtool {

UsableSteps::UsableSteps(std::unique_ptr<GradientSource> source) : ChosenSteps{std::move(source)} {
  const auto& all = this->source().steps();
  std::int64_t overflowed = 0;  // in a row, just before step s
  for (std::size_t s = 0; s < all.size(); ++s) {
    if (all[s].overflowed()) {
      ++overflowed;
      continue;
    }
    choose(s).overflowed_before = std::exchange(overflowed, 0);
  }
  if (steps().empty()) {
    throw Error{Fault::data, path() +
                                 ": /steps/overflow: the gradients of every step overflowed, so there is nothing to "
                                 "use; capture steps that the optimizer did not skip"};
  }
}

std::string left_out_warning(const std::string& path, std::size_t left_out) {
  return fmt::format("{}: {} left out because the gradients overflowed (/steps/overflow)", path,
                     left_out == 1 ? "1 step is" : fmt::format("{} steps are", left_out));
}

}  // namespace gradtool
