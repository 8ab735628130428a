#include "lib/bench/units.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

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
    if (text.find_first_not_of("0123456789.", 7) == std::string::npos) {
      throw Error{Fault::usage,
                  fmt::format("--granularity '{}' is not valid: the size lacks a unit; write bucket:25MB", text)};
    }
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
        const std::uint64_t most =
            units.size() <= 1 ? std::min(kFirstBucketBytes, granularity.bucket_bytes) : granularity.bucket_bytes;
        if (units.empty() || 4 * units.back().elements >= most) units.emplace_back();
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

std::shared_ptr<float> pageable_floats(std::size_t elements) {
  return {new float[elements], std::default_delete<float[]>{}};
}

StepLoader::StepLoader(const GradientSource& reader, int ranks, std::size_t largest_unit, Extras extras,
                       FloatAllocator allocate)
    : reader_{reader},
      extras_{extras},
      allocate_{std::move(allocate)},
      largest_{largest_unit},
      gradients_(static_cast<std::size_t>(ranks)),
      second_moments_(static_cast<std::size_t>(ranks)) {
  expect_valid(ranks >= 1 && static_cast<std::size_t>(ranks) <= reader.workers(),
               "ranks must be 1 to the file's workers");
}

std::span<float> StepLoader::resize(Buffer& buffer, bool wanted) {
  buffer.used = wanted ? elements_ : 0;
  if (wanted && buffer.memory == nullptr) buffer.memory = allocate_(largest_);
  return {buffer.memory.get(), buffer.used};
}

void StepLoader::load(const Unit& unit, std::size_t step, int only) {
  expects(unit.elements <= largest_, "a unit is larger than the loader was made for");
  elements_ = unit.elements;
  const auto all_have = [&](bool TensorInfo::*what) {
    return std::all_of(unit.pieces.begin(), unit.pieces.end(),
                       [&](const Unit::Piece& piece) { return reader_.tensors()[piece.tensor].*what; });
  };
  const auto weight = resize(weight_, extras_.weight && all_have(&TensorInfo::has_weight));
  const bool moments = extras_.second_moment && all_have(&TensorInfo::has_second_moment);
  for (const auto& piece : unit.pieces) {
    if (!weight.empty()) reader_.read_weight(piece.tensor, step, weight.subspan(piece.first, piece.elements));
  }
  for (std::size_t rank = 0; rank < gradients_.size(); ++rank) {
    if (only >= 0 && rank != static_cast<std::size_t>(only)) continue;
    const auto gradient = resize(gradients_[rank]);
    const auto moment = resize(second_moments_[rank], moments);
    for (const auto& piece : unit.pieces) {
      reader_.read_gradient(piece.tensor, step, rank, gradient.subspan(piece.first, piece.elements));
      if (!moments) continue;
      reader_.read_second_moment(piece.tensor, step, rank, moment.subspan(piece.first, piece.elements));
    }
  }
}

std::span<const float> StepLoader::gradient(int rank) const {
  return gradients_.at(static_cast<std::size_t>(rank)).span();
}

std::span<const float> StepLoader::second_moment(int rank) const {
  return second_moments_.at(static_cast<std::size_t>(rank)).span();
}

void StepLoader::mean(std::size_t first, std::span<double> out) const {
  std::fill(out.begin(), out.end(), 0.0);
  for (const auto& buffer : gradients_) {
    const auto gradient = buffer.span().subspan(first, out.size());
    for (std::size_t i = 0; i < out.size(); ++i) out[i] += static_cast<double>(gradient[i]);
  }
  for (auto& value : out) value /= static_cast<double>(gradients_.size());
}

}  // namespace gradtool
