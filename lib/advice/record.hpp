#pragma once

#include <nlohmann/json_fwd.hpp>
#include <span>

#include "lib/advice/acceptance.hpp"
#include "lib/bench/bench.hpp"

namespace gradtool {

/// The advice as a record has it, an entry for each network and number of ranks: `of` iterations, and where these were
/// modelled once more of gradients alone, as beside a faster computation.
[[nodiscard]] nlohmann::ordered_json advice_record(std::span<const ResultRow> rows, const Acceptance& acceptance);

/// The full record: options, machine, file and hash, every row and every sample.
[[nodiscard]] nlohmann::ordered_json record(const BenchOptions& options, const BenchReport& report);

}  // namespace gradtool
