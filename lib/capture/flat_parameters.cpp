#include "lib/capture/flat_parameters.hpp"

namespace gradtool {

FlatParameters::FlatParameters(const Model& model) {
  const auto kinds = parameter_kinds(model);
  std::vector<torch::Tensor> pieces;
  for (const auto& named : model.named_parameters()) {
    const torch::Tensor& parameter = named.value();
    TensorInfo info;
    info.name = named.key();
    info.shape = parameter.sizes().vec();
    info.kind = kinds[infos_.size()].kind;
    info.layout = kinds[infos_.size()].layout;
    info.elements = static_cast<std::uint64_t>(parameter.numel());
    infos_.push_back(std::move(info));
    pieces.push_back(parameter.detach().reshape({-1}));
  }
  values_ = torch::cat(pieces);
}

void FlatParameters::bind(Model& replica, const torch::Tensor& gradient) const {
  std::int64_t first = 0;
  for (auto& parameter : replica.parameters()) {
    const auto view_of = [&](const torch::Tensor& flat) {
      return flat.narrow(0, first, parameter.numel()).view(parameter.sizes());
    };
    const torch::Tensor gradient_view = view_of(gradient);
    parameter.set_data(view_of(values_));
    parameter.mutable_grad() = gradient_view;
    first += parameter.numel();
  }
}

}  // namespace gradtool
