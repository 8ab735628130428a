#include "lib/page/chart.hpp"

#include "lib/core/error.hpp"
#include "lib/page/assets.hpp"
#include "lib/report/json.hpp"

namespace gradtool {
namespace {

using Json = nlohmann::ordered_json;

bool is_name_character(char c) {
  return (c >= 'a' && c <= 'z') || c == '_';
}

const Json& value_of(const Blanks& blanks, const std::string& name) {
  const auto found = blanks.find(name);
  if (found == blanks.end()) throw Error{Fault::internal, "a specification has a blank that nobody fills in: " + name};
  return found->second;
}

/// `text` with its blanks filled in; a blank that is the whole of it may become any value.
Json filled_text(const std::string& text, const Blanks& blanks) {
  std::string out;
  for (std::size_t i = 0; i < text.size();) {
    if (text[i] != '@') {
      out += text[i++];
      continue;
    }
    std::size_t end = i + 1;
    while (end < text.size() && is_name_character(text[end])) ++end;
    const Json& value = value_of(blanks, text.substr(i + 1, end - i - 1));
    if (i == 0 && end == text.size()) return value;
    out += value.is_string() ? value.get<std::string>() : json_text(value);
    i = end;
  }
  return out;
}

void fill(Json& json, const Blanks& blanks) {
  if (json.is_string()) {
    json = filled_text(json.get<std::string>(), blanks);
  } else if (json.is_structured()) {
    for (auto& element : json) fill(element, blanks);
  }
}

Json specification(const std::string& name) {
  return parse_json(asset(name + ".vl.json"));
}

}  // namespace

Chart make_chart(const std::string& name, const std::string& suffix, Origin origin, Table table, const Blanks& blanks) {
  Json spec = specification(name);
  spec["usermeta"].erase("needs");
  fill(spec, blanks);
  const Json about = spec["usermeta"];
  spec.erase("usermeta");
  Json whole{{"$schema", "https://vega.github.io/schema/vega-lite/v6.json"},
             {"description", about["title"].get<std::string>() + ". " + about["lead"].get<std::string>()},
             {"width", "container"},
             {"autosize", {{"type", "fit-x"}, {"contains", "padding"}}}};
  whole.update(spec);
  return {.id = name + suffix,
          .title = about["title"],
          .lead = about["lead"],
          .min_width = about.value("min_width", 0),
          .origin = std::move(origin),
          .spec = std::move(whole),
          .table = std::move(table)};
}

MissingChart missing_chart(const std::string& name, const std::string& why, const Blanks& blanks) {
  Json about = specification(name)["usermeta"];
  about.erase("lead");
  about.erase("min_width");
  Blanks all = blanks;
  all.emplace("what", "a step");
  fill(about, all);
  return {.title = about["title"], .needs = about["needs"], .why = why};
}

Json whole_spec(const Chart& chart) {
  Json spec = chart.spec;
  spec["width"] = 640;  // the page fits charts to its window; a picture has no window
  auto& rows = spec["datasets"]["table"] = to_json(chart.table);
  for (auto& row : rows) {
    for (auto& value : row) {
      if (value == "inf" || value == "-inf" || value == "nan") value = nullptr;  // no axis has a place for them
    }
  }
  return spec;
}

}  // namespace gradtool
