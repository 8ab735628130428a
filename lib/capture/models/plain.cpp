// Networks without shortcuts: one layer after the other.
#include <initializer_list>

#include "lib/capture/models/families.hpp"

namespace gradtool {
namespace {

namespace nn = torch::nn;

nn::ReLU relu() {
  return nn::ReLU{nn::ReLUOptions{true}};  // in place
}

class Mlp final : public Model {
 public:
  explicit Mlp(const ModelInput& input) {
    constexpr std::int64_t kUnits = 200;
    fc1_ = register_module("fc1", nn::Linear{input.channels * input.height * input.width, kUnits});
    fc2_ = register_module("fc2", nn::Linear{kUnits, kUnits});
    fc3_ = register_module("fc3", nn::Linear{kUnits, input.classes});
  }

  torch::Tensor forward(torch::Tensor x) override {
    x = torch::relu(fc1_->forward(x.flatten(1)));
    return fc3_->forward(torch::relu(fc2_->forward(x)));
  }

 private:
  nn::Linear fc1_{nullptr}, fc2_{nullptr}, fc3_{nullptr};
};

class LeNet5 final : public Model {
 public:
  explicit LeNet5(const ModelInput& input) {
    const std::int64_t padding = (32 - input.height) / 2;
    conv1_ = register_module("conv1", nn::Conv2d{nn::Conv2dOptions{input.channels, 6, 5}.padding(padding)});
    conv2_ = register_module("conv2", nn::Conv2d{nn::Conv2dOptions{6, 16, 5}});
    fc1_ = register_module("fc1", nn::Linear{16 * 5 * 5, 120});
    fc2_ = register_module("fc2", nn::Linear{120, 84});
    fc3_ = register_module("fc3", nn::Linear{84, input.classes});
  }

  torch::Tensor forward(torch::Tensor x) override {
    x = torch::max_pool2d(torch::relu(conv1_->forward(x)), 2);
    x = torch::max_pool2d(torch::relu(conv2_->forward(x)), 2);
    x = torch::relu(fc1_->forward(x.flatten(1)));
    return fc3_->forward(torch::relu(fc2_->forward(x)));
  }

 private:
  nn::Conv2d conv1_{nullptr}, conv2_{nullptr};
  nn::Linear fc1_{nullptr}, fc2_{nullptr}, fc3_{nullptr};
};

/// AlexNet and VGG: convolutions, a pooling to a fixed size, and linear layers. Where torchvision has dropout there is
/// the identity, so that the layers behind it have the same names.
class PooledClassifier final : public Model {
 public:
  PooledClassifier(nn::Sequential features, std::int64_t side, nn::Sequential classifier)
      : side_{side},
        features_{register_module("features", std::move(features))},
        classifier_{register_module("classifier", std::move(classifier))} {}

  torch::Tensor forward(torch::Tensor x) override {
    x = torch::adaptive_avg_pool2d(features_->forward(x), {side_, side_});
    return classifier_->forward(x.flatten(1));
  }

 private:
  std::int64_t side_;
  nn::Sequential features_, classifier_;
};

class VggCifar final : public Model {
 public:
  VggCifar(nn::Sequential features, std::int64_t classes)
      : features_{register_module("features", std::move(features))},
        classifier_{register_module("classifier", nn::Linear{512, classes})} {}

  torch::Tensor forward(torch::Tensor x) override { return classifier_->forward(features_->forward(x).flatten(1)); }

 private:
  nn::Sequential features_;
  nn::Linear classifier_;
};

/// Configuration D of Simonyan and Zisserman 2015.
nn::Sequential vgg16_features(std::int64_t channels, bool batch_norm) {
  constexpr std::int64_t kPool = 0;
  nn::Sequential features;
  for (const std::int64_t out :
       {std::int64_t{64}, std::int64_t{64}, kPool, std::int64_t{128}, std::int64_t{128}, kPool, std::int64_t{256},
        std::int64_t{256}, std::int64_t{256}, kPool, std::int64_t{512}, std::int64_t{512}, std::int64_t{512}, kPool,
        std::int64_t{512}, std::int64_t{512}, std::int64_t{512}, kPool}) {
    if (out == kPool) {
      features->push_back(nn::MaxPool2d{2});
      continue;
    }
    features->push_back(nn::Conv2d{nn::Conv2dOptions{channels, out, 3}.padding(1)});
    if (batch_norm) features->push_back(nn::BatchNorm2d{out});
    features->push_back(relu());
    channels = out;
  }
  return features;
}

}  // namespace

std::shared_ptr<Model> make_mlp(const ModelInput& input) {
  return std::make_shared<Mlp>(input);
}

std::shared_ptr<Model> make_lenet5(const ModelInput& input) {
  return std::make_shared<LeNet5>(input);
}

std::shared_ptr<Model> make_alexnet(const ModelInput& input) {
  nn::Sequential features{nn::Conv2d{nn::Conv2dOptions{input.channels, 64, 11}.stride(4).padding(2)},
                          relu(),
                          nn::MaxPool2d{nn::MaxPool2dOptions{3}.stride(2)},
                          nn::Conv2d{nn::Conv2dOptions{64, 192, 5}.padding(2)},
                          relu(),
                          nn::MaxPool2d{nn::MaxPool2dOptions{3}.stride(2)},
                          nn::Conv2d{nn::Conv2dOptions{192, 384, 3}.padding(1)},
                          relu(),
                          nn::Conv2d{nn::Conv2dOptions{384, 256, 3}.padding(1)},
                          relu(),
                          nn::Conv2d{nn::Conv2dOptions{256, 256, 3}.padding(1)},
                          relu(),
                          nn::MaxPool2d{nn::MaxPool2dOptions{3}.stride(2)}};
  nn::Sequential classifier{
      nn::Identity{}, nn::Linear{256 * 6 * 6, 4096},  relu(), nn::Identity{}, nn::Linear{4096, 4096},
      relu(),         nn::Linear{4096, input.classes}};
  return std::make_shared<PooledClassifier>(std::move(features), 6, std::move(classifier));
}

std::shared_ptr<Model> make_vgg16(const ModelInput& input) {
  nn::Sequential classifier{nn::Linear{512 * 7 * 7, 4096},  relu(), nn::Identity{},
                            nn::Linear{4096, 4096},         relu(), nn::Identity{},
                            nn::Linear{4096, input.classes}};
  auto model = std::make_shared<PooledClassifier>(vgg16_features(input.channels, false), 7, std::move(classifier));
  for (const auto& named : model->named_parameters()) {  // as torchvision begins
    torch::Tensor parameter = named.value();
    if (parameter.dim() == 4) nn::init::kaiming_normal_(parameter, 0.0, torch::kFanOut, torch::kReLU);
    if (parameter.dim() == 2) nn::init::normal_(parameter, 0.0, 0.01);
    if (parameter.dim() == 1) nn::init::zeros_(parameter);
  }
  return model;
}

std::shared_ptr<Model> make_vgg16_cifar(const ModelInput& input) {
  return std::make_shared<VggCifar>(vgg16_features(input.channels, true), input.classes);
}

}  // namespace gradtool
