#pragma once

#include <gtest/gtest.h>

#include <string>

#include "lib/core/error.hpp"

namespace gradtool::test {

/// Runs `call`, expects it to throw an Error with this fault, and returns the message of the error.
template <class Call>
std::string message_of(Fault fault, Call&& call) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(static_cast<int>(error.fault()), static_cast<int>(fault)) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "nothing was thrown";
  return {};
}

}  // namespace gradtool::test
