#include "lib/capture/catalogue.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <set>

#include "tests/capture/test_data.hpp"

namespace gradtool {
namespace {

using testing::HasSubstr;
using testing::Not;

Dataset images(std::int64_t side) {
  return test::striped_images(2, 3, side);
}

Dataset text(std::int64_t length) {
  Dataset dataset;
  dataset.sequence_length = length;
  dataset.classes = 256;
  dataset.tokens.resize(3 * static_cast<std::size_t>(length) + 1);
  return dataset;
}

std::string refusal(const std::string& model, const Dataset& dataset, std::int64_t image_size = 0) {
  return test::sentence_of(Fault::usage, [&] { (void)model_input(model, dataset, image_size); });
}

TEST(Catalogue, NamesEveryModelOnceAndTakesTheInputOfItsFigure) {
  std::set<std::string_view> names;
  for (const auto& model : models()) {
    EXPECT_TRUE(names.insert(model.name).second) << model.name;
    EXPECT_EQ(&find_model(std::string{model.name}), &model);
    if (model.is_text()) {
      EXPECT_LE(model.sequence_length, model.longest_sequence);
      EXPECT_LE(model.at.sequence_length, model.longest_sequence);
    } else {
      EXPECT_TRUE(model.takes_side(model.at.height)) << model.name;
    }
    EXPECT_GT(model.sgd_rate, 0.0);
    EXPECT_GT(model.adam_rate, 0.0);
  }
}

TEST(ModelInput, IsThatOfTheDataSet) {
  const ModelInput input = model_input("resnet18", images(32), 0);
  EXPECT_EQ(input.channels, 3);
  EXPECT_EQ(input.height, 32);
  EXPECT_EQ(input.classes, 10);
  EXPECT_EQ(model_input("alexnet", images(32), 64).width, 64);
  EXPECT_EQ(model_input("gpt2", text(1024), 0).sequence_length, 1024);
}

TEST(ModelInput, RefusesWhatTheModelCannotTake) {
  EXPECT_THAT(refusal("alexnet", images(32)), HasSubstr("at least 63 x 63 pixels; the data set has 32 x 32"));
  EXPECT_THAT(refusal("alexnet", images(32), 48), HasSubstr("--image-size is 48"));
  EXPECT_THAT(refusal("lenet5", images(30)), HasSubstr("28 x 28 or 32 x 32"));
  EXPECT_THAT(refusal("vgg16-cifar", images(28)), HasSubstr("--image-size enlarges them"));
  EXPECT_THAT(refusal("vit-tiny", images(30)), HasSubstr("the data set has 30 x 30"));
  EXPECT_THAT(refusal("resnet18", images(32), 28), HasSubstr("only ever enlarged"));
  EXPECT_THAT(refusal("resnet18", text(8)), HasSubstr("the data set is text"));
  EXPECT_THAT(refusal("gpt2", images(32)), HasSubstr("the data set has images"));
  EXPECT_THAT(refusal("gpt2", text(1025)), HasSubstr("at most 1024 tokens; --sequence-length is 1025"));
  Dataset flat = images(32);
  flat.height = 16, flat.width = 64;
  EXPECT_THAT(refusal("resnet18", flat), HasSubstr("16 x 64"));
  EXPECT_EQ(model_input("mlp", flat, 0).width, 64);
}

}  // namespace
}  // namespace gradtool
