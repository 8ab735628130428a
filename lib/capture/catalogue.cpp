#include "lib/capture/catalogue.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "lib/core/throw_error.hpp"

namespace gradtool {
namespace {

bool any_side(std::int64_t /*side*/) {
  return true;
}
bool lenet_side(std::int64_t side) {
  return side == 28 || side == 32;
}
template <std::int64_t least>
bool at_least(std::int64_t side) {
  return side >= least;
}
bool vgg_cifar_side(std::int64_t side) {
  return side == 32;
}
/// Whole patches: of 4 x 4 pixels below 64, of 16 x 16 from there on.
bool vit_side(std::int64_t side) {
  return side >= 16 && side % (side < 64 ? 4 : 16) == 0;
}

constexpr ModelInput kMnist{.channels = 1, .height = 28, .width = 28, .classes = 10};
constexpr ModelInput kCifar10{.channels = 3, .height = 32, .width = 32, .classes = 10};
constexpr ModelInput kImageNet{.channels = 3, .height = 224, .width = 224, .classes = 1000};
constexpr ModelInput text(std::int64_t vocabulary, std::int64_t length) {
  return {.channels = 0, .height = 0, .width = 0, .classes = vocabulary, .sequence_length = length};
}

constexpr ModelDescription kModels[] = {
    {.name = "mlp",
     .summary = "Two hidden layers of 200 units with ReLU",
     .takes = "images of any size",
     .takes_side = any_side,
     .parameters = 199'210,
     .at = kMnist,
     .sgd_rate = 0.05,
     .adam_rate = 1e-3,
     .reference = "McMahan et al. 2017, Communication-Efficient Learning of Deep Networks (2NN, 199,210 parameters)"},
    {.name = "lenet5",
     .summary = "LeNet-5 with ReLU and max-pooling",
     .takes = "images of 28 x 28 or 32 x 32 pixels",
     .takes_side = lenet_side,
     .parameters = 61'706,
     .at = kMnist,
     .sgd_rate = 0.02,
     .adam_rate = 1e-3,
     .reference = "LeCun et al. 1998, Gradient-Based Learning Applied to Document Recognition"},
    {.name = "alexnet",
     .summary = "AlexNet in torchvision's form: 5 convolutions, 3 linear layers",
     .takes = "images of at least 63 x 63 pixels",
     .takes_side = at_least<63>,
     .parameters = 61'100'840,
     .at = kImageNet,
     .sgd_rate = 0.01,
     .adam_rate = 1e-4,
     .reference = "Krizhevsky 2014, One Weird Trick for Parallelizing CNNs; torchvision alexnet"},
    {.name = "vgg16",
     .summary = "VGG-16 for ImageNet: 13 convolutions, 3 linear layers",
     .takes = "images of at least 32 x 32 pixels",
     .takes_side = at_least<32>,
     .parameters = 138'357'544,
     .at = kImageNet,
     .sgd_rate = 0.01,
     .adam_rate = 1e-4,
     .reference = "Simonyan and Zisserman 2015, Very Deep Convolutional Networks (D); torchvision vgg16"},
    {.name = "vgg16-cifar",
     .summary = "VGG-16 for CIFAR: batch normalisation, one linear layer",
     .takes = "images of 32 x 32 pixels",
     .takes_side = vgg_cifar_side,
     .parameters = 14'728'266,
     .at = kCifar10,
     .sgd_rate = 0.01,
     .adam_rate = 1e-3,
     .batch_norm = true,
     .reference = "Simonyan and Zisserman 2015; the form of github.com/kuangliu/pytorch-cifar"},
    {.name = "resnet18",
     .summary = "ResNet-18; below 64 pixels with a stem for CIFAR",
     .takes = "images of at least 16 x 16 pixels",
     .takes_side = at_least<16>,
     .parameters = 11'689'512,
     .at = kImageNet,
     .sgd_rate = 0.02,
     .adam_rate = 1e-3,
     .batch_norm = true,
     .reference = "He et al. 2016, Deep Residual Learning; torchvision resnet18"},
    {.name = "resnet50",
     .summary = "ResNet-50; below 64 pixels with a stem for CIFAR",
     .takes = "images of at least 16 x 16 pixels",
     .takes_side = at_least<16>,
     .parameters = 25'557'032,
     .at = kImageNet,
     .sgd_rate = 0.005,
     .adam_rate = 1e-3,
     .batch_norm = true,
     .reference = "He et al. 2016, Deep Residual Learning; torchvision resnet50"},
    {.name = "resnet20",
     .summary = "ResNet-20 for CIFAR, shortcuts without parameters",
     .takes = "images of at least 16 x 16 pixels",
     .takes_side = at_least<16>,
     .parameters = 269'722,
     .at = kCifar10,
     .sgd_rate = 0.1,
     .adam_rate = 1e-3,
     .batch_norm = true,
     .reference = "He et al. 2016, Deep Residual Learning, table 6 (0.27 M)"},
    {.name = "resnet32",
     .summary = "ResNet-32 for CIFAR, shortcuts without parameters",
     .takes = "images of at least 16 x 16 pixels",
     .takes_side = at_least<16>,
     .parameters = 464'154,
     .at = kCifar10,
     .sgd_rate = 0.1,
     .adam_rate = 1e-3,
     .batch_norm = true,
     .reference = "He et al. 2016, Deep Residual Learning, table 6 (0.46 M)"},
    {.name = "resnet110",
     .summary = "ResNet-110 for CIFAR, shortcuts without parameters",
     .takes = "images of at least 16 x 16 pixels",
     .takes_side = at_least<16>,
     .parameters = 1'727'962,
     .at = kCifar10,
     // He et al. begin with 0.01, because 0.1 is too much for the first 400 iterations.
     .sgd_rate = 0.01,
     .adam_rate = 1e-3,
     .batch_norm = true,
     .reference = "He et al. 2016, Deep Residual Learning, table 6 (1.7 M)"},
    {.name = "densenet-bc-100",
     .summary = "DenseNet-BC for CIFAR: 100 layers, growth rate 12",
     .takes = "images of at least 16 x 16 pixels",
     .takes_side = at_least<16>,
     .parameters = 769'162,
     .at = kCifar10,
     .sgd_rate = 0.1,
     .adam_rate = 1e-3,
     .batch_norm = true,
     .reference = "Huang et al. 2017, Densely Connected Convolutional Networks, table 2 (0.8 M)"},
    {.name = "vit-tiny",
     .summary = "Vision transformer (DeiT-Ti); patches of 16 pixels, of 4 below 64",
     .takes = "images of 16, 20, ... 60 or 64, 80, ... pixels a side",
     .takes_side = vit_side,
     .parameters = 5'717'416,
     .at = kImageNet,
     .sgd_rate = 0.01,
     .adam_rate = 5e-4,
     .reference = "Touvron et al. 2021, Training Data-Efficient Image Transformers; timm deit_tiny_patch16_224"},
    {.name = "lstm",
     .summary = "Word-level LSTM, medium: 2 layers of 650",
     .takes = "text in sequences of at most 4096 tokens",
     .sequence_length = 35,
     .longest_sequence = 4096,
     .parameters = 19'780'400,
     .at = text(10'000, 35),
     .sgd_rate = 0.1,
     .adam_rate = 1e-3,
     .reference = "Zaremba et al. 2014, Recurrent Neural Network Regularization; PyTorch's word_language_model"},
    {.name = "char-rnn",
     .summary = "Character-level LSTM: 2 layers of 128",
     .takes = "text in sequences of at most 4096 tokens",
     .sequence_length = 50,
     .longest_sequence = 4096,
     .parameters = 329'984,
     .at = text(256, 50),
     .sgd_rate = 2.0,
     .adam_rate = 1e-2,
     .reference = "Karpathy 2015, The Unreasonable Effectiveness of Recurrent Neural Networks; the sizes of char-rnn"},
    {.name = "gpt-nano",
     .summary = "GPT-2's architecture: 3 layers, 3 heads, width 48",
     .takes = "text in sequences of at most 4096 tokens",
     .sequence_length = 128,
     .longest_sequence = 4096,
     .parameters = 85'584,
     .at = text(3, 11),
     .sgd_rate = 0.1,
     .adam_rate = 1e-3,
     .reference = "Radford et al. 2019, Language Models Are Unsupervised Multitask Learners; minGPT gpt-nano (0.09 M)"},
    {.name = "gpt2",
     .summary = "GPT-2 small: 12 layers, 12 heads, width 768",
     .takes = "text in sequences of at most 1024 tokens",
     .sequence_length = 256,
     .longest_sequence = 1024,
     .parameters = 124'439'808,
     .at = text(50'257, 1024),
     .sgd_rate = 0.01,
     .adam_rate = 6e-4,
     .reference = "Radford et al. 2019, Language Models Are Unsupervised Multitask Learners; Hugging Face gpt2"},
};

}  // namespace

std::span<const ModelDescription> models() {
  return kModels;
}

const std::vector<std::string>& model_names() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> all;
    all.reserve(std::size(kModels));
    for (const auto& model : kModels) all.emplace_back(model.name);
    return all;
  }();
  return names;
}

const ModelDescription& find_model(const std::string& name) {
  const auto* const found = std::find_if(std::begin(kModels), std::end(kModels),
                                         [&](const ModelDescription& model) { return model.name == name; });
  expects(found != std::end(kModels), "a model was named that model_names() does not have");
  return *found;
}

ModelInput model_input(const std::string& name, const Dataset& dataset, std::int64_t image_size) {
  const ModelDescription& model = find_model(name);
  const auto refuse = [&](const std::string& what) {
    throw_error(Fault::usage, "{} takes {}; {}", model.name, model.takes, what);
  };
  ModelInput input{.channels = dataset.channels,
                   .height = image_size > 0 ? image_size : dataset.height,
                   .width = image_size > 0 ? image_size : dataset.width,
                   .classes = dataset.classes,
                   .sequence_length = dataset.sequence_length};
  if (dataset.is_text()) {
    if (!model.is_text()) refuse("the data set is text");
    if (input.sequence_length > model.longest_sequence) {
      refuse(fmt::format("--sequence-length is {}", input.sequence_length));
    }
    return input;
  }
  if (model.is_text()) refuse("the data set has images");
  if (image_size > 0 && image_size < std::max(dataset.height, dataset.width)) {
    throw_error(Fault::usage, "--image-size {} is below the {} x {} pixels of the images, which are only ever enlarged",
                image_size, dataset.height, dataset.width);
  }
  const bool any = model.takes_side == any_side;
  if (!any && (input.height != input.width || !model.takes_side(input.height))) {
    if (image_size > 0) refuse(fmt::format("--image-size is {}", image_size));
    refuse(fmt::format("the data set has {} x {}; --image-size enlarges them", input.height, input.width));
  }
  return input;
}

}  // namespace gradtool
