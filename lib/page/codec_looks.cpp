#include "lib/page/codec_looks.hpp"
#include "lib/core/parse.hpp"
#include "lib/core/text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace gradtool {
namespace {

// Okabe and Ito's colours without black and yellow, on white and on black.
constexpr std::array<const char*, CodecLooks::kColours> kPalette{"#0072b2", "#d55e00", "#009e73",
                                                                 "#cc79a7", "#e69f00", "#56b4e9"};
constexpr std::array<const char*, 4> kShapes{"circle", "square", "diamond", "triangle-up"};

std::vector<double> dash_of(std::size_t turn) {
  switch (turn % kShapes.size()) {
    case 0:
      return {1, 0};
    case 1:
      return {9, 3};
    case 2:
      return {3, 3};
    default:
      return {9, 3, 2, 3};
  }
}

/// "ratio=0.01" of "ratio=0.01,index=auto"; empty where the text has no such parameter.
std::string parameter_in(const std::string& text, std::string_view name) {
  for (const std::string_view one : split(text, ',')) {
    if (one.starts_with(name) && one.size() > name.size() && one[name.size()] == '=') return std::string{one};
  }
  return {};
}

}  // namespace

CodecLooks::Look CodecLooks::of(const std::string& codec) {
  const auto found = std::find(codecs_.begin(), codecs_.end(), codec);
  const auto place = static_cast<std::size_t>(found - codecs_.begin());
  if (found == codecs_.end()) codecs_.push_back(codec);
  const std::size_t turn = place / kColours;
  return {.colour = kPalette[place % kColours], .dash = dash_of(turn), .shape = kShapes[turn % kShapes.size()]};
}

std::string codec_label(const ResultRow& row, const std::vector<ResultRow>& rows) {
  const std::string all = row.codec.params_text();
  const auto& infos = row.codec.descriptor->params;
  std::vector<std::string> named;
  for (const ParamInfo& info : infos) {
    const std::string mine = parameter_in(all, info.name);
    const bool differs = std::any_of(rows.begin(), rows.end(), [&](const ResultRow& other) {
      return other.codec.name() == row.codec.name() && parameter_in(other.codec.params_text(), info.name) != mine;
    });
    if (!mine.empty() && (differs || !parameter_in(row.codec.given, info.name).empty())) named.push_back(mine);
  }
  if (named.empty()) {
    const auto searched =
        std::find_if(infos.begin(), infos.end(), [](const ParamInfo& info) { return !info.search.empty(); });
    if (searched != infos.end()) named.push_back(parameter_in(all, searched->name));
  }
  // Error feedback is no parameter of the registry's; the text has it where it is not the codec's default.
  if (const std::string feedback = parameter_in(all, "ef"); !feedback.empty()) named.push_back(feedback);
  return row.codec.name() + (named.empty() ? "" : ":") + joined(named, ",");
}

}  // namespace gradtool
