#pragma once

#include <cstdint>
#include <memory>

#include "lib/capture/models.hpp"

// The models that make_model() builds; see there.
namespace gradtool {

[[nodiscard]] std::shared_ptr<Model> make_mlp(const ModelInput& input);
[[nodiscard]] std::shared_ptr<Model> make_lenet5(const ModelInput& input);
[[nodiscard]] std::shared_ptr<Model> make_alexnet(const ModelInput& input);
[[nodiscard]] std::shared_ptr<Model> make_vgg16(const ModelInput& input);
[[nodiscard]] std::shared_ptr<Model> make_vgg16_cifar(const ModelInput& input);
/// 6 n + 2 layers.
[[nodiscard]] std::shared_ptr<Model> make_cifar_resnet(const ModelInput& input, std::int64_t n);
[[nodiscard]] std::shared_ptr<Model> make_resnet18(const ModelInput& input);
[[nodiscard]] std::shared_ptr<Model> make_resnet50(const ModelInput& input);
[[nodiscard]] std::shared_ptr<Model> make_densenet_bc_100(const ModelInput& input);
[[nodiscard]] std::shared_ptr<Model> make_vit_tiny(const ModelInput& input);
[[nodiscard]] std::shared_ptr<Model> make_lstm(const ModelInput& input);
[[nodiscard]] std::shared_ptr<Model> make_char_rnn(const ModelInput& input);
[[nodiscard]] std::shared_ptr<Model> make_gpt_nano(const ModelInput& input);
[[nodiscard]] std::shared_ptr<Model> make_gpt2(const ModelInput& input);

}  // namespace gradtool
