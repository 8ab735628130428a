#include "lib/model/units.hpp"

#include <algorithm>
#include <map>
#include <utility>

#include "kernels/float_bits.hpp"
#include "lib/core/text.hpp"
#include "lib/core/throw_error.hpp"

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
    if (text.find_first_not_of("0123456789.", 7) == std::string::npos)
      throw_error(Fault::usage, "--granularity '{}' is not valid: the size lacks a unit; write bucket:25MB", text);
    granularity.bucket_bytes = parse_bytes(text.substr(7), "--granularity bucket");
  } else {
    throw_error(Fault::usage, "--granularity '{}' is not valid; write tensor, model or bucket:25MB", text);
  }
  return granularity;
}

std::vector<Unit> make_units(const std::vector<TensorInfo>& tensors, const std::vector<std::size_t>& chosen,
                             const Granularity& granularity, std::optional<Dtype> reduced_in) {
  std::vector<Unit> units;
  const auto type_of = [&](std::size_t tensor) { return reduced_in.value_or(tensors[tensor].dtype); };
  const auto append = [&](Unit& unit, std::size_t tensor) {
    const Dtype type = type_of(tensor);
    if (unit.pieces.empty())
      unit.dtype = type;
    else if (unit.dtype != type)
      unit.dtype = Dtype::f32;
    const auto elements = static_cast<std::size_t>(tensors[tensor].elements);
    unit.pieces.push_back({.tensor = tensor, .first = unit.elements, .elements = elements});
    unit.elements += elements;
  };
  switch (granularity.kind) {
    case Granularity::Kind::tensor:
      for (const std::size_t tensor : chosen) append(units.emplace_back(), tensor);
      break;
    case Granularity::Kind::model:
      if (!chosen.empty()) units.emplace_back();
      for (const std::size_t tensor : chosen) append(units.back(), tensor);
      break;
    case Granularity::Kind::bucket: {
      struct Filling {
        std::size_t unit = 0;   ///< the bucket that is being filled
        std::size_t begun = 0;  ///< how many buckets its type has
      };
      std::map<Dtype, Filling> of_type;
      for (std::size_t i = chosen.size(); i-- > 0;) {
        const Dtype type = type_of(chosen[i]);
        Filling& filling = of_type[type];
        const std::uint64_t most =
            filling.begun <= 1 ? std::min(kFirstBucketBytes, granularity.bucket_bytes) : granularity.bucket_bytes;
        if (filling.begun == 0 || units[filling.unit].bytes() >= most) {
          filling = {.unit = units.size(), .begun = filling.begun + 1};
          units.emplace_back();
        }
        append(units[filling.unit], chosen[i]);
      }
      break;
    }
  }
  return units;
}

double UnitRange::share_of(const std::vector<Unit>& units) const {
  double mine = 0.0;
  double all = 0.0;
  for (std::size_t u = 0; u < units.size(); ++u) {
    const auto elements = static_cast<double>(units[u].elements);
    all += elements;
    if (u >= first && u < last) mine += elements;
  }
  return all > 0.0 ? mine / all : 1.0;
}

std::vector<UnitRange> make_unit_ranges(const std::vector<Unit>& units, std::size_t most_elements) {
  std::vector<UnitRange> ranges;
  std::size_t elements = 0;  // of the last range
  for (std::size_t u = 0; u < units.size(); ++u) {
    if (ranges.empty() || (most_elements > 0 && elements + units[u].elements > most_elements)) {
      ranges.push_back({.first = u, .last = u});
      elements = 0;
    }
    elements += units[u].elements;
    ranges.back().last = u + 1;
  }
  return ranges;
}

std::vector<double> depths_of(const std::vector<TensorInfo>& tensors) {
  std::vector<double> depths;
  depths.reserve(tensors.size());
  double all = 0.0;
  for (const auto& tensor : tensors) {
    depths.push_back(all);
    all += static_cast<double>(tensor.elements);
  }
  for (double& depth : depths) depth = all > 0.0 ? depth / all : 0.0;
  return depths;
}

Layout layout_of(const Unit& unit, const std::vector<TensorInfo>& tensors, const std::vector<double>& depths) {
  Layout layout{.tensors = {}, .elements = unit.elements};
  for (const auto& piece : unit.pieces) {
    const TensorInfo& tensor = tensors[piece.tensor];
    layout.tensors.push_back({.name = tensor.name,
                              .shape = {tensor.shape.begin(), tensor.shape.end()},
                              .kind = tensor.kind,
                              .layout = tensor.layout,
                              .first = piece.first,
                              .elements = piece.elements,
                              .depth = depths[piece.tensor]});
  }
  return layout;
}

std::shared_ptr<float> pageable_floats(std::size_t elements) {
  auto arena = std::make_shared<Arena<Space::host>>(sizeof(float) * elements);
  float* const memory = arena->take<float>(elements).data();
  return {std::move(arena), memory};
}

namespace {

GT_SIMD_CLONES void add_to(std::span<const float> values, std::span<double> sums) {
  for (std::size_t i = 0; i < values.size(); ++i) sums[i] += static_cast<double>(values[i]);
}

GT_SIMD_CLONES void set_to(std::span<const float> values, std::span<double> sums) {
  for (std::size_t i = 0; i < values.size(); ++i) sums[i] = static_cast<double>(values[i]);
}

GT_SIMD_CLONES void divide(std::span<double> sums, double by) {
  for (double& sum : sums) sum /= by;
}

}  // namespace

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
  if (wanted && buffer.memory == nullptr) buffer = {.memory = allocate_(largest_), .most = largest_, .used = elements_};
  expects(buffer.used <= buffer.most, "a unit is larger than the memory that was lent for it");
  return {buffer.memory.get(), buffer.used};
}

void StepLoader::lend(int rank, std::span<float> memory) {
  gradients_.at(static_cast<std::size_t>(rank)) = {.memory = {std::shared_ptr<float>{}, memory.data()},
                                                   .most = memory.size()};
}

void StepLoader::load(const Unit& unit, std::size_t step, int only, bool with_mean) {
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
  if (with_mean && mean_memory_.empty())
    mean_memory_ = mean_arena_.emplace(sizeof(double) * largest_).take<double>(largest_).span();
  mean_ = mean_memory_.first(with_mean ? unit.elements : 0);
  if (only != kAllRanks) std::fill(mean_.begin(), mean_.end(), 0.0);
  for (std::size_t rank = 0; rank < gradients_.size(); ++rank) {
    const bool held = only == kAllRanks || rank == static_cast<std::size_t>(only);
    if (held) {
      const auto gradient = resize(gradients_[rank]);
      const auto moment = resize(second_moments_[rank], moments);
      for (const auto& piece : unit.pieces) {
        reader_.read_gradient(piece.tensor, step, rank, gradient.subspan(piece.first, piece.elements));
        if (!moments) continue;
        reader_.read_second_moment(piece.tensor, step, rank, moment.subspan(piece.first, piece.elements));
      }
    }
    if (with_mean && only != kAllRanks) add_to_mean(unit, step, rank, held);
  }
  if (only == kAllRanks) return find_mean();
  divide(mean_, static_cast<double>(gradients_.size()));
}

void StepLoader::find_mean() {
  constexpr std::size_t kBlock = 2048;
  for (std::size_t first = 0; first < mean_.size(); first += kBlock) {
    const auto mean = mean_.subspan(first, std::min(kBlock, mean_.size() - first));
    for (const Buffer& gradient : gradients_) {
      const auto add = &gradient == &gradients_.front() ? set_to : add_to;
      add(gradient.span().subspan(first, mean.size()), mean);
    }
    divide(mean, static_cast<double>(gradients_.size()));
  }
}

void StepLoader::add_to_mean(const Unit& unit, std::size_t step, std::size_t rank, bool held) {
  if (held) return add_to(gradients_[rank].span(), mean_);
  constexpr std::size_t kPart = std::size_t{1} << 20;
  for (const auto& piece : unit.pieces) {
    for (std::size_t done = 0; done < piece.elements; done += kPart) {
      part_.resize(std::min(kPart, piece.elements - done));
      reader_.read_gradient_part(piece.tensor, step, rank, done, part_);
      add_to(part_, mean_.subspan(piece.first + done, part_.size()));
    }
  }
}

std::span<const float> StepLoader::gradient(int rank) const {
  return gradients_.at(static_cast<std::size_t>(rank)).span();
}

std::span<const float> StepLoader::second_moment(int rank) const {
  return second_moments_.at(static_cast<std::size_t>(rank)).span();
}

}  // namespace gradtool
