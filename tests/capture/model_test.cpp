#include <algorithm>

#include "tests/capture/trainer_fixture.hpp"

namespace gradtool {
namespace {

class ModelTest : public test::TrainerTest {};

std::vector<std::string> names_of(const Trainer& trainer) {
  std::vector<std::string> names;
  for (const auto& info : trainer.parameters()) names.push_back(info.name);
  return names;
}

TEST_F(ModelTest, LeNet5HasItsParameters) {
  const Dataset images = test::striped_images(4, 1, 28);
  const auto trainer = make_trainer(options("lenet5", 1, 2), images);
  EXPECT_EQ(trainer->elements(), 61'706U);
  EXPECT_EQ(names_of(*trainer),
            (std::vector<std::string>{"conv1.weight", "conv1.bias", "conv2.weight", "conv2.bias", "fc1.weight",
                                      "fc1.bias", "fc2.weight", "fc2.bias", "fc3.weight", "fc3.bias"}));
  const auto& infos = trainer->parameters();
  EXPECT_EQ(infos[0].kind, "conv");
  EXPECT_EQ(infos[0].layout, "OIHW");
  EXPECT_EQ(infos[0].shape, (std::vector<std::int64_t>{6, 1, 5, 5}));
  EXPECT_EQ(infos[1].kind, "bias");
  EXPECT_EQ(infos[4].kind, "linear");
  EXPECT_EQ(infos[4].layout, "OI");
  EXPECT_EQ(infos[4].shape, (std::vector<std::int64_t>{120, 400}));
}

TEST_F(ModelTest, ResNet20HasItsParametersForOneAndThreeChannels) {
  const Dataset grey = test::striped_images(4, 1, 28);
  const Dataset colour = test::striped_images(4, 3, 32);
  EXPECT_EQ(make_trainer(options("resnet20", 1, 2), grey)->elements(), 269'434U);
  const auto trainer = make_trainer(options("resnet20", 1, 2), colour);
  EXPECT_EQ(trainer->elements(), 269'722U);
  const auto& infos = trainer->parameters();
  EXPECT_EQ(infos.size(), 59U) << "19 convolutions, 19 x 2 of batch normalisation, weight and bias of the last layer";
  const auto names = names_of(*trainer);
  const auto position = [&](const char* name) { return std::find(names.begin(), names.end(), name) - names.begin(); };
  EXPECT_EQ(position("conv1.weight"), 0);
  EXPECT_EQ(position("bn1.bias"), 2);
  EXPECT_EQ(position("layer1.0.conv1.weight"), 3);
  EXPECT_EQ(position("layer3.2.bn2.bias"), 56);
  EXPECT_EQ(position("fc.bias"), 58);
  EXPECT_EQ(infos[1].kind, "norm");
  EXPECT_EQ(infos[2].kind, "norm") << "the shift of a normalisation layer, though it is called bias";
  EXPECT_EQ(infos[58].kind, "bias");
  for (const auto& info : infos) {
    const auto product = std::accumulate(info.shape.begin(), info.shape.end(), std::int64_t{1}, std::multiplies<>{});
    EXPECT_EQ(static_cast<std::uint64_t>(product), info.elements) << info.name;
  }
}

TEST_F(ModelTest, ResNet32HasFiveBlocksAStage) {
  const Dataset colour = test::striped_images(4, 3, 32);
  const auto trainer = make_trainer(options("resnet32", 1, 2), colour);
  EXPECT_EQ(trainer->elements(), 464'154U);
  EXPECT_EQ(trainer->parameters().size(), 95U);
  EXPECT_EQ(names_of(*trainer).at(92), "layer3.4.bn2.bias");
}

TEST_F(ModelTest, TheSeedDecidesTheInitialWeights) {
  const Dataset images = test::striped_images(4, 1, 28);
  auto same = options("resnet20", 1, 2);
  auto other = same;
  other.seed = 2;
  const auto weights = copy(make_trainer(same, images)->weights());
  EXPECT_EQ(copy(make_trainer(same, images)->weights()), weights);
  EXPECT_NE(copy(make_trainer(other, images)->weights()), weights);
}

TEST_F(ModelTest, RefusesImagesOfAnotherSize) {
  const Dataset images = test::striped_images(4, 1, 20);
  const auto text = test::sentence_of(Fault::usage, [&] { (void)make_trainer(options("lenet5", 1, 2), images); });
  EXPECT_NE(text.find("20 x 20"), std::string::npos) << text;
}

}  // namespace
}  // namespace gradtool
