// The names of rows, and which rows are of one codec.
#include <fmt/format.h>

#include <algorithm>

#include "lib/bench/result.hpp"

namespace gradtool {

std::string spec_of(const ResultRow& row) {
  return row.codec.name() + (row.codec.given.empty() ? "" : ":" + row.codec.given);
}

bool takes_own_scheme(const ResultRow& row) {
  const bool plain =
      row.codec.descriptor->aggregation == Aggregation::sum || row.codec.descriptor->aggregation == Aggregation::gather;
  return !plain || row.op != Collective::all_reduce || row.scheme == Scheme::automatic ||
         row.scheme == resolve(Scheme::automatic, row.codec);
}

std::string way_words(const ResultRow& row) {
  return (takes_own_scheme(row) ? "" : fmt::format(" by {}", name_of(row.scheme))) +
         (row.inner ? " in two levels" : "");
}

std::string short_name(const ResultRow& row) {
  return spec_of(row) + way_words(row);
}

std::optional<double> ratio_of_codec(const ResultRow& row, std::span<const ResultRow> rows) {
  const auto in_one_level = std::find_if(rows.begin(), rows.end(), [&](const ResultRow& other) {
    return row.inner && !other.inner && other.bytes && !other.modelled() && same_method(other, row);
  });
  return in_one_level == rows.end() ? row.payload_ratio() : in_one_level->payload_ratio();
}

bool same_way(const ResultRow& a, const ResultRow& b) {
  return a.scheme == b.scheme && a.inner.has_value() == b.inner.has_value();
}

bool same_method(const ResultRow& a, const ResultRow& b) {
  return a.codec.name() == b.codec.name() && a.codec.params_text() == b.codec.params_text() &&
         a.granularity == b.granularity;
}

}  // namespace gradtool
