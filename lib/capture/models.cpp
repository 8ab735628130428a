#include "lib/capture/models.hpp"

#include <fmt/format.h>
#include <torch/nn/functional.h>

#include "lib/core/error.hpp"

namespace gradtool {
namespace {

namespace nn = torch::nn;
namespace functional = torch::nn::functional;

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

nn::Conv2d conv3x3(std::int64_t in, std::int64_t out, std::int64_t stride) {
  return nn::Conv2d{nn::Conv2dOptions{in, out, 3}.stride(stride).padding(1).bias(false)};
}

class BasicBlock final : public nn::Module {
 public:
  BasicBlock(std::int64_t in, std::int64_t out, std::int64_t stride)
      : stride_{stride},
        added_channels_{out - in},
        conv1_{register_module("conv1", conv3x3(in, out, stride))},
        bn1_{register_module("bn1", nn::BatchNorm2d{out})},
        conv2_{register_module("conv2", conv3x3(out, out, 1))},
        bn2_{register_module("bn2", nn::BatchNorm2d{out})} {}

  torch::Tensor forward(const torch::Tensor& x) {
    torch::Tensor y = bn1_->forward(conv1_->forward(x)).relu_();
    y = bn2_->forward(conv2_->forward(y));
    return y.add_(shortcut(x)).relu_();
  }

 private:
  [[nodiscard]] torch::Tensor shortcut(const torch::Tensor& x) const {
    if (stride_ == 1 && added_channels_ == 0) return x;
    const torch::Tensor kept = x.slice(2, 0, x.size(2), stride_).slice(3, 0, x.size(3), stride_);
    return torch::constant_pad_nd(kept, {0, 0, 0, 0, added_channels_ / 2, added_channels_ - added_channels_ / 2});
  }

  std::int64_t stride_, added_channels_;
  nn::Conv2d conv1_;
  nn::BatchNorm2d bn1_;
  nn::Conv2d conv2_;
  nn::BatchNorm2d bn2_;
};

class CifarResNet final : public Model {
 public:
  /// 6 n + 2 layers: three stages of n blocks.
  CifarResNet(const ModelInput& input, std::int64_t n) {
    conv1_ = register_module("conv1", conv3x3(input.channels, 16, 1));
    bn1_ = register_module("bn1", nn::BatchNorm2d{16});
    std::int64_t channels = 16;
    for (const std::int64_t stage : {1, 2, 3}) {
      nn::ModuleList blocks;
      for (std::int64_t block = 0; block < n; ++block) {
        const std::int64_t out = std::int64_t{8} << stage;
        blocks_.push_back(std::make_shared<BasicBlock>(channels, out, stage > 1 && block == 0 ? 2 : 1));
        blocks->push_back(blocks_.back());
        channels = out;
      }
      register_module(fmt::format("layer{}", stage), blocks);
    }
    fc_ = register_module("fc", nn::Linear{channels, input.classes});
    for (auto& parameter : parameters()) {
      if (parameter.dim() == 4) nn::init::kaiming_normal_(parameter, 0.0, torch::kFanOut, torch::kReLU);
    }
  }

  torch::Tensor forward(torch::Tensor x) override {
    x = bn1_->forward(conv1_->forward(x)).relu_();
    for (auto& block : blocks_) x = block->forward(x);
    return fc_->forward(x.mean({2, 3}));
  }

 private:
  nn::Conv2d conv1_{nullptr};
  nn::BatchNorm2d bn1_{nullptr};
  std::vector<std::shared_ptr<BasicBlock>> blocks_;
  nn::Linear fc_{nullptr};
};

}  // namespace

std::shared_ptr<Model> make_model(const std::string& name, const ModelInput& input) {
  if (input.height != input.width || (input.height != 28 && input.height != 32)) {
    throw Error{Fault::usage, fmt::format("{} takes images of 28 x 28 or 32 x 32 pixels; the data set has {} x {}",
                                          name, input.height, input.width)};
  }
  if (name == "lenet5") return std::make_shared<LeNet5>(input);
  if (name == "resnet20") return std::make_shared<CifarResNet>(input, 3);
  expects(name == "resnet32", "make_model was given a name that model_names() does not have");
  return std::make_shared<CifarResNet>(input, 5);
}

std::vector<ParameterKind> parameter_kinds(const Model& model) {
  std::vector<ParameterKind> kinds;
  for (const auto& module : model.modules(false)) {
    const bool norm = module->as<nn::BatchNorm2d>() != nullptr;
    for (const auto& parameter : module->parameters(false)) {
      if (norm) {
        kinds.push_back({"norm", ""});
      } else if (parameter.dim() == 1) {
        kinds.push_back({"bias", ""});
      } else {
        kinds.push_back(parameter.dim() == 4 ? ParameterKind{"conv", "OIHW"} : ParameterKind{"linear", "OI"});
      }
    }
  }
  return kinds;
}

}  // namespace gradtool
