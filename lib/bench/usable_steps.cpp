#include "lib/bench/usable_steps.hpp"

#include "lib/core/error.hpp"

namespace gradtool {

UsableSteps::UsableSteps(std::unique_ptr<GradientSource> source) : source_{std::move(source)} {
  const auto& all = source_->steps();
  for (std::size_t s = 0; s < all.size(); ++s) {
    if (all[s].overflowed()) continue;
    steps_.push_back(all[s]);
    places_.push_back(s);
  }
  if (steps_.empty()) {
    throw Error{Fault::data, source_->path() +
                                 ": /steps/overflow: the gradients of every step overflowed, so there is nothing to "
                                 "replay; capture steps that the optimizer did not skip"};
  }
}

}  // namespace gradtool
