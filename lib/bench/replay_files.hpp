#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lib/bench/replay.hpp"
#include "lib/core/files.hpp"
#include "lib/io/gradient_file.hpp"
#include "lib/report/table.hpp"

namespace gradtool {

/// The messages that one rank put into every collective, for readers in other languages (scripts/decode_payloads.py):
/// the bytes one behind the other in `rank<r>.bin`, and in `rank<r>.csv` a row for each message that says where. Bytes
/// are as docs/payload-format.md describes them.
class PayloadLog {
 public:
  /// Makes the folder of --payloads. This and what follows throw Fault::backend when they cannot write; then neither of
  /// the two files is there, or what an earlier run left.
  PayloadLog(const ReplayPlan& plan, int rank);
  /// A row for one call. `bytes`: what the rank put into it, or, where `parts` says so, parts of that are.
  void put(std::size_t step, std::size_t unit, std::string_view call, Level level, HostView<const std::byte> bytes,
           const Parts& parts);
  /// Writes the table and gives the files their names.
  void close();

 private:
  const ReplayPlan& plan_;
  int rank_;
  std::string stem_;
  OutputFile out_;
  std::uint64_t offset_ = 0;
  Table table_;
};

/// Writes what a codec and its collective produced as a gradient file with one worker, so that anybody can check the
/// error columns with other tools. Units arrive step by step in any order within a step.
class Reconstruction {
 public:
  Reconstruction(const BenchOptions& options, const GradientSource& source, std::vector<std::size_t> tensors,
                 const CodecSpec& spec);
  void put(std::size_t step, const Unit& unit, std::span<const float> result);
  /// Marks the file as complete if every step was put, and says whether it was. A file without any step is removed.
  [[nodiscard]] bool close();

 private:
  const GradientSource& source_;
  std::vector<std::size_t> tensors_;      ///< positions in the source, in the order of the output
  std::optional<GradientWriter> writer_;  ///< until close()
  std::size_t put_ = 0;                   ///< tensors of the current step
};

}  // namespace gradtool
