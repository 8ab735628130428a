// Transformers: GPT-2 and the vision transformer, which differ in what goes in, what comes out, and the names.
#include <fmt/format.h>

#include <cmath>
#include <limits>
#include <vector>

#include "lib/capture/models/families.hpp"

namespace gradtool {
namespace {

namespace nn = torch::nn;

/// In what the blocks of the two differ.
struct BlockStyle {
  const char *norm1, *attention, *qkv, *projection, *norm2, *fc1, *fc2;  ///< names; "mlp" is common to both
  bool causal;                                                           ///< a position sees none behind it
  const char* gelu;                                                      ///< "none" (exact) or "tanh"
  double epsilon;                                                        ///< of the normalisation
};

constexpr BlockStyle kGpt2Style{"ln_1", "attn", "c_attn", "c_proj", "ln_2", "c_fc", "c_proj", true, "tanh", 1e-5};
constexpr BlockStyle kVitStyle{"norm1", "attn", "qkv", "proj", "norm2", "fc1", "fc2", false, "none", 1e-6};

struct Shape {
  std::int64_t layers, heads, width;
};

nn::LayerNorm layer_norm(std::int64_t width, double epsilon) {
  return nn::LayerNorm{nn::LayerNormOptions{{width}}.eps(epsilon)};
}

/// Vaswani et al. 2017, section 3.2.
class Attention final : public nn::Module {
 public:
  Attention(const Shape& shape, const BlockStyle& style) : heads_{shape.heads}, causal_{style.causal} {
    qkv_ = register_module(style.qkv, nn::Linear{shape.width, 3 * shape.width});
    projection_ = register_module(style.projection, nn::Linear{shape.width, shape.width});
  }

  /// [batch, positions, width]
  torch::Tensor forward(const torch::Tensor& x) {
    const std::int64_t batch = x.size(0), positions = x.size(1), depth = x.size(2) / heads_;
    // [query or key or value, batch, head, position, depth]
    const torch::Tensor qkv = qkv_->forward(x).view({batch, positions, 3, heads_, depth}).permute({2, 0, 3, 1, 4});
    torch::Tensor scores = qkv[0].matmul(qkv[1].transpose(-2, -1)) * (1.0 / std::sqrt(static_cast<double>(depth)));
    if (causal_) {
      const torch::Tensor later = torch::ones({positions, positions}, x.options().dtype(torch::kBool)).triu(1);
      scores = scores.masked_fill(later, -std::numeric_limits<float>::infinity());
    }
    const torch::Tensor mixed = scores.softmax(-1).matmul(qkv[2]).transpose(1, 2).reshape(x.sizes());
    return projection_->forward(mixed);
  }

 private:
  std::int64_t heads_;
  bool causal_;
  nn::Linear qkv_{nullptr}, projection_{nullptr};
};

class Perceptron final : public nn::Module {
 public:
  Perceptron(const Shape& shape, const BlockStyle& style) : gelu_{style.gelu} {
    fc1_ = register_module(style.fc1, nn::Linear{shape.width, 4 * shape.width});
    fc2_ = register_module(style.fc2, nn::Linear{4 * shape.width, shape.width});
  }

  torch::Tensor forward(const torch::Tensor& x) { return fc2_->forward(torch::gelu(fc1_->forward(x), gelu_)); }

 private:
  const char* gelu_;
  nn::Linear fc1_{nullptr}, fc2_{nullptr};
};

class TransformerBlock final : public nn::Module {
 public:
  TransformerBlock(const Shape& shape, const BlockStyle& style)
      : norm1_{register_module(style.norm1, layer_norm(shape.width, style.epsilon))},
        attention_{register_module(style.attention, std::make_shared<Attention>(shape, style))},
        norm2_{register_module(style.norm2, layer_norm(shape.width, style.epsilon))},
        mlp_{register_module("mlp", std::make_shared<Perceptron>(shape, style))} {}

  torch::Tensor forward(const torch::Tensor& x) {
    const torch::Tensor y = x + attention_->forward(norm1_->forward(x));
    return y + mlp_->forward(norm2_->forward(y));
  }

 private:
  nn::LayerNorm norm1_;
  std::shared_ptr<Attention> attention_;
  nn::LayerNorm norm2_;
  std::shared_ptr<Perceptron> mlp_;
};

nn::Sequential transformer_blocks(const Shape& shape, const BlockStyle& style) {
  nn::Sequential blocks;
  for (std::int64_t i = 0; i < shape.layers; ++i) blocks->push_back(std::make_shared<TransformerBlock>(shape, style));
  return blocks;
}

/// Weights of linear layers and embeddings from a normal distribution, biases 0.
void init_normal(nn::Module& model, double deviation) {
  for (const auto& module : model.modules(false)) {
    if (auto* linear = module->as<nn::Linear>()) {
      nn::init::normal_(linear->weight, 0.0, deviation);
      nn::init::zeros_(linear->bias);
    }
    if (auto* embedding = module->as<nn::Embedding>()) nn::init::normal_(embedding->weight, 0.0, deviation);
  }
}

class Gpt final : public Model {
 public:
  Gpt(const ModelInput& input, const Shape& shape, std::int64_t positions) {
    nn::Module& transformer = *register_module("transformer", std::make_shared<nn::Module>("transformer"));
    wte_ = transformer.register_module("wte", nn::Embedding{input.classes, shape.width});
    wpe_ = transformer.register_module("wpe", nn::Embedding{positions, shape.width});
    blocks_ = transformer.register_module("h", transformer_blocks(shape, kGpt2Style));
    norm_ = transformer.register_module("ln_f", layer_norm(shape.width, kGpt2Style.epsilon));
    init_normal(*this, 0.02);
    // Radford et al. 2019, section 2.3: by one over the square root of the number of layers that add to the residual.
    const double scaled = 0.02 / std::sqrt(2.0 * static_cast<double>(shape.layers));
    for (const auto& named : named_parameters()) {
      torch::Tensor parameter = named.value();
      if (named.key().ends_with("c_proj.weight")) nn::init::normal_(parameter, 0.0, scaled);
    }
  }

  torch::Tensor forward(torch::Tensor tokens) override {
    const torch::Tensor x = wte_->forward(tokens) + wpe_->weight.narrow(0, 0, tokens.size(1));
    return torch::linear(norm_->forward(blocks_->forward(x)), wte_->weight);
  }

 private:
  nn::Embedding wte_{nullptr}, wpe_{nullptr};
  nn::Sequential blocks_{nullptr};
  nn::LayerNorm norm_{nullptr};
};

class VisionTransformer final : public Model {
 public:
  VisionTransformer(const ModelInput& input, const Shape& shape, std::int64_t patch) {
    const std::int64_t positions = 1 + (input.height / patch) * (input.width / patch);
    class_token_ = register_parameter("cls_token", torch::zeros({1, 1, shape.width}));
    positions_ = register_parameter("pos_embed", torch::zeros({1, positions, shape.width}));
    nn::Module& embedding = *register_module("patch_embed", std::make_shared<nn::Module>("patch_embed"));
    patches_ = embedding.register_module(
        "proj", nn::Conv2d{nn::Conv2dOptions{input.channels, shape.width, patch}.stride(patch)});
    blocks_ = register_module("blocks", transformer_blocks(shape, kVitStyle));
    norm_ = register_module("norm", layer_norm(shape.width, kVitStyle.epsilon));
    head_ = register_module("head", nn::Linear{shape.width, input.classes});
    init_normal(*this, 0.02);
    nn::init::normal_(class_token_, 0.0, 0.02);
    nn::init::normal_(positions_, 0.0, 0.02);
  }

  torch::Tensor forward(torch::Tensor images) override {
    const torch::Tensor patches = patches_->forward(images).flatten(2).transpose(1, 2);
    const torch::Tensor first = class_token_.expand({images.size(0), -1, -1});
    const torch::Tensor x = torch::cat({first, patches}, 1) + positions_;
    return head_->forward(norm_->forward(blocks_->forward(x)).select(1, 0));
  }

 private:
  torch::Tensor class_token_, positions_;
  nn::Conv2d patches_{nullptr};
  nn::Sequential blocks_{nullptr};
  nn::LayerNorm norm_{nullptr};
  nn::Linear head_{nullptr};
};

}  // namespace

std::shared_ptr<Model> make_vit_tiny(const ModelInput& input) {
  return std::make_shared<VisionTransformer>(input, Shape{.layers = 12, .heads = 3, .width = 192},
                                             input.height < 64 ? 4 : 16);
}

std::shared_ptr<Model> make_gpt_nano(const ModelInput& input) {
  return std::make_shared<Gpt>(input, Shape{.layers = 3, .heads = 3, .width = 48}, input.sequence_length);
}

std::shared_ptr<Model> make_gpt2(const ModelInput& input) {
  return std::make_shared<Gpt>(input, Shape{.layers = 12, .heads = 12, .width = 768}, 1024);
}

}  // namespace gradtool
