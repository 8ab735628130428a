// Residual networks, and DenseNet, which concatenates where those add.
#include <fmt/format.h>

#include <utility>
#include <vector>

#include "lib/capture/models/families.hpp"

namespace gradtool {
namespace {

namespace nn = torch::nn;

/// Images below this many pixels a side get a first convolution that keeps their size.
constexpr std::int64_t kLargeImage = 64;

nn::Conv2d conv(std::int64_t in, std::int64_t out, std::int64_t size, std::int64_t stride) {
  return nn::Conv2d{nn::Conv2dOptions{in, out, size}.stride(stride).padding(size / 2).bias(false)};
}

/// He et al. 2016, figure 5. `padded` and `projected` are two convolutions of 3 x 3 with shortcuts of option A and B,
/// `bottleneck` is three convolutions, of which the last has four times the width.
enum class BlockKind : std::uint8_t { padded, projected, bottleneck };

class ResidualBlock final : public nn::Module {
 public:
  ResidualBlock(BlockKind kind, std::int64_t in, std::int64_t width, std::int64_t stride)
      : stride_{stride}, added_channels_{(kind == BlockKind::bottleneck ? 4 * width : width) - in} {
    if (kind == BlockKind::bottleneck) {
      add(conv(in, width, 1, 1), width);
      add(conv(width, width, 3, stride), width);
      add(conv(width, 4 * width, 1, 1), 4 * width);
    } else {
      add(conv(in, width, 3, stride), width);
      add(conv(width, width, 3, 1), width);
    }
    if (kind == BlockKind::padded || !changes_shape()) return;
    const std::int64_t out = in + added_channels_;
    projection_ = register_module("downsample", nn::Sequential{conv(in, out, 1, stride), nn::BatchNorm2d{out}});
  }

  torch::Tensor forward(const torch::Tensor& x) {
    torch::Tensor y = x;
    for (std::size_t i = 0; i < layers_.size(); ++i) {
      auto& [convolution, norm] = layers_[i];
      y = norm->forward(convolution->forward(y));
      if (i + 1 < layers_.size()) y.relu_();
    }
    return y.add_(shortcut(x)).relu_();
  }

 private:
  void add(nn::Conv2d convolution, std::int64_t out) {
    const std::size_t number = layers_.size() + 1;
    auto registered = register_module(fmt::format("conv{}", number), std::move(convolution));
    layers_.emplace_back(std::move(registered), register_module(fmt::format("bn{}", number), nn::BatchNorm2d{out}));
  }

  [[nodiscard]] bool changes_shape() const { return stride_ != 1 || added_channels_ != 0; }

  torch::Tensor shortcut(const torch::Tensor& x) {
    if (!changes_shape()) return x;
    if (!projection_.is_empty()) return projection_->forward(x);
    const torch::Tensor kept = x.slice(2, 0, x.size(2), stride_).slice(3, 0, x.size(3), stride_);
    return torch::constant_pad_nd(kept, {0, 0, 0, 0, added_channels_ / 2, added_channels_ - added_channels_ / 2});
  }

  std::int64_t stride_, added_channels_;
  std::vector<std::pair<nn::Conv2d, nn::BatchNorm2d>> layers_;
  nn::Sequential projection_{nullptr};
};

class ResNet final : public Model {
 public:
  /// `blocks` of each stage; each stage has twice the width of the one before, and half its height and width.
  ResNet(const ModelInput& input, BlockKind kind, std::int64_t width, const std::vector<std::int64_t>& blocks)
      : large_{kind != BlockKind::padded && input.height >= kLargeImage} {
    conv1_ = register_module("conv1", large_ ? conv(input.channels, width, 7, 2) : conv(input.channels, width, 3, 1));
    bn1_ = register_module("bn1", nn::BatchNorm2d{width});
    std::int64_t channels = width;
    for (std::size_t stage = 0; stage < blocks.size(); ++stage) {
      nn::Sequential layer;
      for (std::int64_t block = 0; block < blocks[stage]; ++block) {
        const std::int64_t of_stage = width << stage;
        layer->push_back(std::make_shared<ResidualBlock>(kind, channels, of_stage, stage > 0 && block == 0 ? 2 : 1));
        channels = kind == BlockKind::bottleneck ? 4 * of_stage : of_stage;
      }
      layers_.push_back(register_module(fmt::format("layer{}", stage + 1), layer));
    }
    fc_ = register_module("fc", nn::Linear{channels, input.classes});
    for (auto& parameter : parameters()) {
      if (parameter.dim() == 4) nn::init::kaiming_normal_(parameter, 0.0, torch::kFanOut, torch::kReLU);
    }
  }

  torch::Tensor forward(torch::Tensor x) override {
    x = bn1_->forward(conv1_->forward(x)).relu_();
    if (large_) x = torch::max_pool2d(x, 3, 2, 1);
    for (auto& layer : layers_) x = layer->forward(x);
    return fc_->forward(x.mean({2, 3}));
  }

 private:
  bool large_;
  nn::Conv2d conv1_{nullptr};
  nn::BatchNorm2d bn1_{nullptr};
  std::vector<nn::Sequential> layers_;
  nn::Linear fc_{nullptr};
};

/// A bottleneck layer: its k new channels stand behind those of its input.
class DenseLayer final : public nn::Module {
 public:
  DenseLayer(std::int64_t in, std::int64_t k)
      : norm1_{register_module("norm1", nn::BatchNorm2d{in})},
        conv1_{register_module("conv1", conv(in, 4 * k, 1, 1))},
        norm2_{register_module("norm2", nn::BatchNorm2d{4 * k})},
        conv2_{register_module("conv2", conv(4 * k, k, 3, 1))} {}

  torch::Tensor forward(const torch::Tensor& x) {
    const torch::Tensor y = conv1_->forward(norm1_->forward(x).relu_());
    return torch::cat({x, conv2_->forward(norm2_->forward(y).relu_())}, 1);
  }

 private:
  nn::BatchNorm2d norm1_;
  nn::Conv2d conv1_;
  nn::BatchNorm2d norm2_;
  nn::Conv2d conv2_;
};

class DenseBlock final : public nn::Module {
 public:
  DenseBlock(std::int64_t in, std::int64_t k, std::int64_t layers) {
    for (std::int64_t i = 0; i < layers; ++i) {
      layers_.push_back(
          register_module(fmt::format("denselayer{}", i + 1), std::make_shared<DenseLayer>(in + i * k, k)));
    }
  }

  torch::Tensor forward(const torch::Tensor& x) {
    torch::Tensor y = x;
    for (auto& layer : layers_) y = layer->forward(y);
    return y;
  }

 private:
  std::vector<std::shared_ptr<DenseLayer>> layers_;
};

class Transition final : public nn::Module {
 public:
  Transition(std::int64_t in, std::int64_t out)
      : norm_{register_module("norm", nn::BatchNorm2d{in})}, conv_{register_module("conv", conv(in, out, 1, 1))} {}

  torch::Tensor forward(const torch::Tensor& x) {
    return torch::avg_pool2d(conv_->forward(norm_->forward(x).relu_()), 2);
  }

 private:
  nn::BatchNorm2d norm_;
  nn::Conv2d conv_;
};

/// The names are torchvision's; conv0 is the only part of its first layers that the form for CIFAR has.
class DenseNet final : public Model {
 public:
  DenseNet(const ModelInput& input, std::int64_t k, std::int64_t blocks, std::int64_t layers) {
    nn::Sequential features;
    std::int64_t channels = 2 * k;
    features->push_back("conv0", conv(input.channels, channels, 3, 1));
    for (std::int64_t block = 1; block <= blocks; ++block) {
      features->push_back(fmt::format("denseblock{}", block), std::make_shared<DenseBlock>(channels, k, layers));
      channels += layers * k;
      if (block == blocks) break;
      features->push_back(fmt::format("transition{}", block), std::make_shared<Transition>(channels, channels / 2));
      channels /= 2;
    }
    features->push_back("norm5", nn::BatchNorm2d{channels});
    features_ = register_module("features", features);
    classifier_ = register_module("classifier", nn::Linear{channels, input.classes});
    for (auto& parameter : parameters()) {
      if (parameter.dim() == 4) nn::init::kaiming_normal_(parameter);
    }
    nn::init::zeros_(classifier_->bias);
  }

  torch::Tensor forward(torch::Tensor x) override {
    return classifier_->forward(features_->forward(x).relu_().mean({2, 3}));
  }

 private:
  nn::Sequential features_{nullptr};
  nn::Linear classifier_{nullptr};
};

}  // namespace

std::shared_ptr<Model> make_cifar_resnet(const ModelInput& input, std::int64_t n) {
  return std::make_shared<ResNet>(input, BlockKind::padded, 16, std::vector<std::int64_t>{n, n, n});
}

std::shared_ptr<Model> make_resnet18(const ModelInput& input) {
  return std::make_shared<ResNet>(input, BlockKind::projected, 64, std::vector<std::int64_t>{2, 2, 2, 2});
}

std::shared_ptr<Model> make_resnet50(const ModelInput& input) {
  return std::make_shared<ResNet>(input, BlockKind::bottleneck, 64, std::vector<std::int64_t>{3, 4, 6, 3});
}

std::shared_ptr<Model> make_densenet_bc_100(const ModelInput& input) {
  return std::make_shared<DenseNet>(input, 12, 3, 16);
}

}  // namespace gradtool
