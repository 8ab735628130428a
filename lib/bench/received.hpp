#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "lib/bench/replay.hpp"
#include "lib/bench/rows.hpp"
#include "lib/io/gradient_file.hpp"

namespace gradtool {

/// The means that another program's method brought to every rank: a gradient file with one worker, whose values are
/// compared with the exact mean of a capture by the sums that codecs are measured by.
class ReceivedMeans {
 public:
  /// `capture`: all of it, whatever part is replayed. Throws as GradientReader does, and Fault::data where the file has
  /// several workers, or tensors, shapes or steps that the capture does not have.
  ReceivedMeans(const std::string& path, const GradientSource& capture);

  [[nodiscard]] const std::string& path() const { return reader_.path(); }
  /// Throws Fault::data where the file lacks a tensor or a step of what is replayed.
  void expect_all_of(const BenchCut& cut) const;
  /// Errors over the cut, as a replay on `ranks` ranks has them, to the last digit; nothing is timed or counted. Units
  /// go through memory in ranges of `range_elements` (ReplayPlan). `tensor_steps` and `rule`: as BenchOptions has them.
  /// Throws Fault::check when the user interrupts it.
  [[nodiscard]] ReplayResult compare(const BenchCut& cut, int ranks, std::size_t range_elements, bool tensor_steps,
                                     const std::optional<UpdateRule>& rule) const;

 private:
  /// Positions in the file of each tensor, and of each step, of the cut.
  [[nodiscard]] std::vector<std::size_t> tensors_of(const BenchCut& cut) const;
  [[nodiscard]] std::vector<std::size_t> steps_of(const BenchCut& cut) const;

  GradientReader reader_;
};

}  // namespace gradtool
