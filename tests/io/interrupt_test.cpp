// Ctrl-C and SIGTERM inside a step, which may have hundreds of gigabytes: long reads end, and a file has whole steps.
#include "lib/core/interrupt.hpp"

#include <gtest/gtest.h>

#include <csignal>
#include <cstdlib>
#include <fstream>

#include "lib/import/import.hpp"
#include "lib/io/merge.hpp"
#include "tests/io/sample.hpp"

namespace gradtool::test {
namespace {

/// Runs `work` in a process of its own, which gets SIGTERM once `work` has called `progress` `after` times; whether the
/// process came to its end and `work` was right.
template <class Work>
void expect_stopped(int after, Work work) {
  testing::GTEST_FLAG(death_test_style) = "fast";
  const auto run = [&] {
    catch_interrupts();
    int calls = 0;
    const bool right = work([&](std::uint64_t, std::uint64_t) {
      if (++calls == after) std::raise(SIGTERM);
    });
    std::exit(right ? 0 : 1);
  };
  EXPECT_EXIT(run(), testing::ExitedWithCode(0), "");
}

TEST(Interrupted, FindingNonFiniteValuesEnds) {
  TempFile file;
  write_sample(file.path(), Dtype::f32);
  const GradientReader reader{file.path()};
  expect_stopped(1, [&](const ReadProgress& progress) {
    std::uint64_t seen = 0, all = 0;
    try {
      static_cast<void>(find_non_finite(reader, [&](std::uint64_t done, std::uint64_t total) {
        seen = done, all = total;
        progress(done, total);
      }));
    } catch (const Interrupted&) {
      return seen < all;
    }
    return false;
  });
}

TEST(Interrupted, MergeWritesWholeSteps) {
  TempFile file, out;
  write_sample(file.path(), Dtype::f32);
  expect_stopped(5, [&](const ReadProgress& progress) {  // three tensors a step
    MergeOptions options;
    options.files = {file.path()};
    options.out = out.path();
    options.copy = true;
    const auto report = merge_gradient_files(options, progress);
    return report.interrupted && report.steps == 1;
  });
  const GradientReader reader{out.path()};
  EXPECT_TRUE(reader.info().interrupted);
  EXPECT_EQ(reader.steps().size(), 1U);
  EXPECT_TRUE(find_non_finite(reader).empty());
}

TEST(Interrupted, ImportWritesWholeSteps) {
  const TempFile folder, out;
  std::filesystem::create_directory(folder.path());
  for (const char* step : {"0", "1"}) {
    std::ofstream{folder.path() + "/step" + step, std::ios::binary} << std::string(4 * 12, '\0');
  }
  std::ofstream{folder.path() + "/shapes"} << "a 4\nb 4\nc 4\n";
  for (const int after : {2, 5}) {
    expect_stopped(after, [&](const ReadProgress& progress) {
      ImportOptions options;
      options.pattern = folder.path() + "/step{step}";
      options.out = out.path();
      options.raw = Element::f32;
      options.shapes = folder.path() + "/shapes";
      const auto report = import_arrays(options, progress);
      return report.interrupted && report.steps == (after == 5 ? 1 : 0);
    });
    EXPECT_EQ(std::filesystem::exists(out.path()), after == 5);
  }
  EXPECT_EQ(GradientReader{out.path()}.steps().size(), 1U);
  std::filesystem::remove_all(folder.path());
}

}  // namespace
}  // namespace gradtool::test
