// Every model as it is built, without a trainer.
#include "lib/capture/models.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <vector>

namespace gradtool {

void PrintTo(const ModelDescription& model, std::ostream* out) {
  *out << model.name;
}

namespace {

constexpr ModelInput kCifar10{.channels = 3, .height = 32, .width = 32, .classes = 10};

class Models : public testing::TestWithParam<ModelDescription> {
 protected:
  void SetUp() override { torch::manual_seed(1); }
};

std::int64_t parameters(const Model& model) {
  std::int64_t count = 0;
  for (const auto& parameter : model.parameters()) count += parameter.numel();
  return count;
}

/// The published numbers of papers and other implementations, each with the input that they count for. torchvision
/// states its figures as num_params of the weights of each model.
TEST_P(Models, HasThePublishedNumberOfParameters) {
  const std::map<std::string, std::int64_t> published{
      {"mlp", 199'210},              // McMahan et al. 2017, section 3
      {"lenet5", 61'706},            // LeCun et al. 1998 has 60,000, with sparser connections
      {"alexnet", 61'100'840},       // torchvision
      {"vgg16", 138'357'544},        // torchvision; 138 M in Simonyan and Zisserman 2015, table 2
      {"vgg16-cifar", 14'728'266},   // kuangliu/pytorch-cifar
      {"resnet18", 11'689'512},      // torchvision
      {"resnet50", 25'557'032},      // torchvision
      {"resnet20", 269'722},         // 0.27 M in He et al. 2016, table 6
      {"resnet32", 464'154},         // 0.46 M
      {"resnet110", 1'727'962},      // 1.7 M
      {"densenet-bc-100", 769'162},  // 0.8 M in Huang et al. 2017, table 2
      {"vit-tiny", 5'717'416},       // timm; 5.7 M in Touvron et al. 2021
      {"lstm", 19'780'400},          // word_language_model --emsize 650 --nhid 650 with 10,000 words
      {"char-rnn", 329'984},         // 2 layers of 131,072 weights and 1,024 biases, and both sides of 256
      {"gpt-nano", 85'584},          // 0.09 M in minGPT, three digits in sequences of eleven
      {"gpt2", 124'439'808},         // Hugging Face
  };
  const auto model = make_model(std::string{GetParam().name}, GetParam().at);
  EXPECT_EQ(parameters(*model), published.at(std::string{GetParam().name}));
  EXPECT_EQ(GetParam().parameters, published.at(std::string{GetParam().name}));
}

/// The number is that of docs/capture.md.
TEST(ModelsOfBytes, HaveSmallerEmbeddings) {
  EXPECT_EQ(parameters(*make_model("lstm", {.classes = 256, .sequence_length = 35})), 7'103'456);
  EXPECT_EQ(parameters(*make_model("gpt2", {.classes = 256, .sequence_length = 35})), 86'039'040);
}

TEST_P(Models, DescribesEveryTensor) {
  const auto model = make_model(std::string{GetParam().name}, GetParam().at);
  const auto kinds = parameter_kinds(*model);
  const auto named = model->named_parameters();
  ASSERT_EQ(kinds.size(), named.size());
  const std::set<std::string> other{"cls_token", "pos_embed"};
  for (std::size_t i = 0; i < kinds.size(); ++i) {
    const auto& [kind, layout] = kinds[i];
    const std::string& name = named[i].key();
    const auto dimensions = named[i].value().dim();
    if (kind == "conv") {
      EXPECT_EQ(dimensions, 4) << name;
      EXPECT_EQ(layout, "OIHW") << name;
    } else if (kind == "linear" || kind == "recurrent") {
      EXPECT_EQ(dimensions, 2) << name;
      EXPECT_EQ(layout, "OI") << name;
    } else if (kind == "embedding") {
      EXPECT_EQ(dimensions, 2) << name;
      EXPECT_EQ(layout, "VD") << name;
      EXPECT_THAT(name, testing::AnyOf("encoder.weight", "transformer.wte.weight", "transformer.wpe.weight"));
    } else if (kind == "bias" || kind == "norm") {
      EXPECT_EQ(dimensions, 1) << name;
      EXPECT_EQ(layout, "") << name;
      EXPECT_NE(kind == "norm", name.find("bias") != std::string::npos && kind == "bias") << name;
    } else {
      EXPECT_EQ(kind, "other");
      EXPECT_TRUE(other.count(name)) << name;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, Models, testing::ValuesIn(models().begin(), models().end()), [](const auto& info) {
  std::string name{info.param.name};
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
});

/// Every tensor of the model as "name kind [shape]".
std::vector<std::string> lines_of(const std::string& name, const ModelInput& input) {
  torch::manual_seed(1);
  const auto model = make_model(name, input);
  const auto kinds = parameter_kinds(*model);
  std::vector<std::string> lines;
  for (const auto& parameter : model->named_parameters()) {
    std::string line = parameter.key() + " " + kinds[lines.size()].kind;
    for (const auto extent : parameter.value().sizes()) line += " " + std::to_string(extent);
    lines.push_back(std::move(line));
  }
  return lines;
}

using testing::Contains;

TEST(ModelTensors, HaveTorchvisionsNamesInForwardOrder) {
  const auto alexnet = lines_of("alexnet", {.channels = 3, .height = 224, .width = 224, .classes = 10});
  EXPECT_EQ(alexnet.front(), "features.0.weight conv 64 3 11 11");
  EXPECT_EQ(alexnet.back(), "classifier.6.bias bias 10");
  EXPECT_THAT(alexnet, Contains("classifier.1.weight linear 4096 9216"));
  const auto vgg = lines_of("vgg16-cifar", kCifar10);
  EXPECT_EQ(vgg[0], "features.0.weight conv 64 3 3 3");
  EXPECT_EQ(vgg[2], "features.1.weight norm 64");
  EXPECT_THAT(vgg, Contains("features.40.weight conv 512 512 3 3"));
  EXPECT_EQ(vgg.back(), "classifier.bias bias 10");
  const auto resnet50 = lines_of("resnet50", kCifar10);
  EXPECT_EQ(resnet50[0], "conv1.weight conv 64 3 3 3") << "the stem for CIFAR";
  EXPECT_EQ(resnet50[9], "layer1.0.conv3.weight conv 256 64 1 1");
  EXPECT_EQ(resnet50[12], "layer1.0.downsample.0.weight conv 256 64 1 1");
  EXPECT_EQ(resnet50[13], "layer1.0.downsample.1.weight norm 256");
  EXPECT_EQ(lines_of("resnet18", kCifar10).size(), 62U);
  EXPECT_THAT(lines_of("resnet18", {.channels = 3, .height = 64, .width = 64, .classes = 10}),
              Contains("conv1.weight conv 64 3 7 7"));
  const auto densenet = lines_of("densenet-bc-100", kCifar10);
  EXPECT_EQ(densenet[0], "features.conv0.weight conv 24 3 3 3");
  EXPECT_EQ(densenet[3], "features.denseblock1.denselayer1.conv1.weight conv 48 24 1 1");
  EXPECT_THAT(densenet, Contains("features.transition2.conv.weight conv 150 300 1 1"));
  EXPECT_EQ(densenet.back(), "classifier.bias bias 10");
}

TEST(ModelTensors, HaveTheNamesOfTransformers) {
  const auto gpt = lines_of("gpt-nano", {.classes = 256, .sequence_length = 16});
  EXPECT_EQ(gpt[0], "transformer.wte.weight embedding 256 48");
  EXPECT_EQ(gpt[1], "transformer.wpe.weight embedding 16 48");
  EXPECT_EQ(gpt[2], "transformer.h.0.ln_1.weight norm 48");
  EXPECT_EQ(gpt[4], "transformer.h.0.attn.c_attn.weight linear 144 48");
  EXPECT_EQ(gpt[12], "transformer.h.0.mlp.c_proj.weight linear 48 192");
  EXPECT_EQ(gpt.back(), "transformer.ln_f.bias norm 48") << "the head is the embedding";
  const auto vit = lines_of("vit-tiny", kCifar10);
  EXPECT_EQ(vit[0], "cls_token other 1 1 192");
  EXPECT_EQ(vit[1], "pos_embed other 1 65 192");
  EXPECT_EQ(vit[2], "patch_embed.proj.weight conv 192 3 4 4");
  EXPECT_EQ(vit[6], "blocks.0.attn.qkv.weight linear 576 192");
  EXPECT_EQ(vit.back(), "head.bias bias 10");
}

TEST(ModelTensors, HaveTheNamesOfTheLanguageModel) {
  const auto lstm = lines_of("lstm", {.classes = 256, .sequence_length = 16});
  EXPECT_EQ(lstm[0], "encoder.weight embedding 256 650");
  EXPECT_EQ(lstm[1], "rnn.weight_ih_l0 recurrent 2600 650");
  EXPECT_EQ(lstm[3], "rnn.bias_ih_l0 bias 2600");
  EXPECT_EQ(lstm[6], "rnn.weight_hh_l1 recurrent 2600 650");
  EXPECT_EQ(lstm.back(), "decoder.bias bias 256");
}

/// One forward pass for small inputs of every form.
TEST(ModelForward, GivesOneLogitForEachClass) {
  const torch::NoGradGuard no_grad;
  const auto sizes = [](const char* name, const ModelInput& input) {
    torch::manual_seed(1);
    const torch::Tensor samples = input.sequence_length > 0
                                      ? torch::randint(input.classes, {2, input.sequence_length}, torch::kInt64)
                                      : torch::randn({2, input.channels, input.height, input.width});
    return make_model(name, input)->forward(samples).sizes().vec();
  };
  using Sizes = std::vector<std::int64_t>;
  for (const auto& model : models()) {
    const std::string name{model.name};
    if (model.is_text()) {
      EXPECT_EQ(sizes(name.c_str(), {.classes = 256, .sequence_length = 9}), (Sizes{2, 9, 256})) << name;
      continue;
    }
    for (const std::int64_t side : {16, 28, 32, 64}) {
      if (!model.takes_side(side)) continue;
      EXPECT_EQ(sizes(name.c_str(), {.channels = 1, .height = side, .width = side, .classes = 7}), (Sizes{2, 7}))
          << name << " " << side;
    }
  }
}

// A language model must not see the tokens that it is to predict.
TEST(ModelForward, OfLanguageModelsDependsOnWhatWasBeforeOnly) {
  const torch::NoGradGuard no_grad;
  for (const char* name : {"gpt-nano", "lstm"}) {
    torch::manual_seed(1);
    const auto model = make_model(name, {.classes = 256, .sequence_length = 12});
    const torch::Tensor tokens = torch::randint(256, {1, 12}, torch::kInt64);
    torch::Tensor changed = tokens.clone();
    changed[0][7] = (changed[0][7] + 1) % 256;
    const torch::Tensor difference = (model->forward(tokens) - model->forward(changed)).abs().amax({0, 2});
    EXPECT_EQ(difference.narrow(0, 0, 7).max().item<float>(), 0.0F) << name;
    EXPECT_GT(difference.narrow(0, 7, 5).min().item<float>(), 0.0F) << name;
  }
}

}  // namespace
}  // namespace gradtool
