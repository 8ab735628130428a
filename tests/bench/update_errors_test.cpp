#include "lib/bench/update_errors.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace gradtool {
namespace {

TEST(UpdateErrors, NoNumberIsNoPerfectUpdate) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_TRUE(std::isnan((UpdateSums{.error = nan, .energy = 1.0}.nmse())));
  EXPECT_TRUE(std::isnan((UpdateSums{.error = 0.0, .energy = nan}.nmse())));
  EXPECT_EQ((UpdateSums{.error = 0.0, .energy = 0.0}.nmse()), 0.0);
  EXPECT_EQ((UpdateSums{.error = 1.0, .energy = 4.0}.nmse()), 0.25);
}

TEST(UpdateRule, RefusesNumbersThatNoOptimizerHas) {
  for (const char* text : {"adam:beta1=1", "adam:beta2=2", "adam:epsilon=-1", "sgd:momentum=nan", "sgd:momentum=-3"})
    EXPECT_FALSE(UpdateRule::parse(text)) << text;
  EXPECT_TRUE(UpdateRule::parse("adamw:learning_rate=0.01,beta1=0.9,beta2=0.95,weight_decay=0.1"));
  EXPECT_TRUE(UpdateRule::parse("sgd:learning_rate=0.1,momentum=0.9,nesterov=1"));
}

TEST(ScalesByHistory, IsTrueOfWhatIsNotSgd) {
  for (const char* text : {"adam:learning_rate=0.001", "AdamW", "adagrad:learning_rate=0.1", "rmsprop"})
    EXPECT_TRUE(scales_by_history(text)) << text;
  for (const char* text : {"", "sgd:learning_rate=0.1,momentum=0.9", "SGD"})
    EXPECT_FALSE(scales_by_history(text)) << text;
}

}  // namespace
}  // namespace gradtool
