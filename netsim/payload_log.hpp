#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lib/model/cost_model.hpp"
#include "netsim/exchanges.hpp"

namespace gradtool::netsim {

/// One collective of one unit, with the bytes that each rank put in.
struct LoggedCall {
  std::string name;
  std::vector<std::uint64_t> bytes;
};
struct LoggedUnit {
  std::vector<LoggedCall> calls;
};
struct LoggedStep {
  std::vector<LoggedUnit> units;
};

/// The record of `gradtool bench --payloads FOLDER`, without the payloads' bytes.
struct PayloadLog {
  std::string codec, params;
  int ranks = 0;
  std::vector<LoggedStep> steps;
};

/// Reads rank0.csv, rank1.csv, ... of the folder. Throws Fault::usage when there is none and Fault::data when one is no
/// such table or the ranks did not make the same calls.
[[nodiscard]] PayloadLog read_payload_log(const std::string& folder);

/// Appends the exchanges of a call, as lib/comm/ring.cpp makes them, with every size times `scale`. The parts of an
/// all_to_all_v are taken to be alike, because only their sum is logged.
void append_call(Schedule& schedule, const LoggedCall& call, double scale, int unit);

/// Seconds that the alpha-beta model of lib/bench gives a step's collectives among the log's ranks.
[[nodiscard]] double modelled_seconds(const LoggedStep& step, double scale, const Network& network, int ranks);

}  // namespace gradtool::netsim
