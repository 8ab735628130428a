#include "lib/capture/models.hpp"

#include <functional>
#include <map>
#include <string>

#include "lib/capture/models/families.hpp"
#include "lib/core/error.hpp"

namespace gradtool {
namespace {

namespace nn = torch::nn;

/// Kind and layout of a layer's weight; its bias is "bias".
ParameterKind weight_kind(const nn::Module& layer) {
  if (layer.as<nn::Conv2d>() != nullptr) return {"conv", "OIHW"};
  if (layer.as<nn::Linear>() != nullptr) return {"linear", "OI"};
  if (layer.as<nn::Embedding>() != nullptr) return {"embedding", "VD"};
  if (layer.as<nn::LSTM>() != nullptr) return {"recurrent", "OI"};
  return {"other", ""};
}

}  // namespace

std::shared_ptr<Model> make_model(const std::string& name, const ModelInput& input) {
  static const std::map<std::string, std::function<std::shared_ptr<Model>(const ModelInput&)>> builders{
      {"mlp", make_mlp},
      {"lenet5", make_lenet5},
      {"alexnet", make_alexnet},
      {"vgg16", make_vgg16},
      {"vgg16-cifar", make_vgg16_cifar},
      {"resnet18", make_resnet18},
      {"resnet50", make_resnet50},
      {"resnet20", [](const ModelInput& in) { return make_cifar_resnet(in, 3); }},
      {"resnet32", [](const ModelInput& in) { return make_cifar_resnet(in, 5); }},
      {"resnet110", [](const ModelInput& in) { return make_cifar_resnet(in, 18); }},
      {"densenet-bc-100", make_densenet_bc_100},
      {"vit-tiny", make_vit_tiny},
      {"lstm", make_lstm},
      {"char-rnn", make_char_rnn},
      {"gpt-nano", make_gpt_nano},
      {"gpt2", make_gpt2},
  };
  const auto builder = builders.find(name);
  expects(builder != builders.end(), "make_model was given a name that model_names() does not have");
  return builder->second(input);
}

std::vector<ParameterKind> parameter_kinds(const Model& model) {
  std::vector<ParameterKind> kinds;
  for (const auto& layer : model.modules(true)) {
    const bool norm = layer->as<nn::BatchNorm2d>() != nullptr || layer->as<nn::LayerNorm>() != nullptr;
    for (const auto& named : layer->named_parameters(false)) {
      if (norm) {
        kinds.push_back({"norm", ""});
      } else {
        kinds.push_back(named.key().starts_with("bias") ? ParameterKind{"bias", ""} : weight_kind(*layer));
      }
    }
  }
  return kinds;
}

}  // namespace gradtool
