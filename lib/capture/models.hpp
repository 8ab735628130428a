#pragma once

#include <torch/nn.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "lib/capture/catalogue.hpp"

namespace gradtool {

/// A network with one forward pass. Layers are registered in forward order under the names that PyTorch users know, so
/// that named_parameters() is the order of the gradient file.
///
/// No model has dropout, also where its paper does: with it, a gradient would depend on more than the samples and the
/// weights, as it would with augmentation.
class Model : public torch::nn::Module {
 public:
  /// Images: float32 [batch, channels, height, width], normalised; returns logits [batch, classes].
  /// Text: int64 [batch, sequence_length]; returns logits [batch, sequence_length, classes] for the token behind each.
  virtual torch::Tensor forward(torch::Tensor input) = 0;
};

/// Builds `name` (one of model_names()) for `input`, which model_input() has approved, with weights drawn from
/// LibTorch's CPU generator: call torch::manual_seed before it.
///
/// mlp: fc1 to fc3.
///
/// lenet5: LeCun et al. 1998, with ReLU and max-pooling instead of tanh and subsampling; 28 x 28 images are padded
/// to 32 x 32 by the first convolution.
///
/// alexnet, vgg16: torchvision's, without dropout. An adaptive pooling brings any size to 6 x 6 or 7 x 7; its
/// backward pass on a GPU does not repeat exactly unless the size before it is a multiple of that, as it is at 224.
/// vgg16-cifar: the same convolutions, each with batch normalisation, and one linear layer on the one pixel that is
/// left of 32 x 32.
///
/// resnet20, resnet32, resnet110: He et al. 2016, section 4.2 (n = 3, 5, 18), shortcuts of option A: identity, every
/// second pixel, and zeros for the added channels, so a shortcut has no parameters. resnet18, resnet50: torchvision's,
/// where the 3 x 3 convolution of a bottleneck has the stride, and shortcuts are projections. For images below 64
/// pixels the first convolution is 3 x 3 with stride 1 and no pooling follows it.
///
/// densenet-bc-100: Huang et al. 2017, section 4.2, k = 12: three blocks of 16 bottleneck layers, compression 0.5.
///
/// vit-tiny: DeiT-Ti (Touvron et al. 2021) without distillation: 12 layers, width 192, 3 heads.
///
/// lstm: two layers of 650, an embedding and an output layer of their own; weights are uniform in [-0.05, 0.05]
/// (Zaremba et al. 2014). The state is zero at the beginning of every sequence. char-rnn has two layers of 128
/// (Karpathy 2015; its first layer takes one of 256 inputs for each byte, and this one an embedding).
///
/// gpt-nano, gpt2: Radford et al. 2019: normalisation before each part, GELU in its approximation by tanh, the output
/// layer is the embedding of tokens. The names are Hugging Face's; c_attn, c_proj and c_fc are stored output first
/// (OI), as in nanoGPT, not input first. gpt2 has 1024 positions, gpt-nano as many as a sequence has.
[[nodiscard]] std::shared_ptr<Model> make_model(const std::string& name, const ModelInput& input);

/// "norm" for both parameters of a normalisation layer, "conv", "linear", "embedding" and "recurrent" for weights,
/// "bias" for biases, "other" for what belongs to no layer, such as the class token of a vision transformer.
struct ParameterKind {
  std::string kind;
  std::string layout;  ///< OIHW, OI, VD (vocabulary, dimension), or empty
};
/// Kind and layout of every parameter, in the order of model.named_parameters().
[[nodiscard]] std::vector<ParameterKind> parameter_kinds(const Model& model);

}  // namespace gradtool
