#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <span>
#include <string>

#include "kernels/float_bits.hpp"

namespace gradtool::test {

/// Fails at the first element whose bits differ. Two NaNs count as equal, because a GPU makes only one of the many NaNs
/// that a CPU makes. `what` names the case in the message.
inline void expect_same(std::span<const float> actual, std::span<const float> expected, const std::string& what) {
  ASSERT_EQ(actual.size(), expected.size());
  for (std::size_t i = 0; i < actual.size(); ++i) {
    if (std::isnan(actual[i]) && std::isnan(expected[i])) continue;
    ASSERT_EQ(format::bits_of(actual[i]), format::bits_of(expected[i]))
        << what << ": element " << i << " is " << actual[i] << ", not " << expected[i];
  }
}

}  // namespace gradtool::test
