#include "lib/core/error.hpp"

#include <gtest/gtest.h>

#include <string>

#include "lib/core/device.hpp"
#include "lib/core/throw_error.hpp"
#include "tests/core/fault.hpp"

namespace gradtool::test {
namespace {

TEST(ExitStatus, OfEachFault) {
  EXPECT_EQ(exit_status(Fault::check), 1);
  EXPECT_EQ(exit_status(Fault::usage), 2);
  EXPECT_EQ(exit_status(Fault::data), 3);
  EXPECT_EQ(exit_status(Fault::backend), 4);
  EXPECT_EQ(exit_status(Fault::unavailable), 77);
  EXPECT_EQ(exit_status(Fault::internal), 4);
}

TEST(Expects, ABrokenInvariantNamesItsPlaceAndAsksForAReport) {
  EXPECT_NO_THROW(expects(true, "never seen"));
  const int line = __LINE__ + 1;
  const auto message = message_of(Fault::internal, [] { expects(false, "two is not three"); });
  EXPECT_EQ(message, "internal error, please report it: two is not three (tests/core/error_test.cpp:" +
                         std::to_string(line) + ")");
}

// The message shows the path inside the repository, wherever the program was built.
TEST(Expects, ShortensThePath) {
  const auto place = [](const char* file) {
    return message_of(Fault::internal, [&] { expects(false, "no", file, 7); });
  };
  EXPECT_EQ(place("/home/someone/build/lib/core/view.hpp"),
            "internal error, please report it: no (lib/core/view.hpp:7)");
  EXPECT_EQ(place("/lib/checkout/kernels/cuda/x.cu"), "internal error, please report it: no (kernels/cuda/x.cu:7)");
  EXPECT_EQ(place("lib/core/view.hpp"), "internal error, please report it: no (lib/core/view.hpp:7)");
}

TEST(ExpectValid, BlamesTheChoice) {
  EXPECT_NO_THROW(expect_valid(true, "never seen"));
  EXPECT_EQ(message_of(Fault::usage, [] { expect_valid(false, "k is at least 1"); }), "k is at least 1");
}

TEST(Error, KnowsWhereItWasThrown) {
  const int line = __LINE__ + 1;
  const Error error{Fault::data, "a file is short"};
  EXPECT_STREQ(error.what(), "a file is short");
  EXPECT_NE(std::string{error.file()}.find("error_test.cpp"), std::string::npos);
  EXPECT_EQ(error.line(), line);
}

TEST(ThrowError, FormatsTheSentenceAndKeepsThePlace) {
  int line = 0;
  try {
    line = __LINE__ + 1;
    throw_error(Fault::usage, "{} is not one of {}", 3, "1, 2");
  } catch (const Error& error) {
    EXPECT_EQ(error.fault(), Fault::usage);
    EXPECT_STREQ(error.what(), "3 is not one of 1, 2");
    EXPECT_NE(std::string{error.file()}.find("error_test.cpp"), std::string::npos);
    EXPECT_EQ(error.line(), line);
  }
  EXPECT_NE(line, 0);
}

TEST(ParseDevice, TakesCpuAndGpus) {
  EXPECT_FALSE(parse_device("cpu").cuda);
  EXPECT_TRUE(parse_device("cuda").cuda);
  EXPECT_EQ(parse_device("cuda").index, 0);
  EXPECT_EQ(parse_device("cuda:0").index, 0);
  EXPECT_EQ(parse_device("cuda:12").index, 12);
}

TEST(ParseDevice, RefusesAnythingElse) {
  for (const char* bad : {"", "gpu", "CPU", "cuda:", "cuda:-1", "cuda:x", "cuda:1x", "cuda:01", "cuda: 1", "cuda:+1",
                          "cuda:99999999999", "cpu:0", "cuda0"}) {
    const auto message = message_of(Fault::usage, [&] { static_cast<void>(parse_device(bad)); });
    EXPECT_EQ(message, "--device '" + std::string{bad} + "' is not valid; write cpu, cuda or cuda:INDEX");
  }
}

}  // namespace
}  // namespace gradtool::test
