#pragma once

#include <torch/nn.h>

#include <cstdint>
#include <string>
#include <vector>

namespace gradtool {

/// A network with one forward pass. Layers are registered in forward order under the names that PyTorch users know, so
/// that named_parameters() is the order of the gradient file.
class Model : public torch::nn::Module {
 public:
  /// images: float32 [batch, channels, height, width], normalised. Returns logits [batch, classes].
  virtual torch::Tensor forward(torch::Tensor images) = 0;
};

/// The shape of the input and the number of classes of the output.
struct ModelInput {
  std::int64_t channels = 1;
  std::int64_t height = 28;
  std::int64_t width = 28;
  std::int64_t classes = 10;
};

/// Builds `name` (one of model_names() in capture.hpp) with weights drawn from LibTorch's CPU generator: call
/// torch::manual_seed before it. Throws Fault::usage for images that are neither 28 x 28 nor 32 x 32.
///
/// lenet5: LeCun et al. 1998, with ReLU and max-pooling instead of tanh and subsampling; 28 x 28 images are padded
/// to 32 x 32 by the first convolution. 61,706 parameters for one channel. resnet20 and resnet32: He et al. 2016,
/// section 4.2 (n = 3 and 5), shortcuts of option A: identity, every second pixel, and zeros for the added channels, so
/// a shortcut has no parameters. 269,722 and 464,154 parameters for three channels, 288 fewer for one.
[[nodiscard]] std::shared_ptr<Model> make_model(const std::string& name, const ModelInput& input);

/// "norm" for both parameters of a normalisation layer, "conv" and "linear" for weights, "bias" for other vectors.
struct ParameterKind {
  std::string kind;
  std::string layout;
};
/// Kind and layout (OIHW, OI or empty) of every parameter, in the order of model.named_parameters().
[[nodiscard]] std::vector<ParameterKind> parameter_kinds(const Model& model);

}  // namespace gradtool
