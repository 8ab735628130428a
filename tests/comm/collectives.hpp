#pragma once

#include <string>
#include <vector>

#include "lib/comm/communicator.hpp"

namespace gradtool::test {

/// One test of the collectives, run by every rank of a communicator; throws Fault::check with what was wrong. The same
/// list holds for every backend and every number of ranks.
template <Space S>
struct Case {
  const char* name;
  void (*run)(Communicator<S>& communicator, Queue<S> queue);
};

template <Space S>
[[nodiscard]] std::vector<Case<S>> collective_cases();

/// The names of the cases, which do not depend on the space.
[[nodiscard]] std::vector<std::string> case_names();

}  // namespace gradtool::test
