// A codec's parameters by name, in the record and as columns of the CSV.
#include <map>

#include "lib/bench/result.hpp"

#include "lib/core/parse.hpp"

namespace gradtool {
namespace {

/// A word of a codec's text as a cell: a number where it is one and the parameter is no choice among words.
Cell cell_of(const ParamInfo& info, const Params& params) {
  const std::string& word = params.word(info.name);
  const auto number = number_of<double>(word);
  if (info.kind == ParamInfo::Kind::choice || !number) return word;
  if (info.kind == ParamInfo::Kind::integer) return static_cast<std::int64_t>(params.integer(info.name));
  return *number;
}

}  // namespace

std::vector<std::pair<std::string, Cell>> parameters_of(const CodecSpec& codec) {
  std::vector<std::pair<std::string, Cell>> by_name;
  for (const ParamInfo& info : codec.descriptor->params)
    by_name.emplace_back(std::string{info.name}, cell_of(info, codec.params));
  if (codec.feedback() != Feedback::off || codec.descriptor->error_feedback)
    by_name.emplace_back("ef", std::string{codec.feedback_name()});
  if (codec.feedback().averages()) by_name.emplace_back("eta", codec.eta);
  if (codec.way != Scheme::automatic) by_name.emplace_back("reduce", std::string{name_of(codec.way)});
  if (codec.own_exact) by_name.emplace_back("own", std::string{"exact"});
  if (codec.segment > 1) by_name.emplace_back("segment", static_cast<std::int64_t>(codec.segment));
  if (codec.gate > 0) by_name.emplace_back("gate", static_cast<std::int64_t>(codec.gate));
  return by_name;
}

Table csv_table(std::span<const ResultRow> rows) {
  Table table = to_table(rows);
  std::vector<Column> heads = table.columns();
  std::map<std::string, std::size_t> places;
  for (const auto& row : rows) {
    for (const auto& [name, value] : parameters_of(row.codec)) {
      if (places.try_emplace(name, heads.size()).second)
        heads.push_back({"params." + name,
                         "the codec's parameter; empty where the codec has none of this name, or it was not given"});
    }
  }
  Table wider{table.name(), heads};
  for (std::size_t i = 0; i < rows.size(); ++i) {
    std::vector<Cell> cells = table.rows()[i];
    cells.resize(heads.size());
    for (const auto& [name, value] : parameters_of(rows[i].codec)) cells[places.at(name)] = value;
    wider.add(std::move(cells));
  }
  return wider;
}

}  // namespace gradtool
