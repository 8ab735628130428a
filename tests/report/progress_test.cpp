// The bar on stderr: drawn on a terminal only, and gone at the end. The terminal is a pseudo-terminal of the test's.
#include "lib/report/progress.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>

#include "lib/core/text.hpp"

namespace gradtool::test {
namespace {

/// The text that `work` writes to stderr while that is `descriptor`, read from `reader`.
std::string written(int descriptor, int reader, const std::function<void()>& work) {
  const int before = dup(STDERR_FILENO);
  dup2(descriptor, STDERR_FILENO);
  work();
  std::fflush(stderr);
  dup2(before, STDERR_FILENO);
  close(before);
  fcntl(reader, F_SETFL, O_NONBLOCK);
  std::string text;
  std::array<char, 4096> part;
  for (ssize_t n = 0; (n = read(reader, part.data(), part.size())) > 0;)
    text.append(part.data(), static_cast<std::size_t>(n));
  return text;
}

std::string on_terminal(const std::function<void()>& work) {
  const int reader = posix_openpt(O_RDWR | O_NOCTTY);
  if (reader < 0 || grantpt(reader) != 0 || unlockpt(reader) != 0) return "no pseudo-terminal";
  const int terminal = open(ptsname(reader), O_RDWR | O_NOCTTY);
  const std::string text = terminal < 0 ? "no pseudo-terminal" : written(terminal, reader, work);
  close(terminal);
  close(reader);
  return text;
}

TEST(Progress, DrawsABarOnATerminalAndClearsIt) {
  const std::string text = on_terminal([] {
    Progress progress{"bench", 4};
    progress.update(0, "none isolated");
    progress.update(4, "topk isolated");
  });
  if (text == "no pseudo-terminal") GTEST_SKIP() << text;
  EXPECT_NE(text.find("bench [                        ] 0/4  none isolated"), std::string::npos) << text;
  EXPECT_NE(text.find("bench [========================] 4/4  topk isolated"), std::string::npos) << text;
  EXPECT_TRUE(text.ends_with("\r\033[K")) << text;
}

TEST(Progress, IsDrawnAtMostTenTimesASecond) {
  const auto start = std::chrono::steady_clock::now();
  const std::string text = on_terminal([] {
    Progress progress{"bench", 100000};
    for (std::uint64_t done = 0; done < 50000; ++done) progress.update(done);
  });
  if (text == "no pseudo-terminal") GTEST_SKIP() << text;
  const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - start;
  std::size_t drawn = 0;
  for (std::size_t i = text.find("/100000"); i != std::string::npos; i = text.find("/100000", i + 1)) ++drawn;
  EXPECT_GE(drawn, 1U);
  EXPECT_LE(static_cast<double>(drawn), 1.0 + passed.count() * 10.0) << text;
}

// A step of much work is no measure of the others: the caller says what is left, and the bar goes by that.
TEST(Progress, BelievesTheSecondsThatAreSaidToBeLeft) {
  const std::string text = on_terminal([] {
    Progress progress{"bench", 4};
    progress.update(1, "none, round 2 of 5", 1e6);
    progress.update(4, "noop, round 2 of 5", 7200.0);
  });
  if (text == "no pseudo-terminal") GTEST_SKIP() << text;
  EXPECT_NE(text.find("bench [                        ] 1/4 " + human_seconds(1e6) + " left none"), std::string::npos);
  EXPECT_NE(text.find("bench [                        ] 4/4 " + human_seconds(7200.0) + " left noop"),
            std::string::npos)
      << text;
}

TEST(Progress, TakesMoreThanItsTotal) {
  const std::string text = on_terminal([] {
    Progress progress{"bench", 0};
    progress.update(3);
  });
  if (text == "no pseudo-terminal") GTEST_SKIP() << text;
  EXPECT_NE(text.find("bench [========================] 3/1"), std::string::npos) << text;
}

// Its lines come every 20 seconds, longer than a test should wait.
TEST(Progress, WritesNothingForQuickWorkWhereStderrIsNoTerminal) {
  std::array<int, 2> ends{};
  ASSERT_EQ(pipe(ends.data()), 0);
  const std::string text = written(ends[1], ends[0], [] {
    Progress progress{"bench", 2};
    progress.update(1, "note");
  });
  EXPECT_EQ(text, "");
  close(ends[0]);
  close(ends[1]);
}

}  // namespace
}  // namespace gradtool::test
