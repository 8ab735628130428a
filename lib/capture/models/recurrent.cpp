#include <tuple>

#include "lib/capture/models/families.hpp"

namespace gradtool {
namespace {

namespace nn = torch::nn;

/// The names are those of PyTorch's example word_language_model.
class LstmLanguageModel final : public Model {
 public:
  LstmLanguageModel(const ModelInput& input, std::int64_t width, std::int64_t layers) {
    encoder_ = register_module("encoder", nn::Embedding{input.classes, width});
    rnn_ = register_module("rnn", nn::LSTM{nn::LSTMOptions{width, width}.num_layers(layers).batch_first(true)});
    decoder_ = register_module("decoder", nn::Linear{width, input.classes});
    for (auto& parameter : parameters()) nn::init::uniform_(parameter, -0.05, 0.05);
  }

  torch::Tensor forward(torch::Tensor tokens) override {
    return decoder_->forward(std::get<0>(rnn_->forward(encoder_->forward(tokens))));
  }

 private:
  nn::Embedding encoder_{nullptr};
  nn::LSTM rnn_{nullptr};
  nn::Linear decoder_{nullptr};
};

}  // namespace

std::shared_ptr<Model> make_lstm(const ModelInput& input) {
  return std::make_shared<LstmLanguageModel>(input, 650, 2);
}
std::shared_ptr<Model> make_char_rnn(const ModelInput& input) {
  return std::make_shared<LstmLanguageModel>(input, 128, 2);
}

}  // namespace gradtool
