#include "lib/bench/units.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "lib/core/error.hpp"
#include "lib/core/text.hpp"

namespace gradtool {

Granularity Granularity::parse(const std::string& text) {
  Granularity granularity;
  granularity.text_ = text;
  if (text == "tensor") {
    granularity.kind = Kind::tensor;
  } else if (text == "model") {
    granularity.kind = Kind::model;
  } else if (text.starts_with("bucket:")) {
    granularity.kind = Kind::bucket;
    granularity.bucket_bytes = parse_bytes(text.substr(7), "--granularity bucket");
  } else {
    throw Error{Fault::usage, fmt::format("--granularity '{}' is not valid; write tensor, model or bucket:25MB", text)};
  }
  return granularity;
}

std::vector<Unit> make_units(const std::vector<TensorInfo>& tensors, const std::vector<std::size_t>& chosen,
                             const Granularity& granularity) {
  std::vector<Unit> units;
  const auto append = [&](std::size_t tensor) {
    Unit& unit = units.back();
    const auto elements = static_cast<std::size_t>(tensors[tensor].elements);
    unit.pieces.push_back({.tensor = tensor, .first = unit.elements, .elements = elements});
    unit.elements += elements;
  };
  switch (granularity.kind) {
    case Granularity::Kind::tensor:
      for (const std::size_t tensor : chosen) {
        units.emplace_back();
        append(tensor);
      }
      break;
    case Granularity::Kind::model:
      if (!chosen.empty()) units.emplace_back();
      for (const std::size_t tensor : chosen) append(tensor);
      break;
    case Granularity::Kind::bucket:
      for (std::size_t i = chosen.size(); i-- > 0;) {
        const std::uint64_t bytes = 4 * tensors[chosen[i]].elements;
        if (units.empty() ||
            (units.back().elements > 0 && 4 * units.back().elements + bytes > granularity.bucket_bytes)) {
          units.emplace_back();
        }
        append(chosen[i]);
      }
      break;
  }
  return units;
}

Layout layout_of(const Unit& unit, const std::vector<TensorInfo>& tensors) {
  double all = 0.0;
  for (const auto& tensor : tensors) all += static_cast<double>(tensor.elements);
  Layout layout{.tensors = {}, .elements = unit.elements};
  for (const auto& piece : unit.pieces) {
    const TensorInfo& tensor = tensors[piece.tensor];
    double before = 0.0;
    for (std::size_t t = 0; t < piece.tensor; ++t) before += static_cast<double>(tensors[t].elements);
    layout.tensors.push_back({.name = tensor.name,
                              .shape = {tensor.shape.begin(), tensor.shape.end()},
                              .kind = tensor.kind,
                              .layout = tensor.layout,
                              .first = piece.first,
                              .elements = piece.elements,
                              .depth = all > 0.0 ? before / all : 0.0});
  }
  return layout;
}

}  // namespace gradtool
