#include "lib/bench/received.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <map>
#include <set>

#include "lib/bench/error_totals.hpp"
#include "lib/core/error.hpp"
#include "lib/core/interrupt.hpp"
#include "lib/core/text.hpp"

namespace gradtool {
namespace {

/// Names refer to `tensors`.
std::map<std::string_view, std::size_t> places_by_name(const std::vector<TensorInfo>& tensors) {
  std::map<std::string_view, std::size_t> places;
  for (std::size_t t = 0; t < tensors.size(); ++t) places.emplace(tensors[t].name, t);
  return places;
}

[[noreturn]] void refuse(const GradientReader& received, const std::string& why) {
  throw Error{Fault::data, fmt::format("--received {} {}", received.path(), why)};
}

}  // namespace

CodecSpec received_spec(const std::string& path) {
  static constexpr std::array<ParamInfo, 1> kParams{
      {{.name = "file", .kind = ParamInfo::Kind::choice, .default_value = "", .meaning = "where the means are from"}}};
  static constexpr CodecDescriptor kDescriptor{.name = kReceivedName,
                                               .summary = "Means that another program's method brought to every rank",
                                               .reference = "",
                                               .params = kParams,
                                               .aggregation = Aggregation::own,
                                               .payload = ""};
  const std::string name = std::filesystem::path{path}.filename().string();
  ParamInfo file = kParams.front();
  file.default_value = name;  // not parsed, because a name may have commas
  return {&kDescriptor, Params{kReceivedName, std::span{&file, 1}, ""}, false, "file=" + name};
}

ReceivedMeans::ReceivedMeans(const std::string& path, const GradientSource& capture) : reader_{path} {
  if (reader_.workers() != 1) {
    refuse(reader_, fmt::format("has {} workers, but a mean that every rank receives is of one; write one worker, or a "
                                "file for each rank whose mean is another",
                                reader_.workers()));
  }
  const auto places = places_by_name(capture.tensors());
  for (const TensorInfo& tensor : reader_.tensors()) {
    const auto same = places.find(tensor.name);
    if (same == places.end())
      refuse(reader_, fmt::format("has a tensor '{}', which {} lacks", tensor.name, capture.path()));
    const auto& shape = capture.tensors()[same->second].shape;
    if (tensor.shape == shape) continue;
    refuse(reader_, fmt::format("has tensor '{}' with the shape [{}], but in {} it is [{}]", tensor.name,
                                joined(tensor.shape, ", "), capture.path(), joined(shape, ", ")));
  }
  std::set<std::int64_t> captured;
  for (const StepInfo& step : capture.steps()) captured.insert(step.iteration);
  for (const StepInfo& step : reader_.steps()) {
    if (!captured.contains(step.iteration))
      refuse(reader_, fmt::format("has a step of iteration {}, which {} lacks", step.iteration, capture.path()));
  }
}

std::vector<std::size_t> ReceivedMeans::tensors_of(const BenchCut& cut) const {
  const auto mine = places_by_name(reader_.tensors());
  std::vector<std::size_t> places(cut.source.tensors().size());
  for (const std::size_t tensor : cut.selection.tensors) {
    const TensorInfo& info = cut.source.tensors()[tensor];
    const auto place = mine.find(info.name);
    if (place == mine.end()) refuse(reader_, fmt::format("lacks tensor '{}' of {}", info.name, cut.source.path()));
    places[tensor] = place->second;
  }
  return places;
}

std::vector<std::size_t> ReceivedMeans::steps_of(const BenchCut& cut) const {
  const auto& steps = reader_.steps();
  std::vector<std::size_t> places;
  auto next = steps.begin();
  for (const StepInfo& wanted : cut.source.steps()) {
    next = std::find_if(next, steps.end(), [&](const StepInfo& step) { return step.iteration == wanted.iteration; });
    if (next == steps.end()) {
      refuse(reader_, fmt::format("lacks the step of iteration {} of {}, or has its steps in another order",
                                  wanted.iteration, cut.source.path()));
    }
    places.push_back(static_cast<std::size_t>(next++ - steps.begin()));
  }
  return places;
}

void ReceivedMeans::expect_all_of(const BenchCut& cut) const {
  static_cast<void>(tensors_of(cut));
  static_cast<void>(steps_of(cut));
}

ReplayResult ReceivedMeans::compare(const BenchCut& cut, int ranks, std::size_t range_elements, bool tensor_steps,
                                    const std::optional<UpdateRule>& rule) const {
  const auto tensors = tensors_of(cut), steps = steps_of(cut);
  ReplayResult result;
  result.tensor_errors.resize(tensors.size());
  result.step_errors.resize(steps.size());
  result.tensor_steps.resize(tensor_steps ? steps.size() * tensors.size() : 0);
  result.windows = windows_of(cut.source.steps(), steps.size());
  for (auto* sums : {&result.cumulative_error, &result.cumulative_energy})
    sums->resize(result.windows.size() * tensors.size());
  if (rule) result.updates.resize(result.windows.size() * tensors.size());
  std::size_t largest = 0;
  for (const Unit& unit : cut.units) largest = std::max(largest, unit.elements);
  StepLoader loader{cut.source, ranks, largest, {}};
  std::vector<float> received(largest);
  for (const UnitRange range : make_unit_ranges(cut.units, range_elements)) {
    ErrorTotals totals{range.of(cut.units), rule, false, result};
    std::size_t window = 0;
    for (std::size_t step = 0; step < steps.size(); ++step) {
      if (step == result.windows[window].end) totals.finish_window(), ++window;
      for (std::size_t u = range.first; u < range.last; ++u) {
        const Unit& unit = cut.units[u];
        loader.load(unit, step, 0, true);
        for (const Unit::Piece& piece : unit.pieces) {
          reader_.read_gradient(tensors[piece.tensor], steps[step], 0,
                                std::span{received}.subspan(piece.first, piece.elements));
        }
        totals.observe(step, u - range.first, loader.mean(), std::span{received}.first(unit.elements));
      }
      if (interrupted()) throw Error{Fault::check, std::string{kInterruptedMessage}};
    }
    totals.finish_window();
  }
  return result;
}

}  // namespace gradtool
