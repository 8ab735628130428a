#pragma once

#include <nlohmann/json_fwd.hpp>

#include "lib/report/table.hpp"

namespace gradtool {

/// One cell: null for "not measured"; infinities and NaN become the strings "inf", "-inf", "nan", which JSON cannot
/// say.
[[nodiscard]] nlohmann::ordered_json to_json(const Cell& cell);

/// An array with one object per row, keys in column order.
[[nodiscard]] nlohmann::ordered_json to_json(const Table& table);

/// Version, commit, compiler, machine (CPU, cores, memory), date and an allow-list of the environment. Never all of it.
[[nodiscard]] nlohmann::ordered_json provenance();

}  // namespace gradtool
