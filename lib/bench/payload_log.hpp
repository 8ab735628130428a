#pragma once

#include <fstream>
#include <string>
#include <string_view>

#include "lib/bench/replay.hpp"
#include "lib/report/table.hpp"

namespace gradtool {

/// What one rank put into every collective, for readers in other languages (scripts/decode_payloads.py): the bytes one
/// behind the other in `rank<r>.bin`, and in `rank<r>.csv` a row for each message that says where. Bytes are as
/// docs/payload-format.md describes them.
class PayloadLog {
 public:
  /// Makes plan.payloads. Throws Fault::backend when it cannot.
  PayloadLog(const ReplayPlan& plan, int rank);
  void put(std::size_t step, std::size_t unit, std::string_view call, HostView<const std::byte> bytes);
  /// Writes the table. Throws Fault::backend when anything could not be written.
  void close();

 private:
  const ReplayPlan& plan_;
  int rank_;
  std::string stem_;
  std::ofstream out_;
  std::uint64_t offset_ = 0;
  Table table_;
};

}  // namespace gradtool
