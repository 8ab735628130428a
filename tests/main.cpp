#include <gtest/gtest.h>

// The main of every GoogleTest program. CTest runs whole suites, and takes the status 77 as "skipped": it is what a
// suite ends with of which nothing could run here.
int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  const int status = RUN_ALL_TESTS();
  const testing::UnitTest& all = *testing::UnitTest::GetInstance();
  const bool listed = testing::GTEST_FLAG(list_tests);
  if (status == 0 && !listed && all.test_to_run_count() > 0 && all.skipped_test_count() == all.test_to_run_count())
    return 77;
  return status;
}
