// JSON of tables, and what is said about the machine.
#include "lib/report/json.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <limits>
#include <nlohmann/json.hpp>

namespace gradtool::test {
namespace {

TEST(Json, KeepsTheTypesOfCells) {
  EXPECT_EQ(to_json(Cell{}).dump(), "null");
  EXPECT_EQ(to_json(Cell{true}).dump(), "true");
  EXPECT_EQ(to_json(Cell{std::int64_t{3}}).dump(), "3");
  EXPECT_EQ(to_json(Cell{3.0}).dump(), "3.0");
  EXPECT_EQ(to_json(Cell{std::string{"a \"quote\""}}).dump(), R"("a \"quote\"")");
}

TEST(Json, WritesAsTextWhatNumbersCannotSay) {
  constexpr double kInfinite = std::numeric_limits<double>::infinity();
  EXPECT_EQ(to_json(Cell{kInfinite}).dump(), "\"inf\"");
  EXPECT_EQ(to_json(Cell{-kInfinite}).dump(), "\"-inf\"");
  EXPECT_EQ(to_json(Cell{std::nan("")}).dump(), "\"nan\"");
}

TEST(Json, HasOneObjectForEachRowWithKeysInColumnOrder) {
  Table table{"rows", {{"zeta", ""}, {"alpha", ""}}};
  EXPECT_EQ(to_json(table).dump(), "[]");
  table.add({std::int64_t{1}, {}});
  table.add({std::int64_t{2}, 0.5});
  EXPECT_EQ(to_json(table).dump(), R"([{"zeta":1,"alpha":null},{"zeta":2,"alpha":0.5}])");
}

TEST(Json, ProvenanceNamesTheBuildAndTheMachineButNotTheUser) {
  setenv("OMP_NUM_THREADS", "3", 1);
  setenv("GRADTOOL_TEST_SECRET", "hidden", 1);
  const auto record = provenance();
  for (const char* key : {"gradtool_version", "commit", "build_type", "compiler", "created", "cpu", "cores", "memory"})
    EXPECT_TRUE(record.contains(key)) << key;
  EXPECT_EQ(record["environment"]["OMP_NUM_THREADS"], "3");
  EXPECT_EQ(record.dump().find("hidden"), std::string::npos);
  EXPECT_FALSE(record["environment"].contains("PATH"));
}

}  // namespace
}  // namespace gradtool::test
