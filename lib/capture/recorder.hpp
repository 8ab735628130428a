#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "lib/io/gradient_file.hpp"

namespace gradtool {

/// One captured step in memory: what is written to the file, tensor by tensor in the order of the writer's tensors.
/// gradients and second_moments are worker-major [W, elements]; what the file does not store is empty.
struct RecordedStep {
  StepInfo info;
  std::vector<float> gradients, second_moments, weights;
};

/// Writes captured steps on a thread of its own, so that training goes on meanwhile. There are two steps in memory at
/// most: one being written and one being filled, so memory does not depend on the number of steps, and a disk that is
/// slower than the training makes next() wait. All calls of HDF5 between construction and finish() come from that one
/// thread.
class Recorder {
 public:
  /// Creates the file at once, so that a place that cannot be written to is known before training begins.
  /// `on_written` is called on the writing thread after a step has reached the file for good
  /// (GradientWriter::end_step).
  Recorder(const std::string& path, const WriterOptions& options, std::function<void(const StepInfo&)> on_written = {});
  /// Writes what was submitted, then closes the file without marking it complete, unless finish() did.
  ~Recorder();
  Recorder(const Recorder&) = delete;
  Recorder& operator=(const Recorder&) = delete;

  /// A free step to fill, sized for the file; waits while both are taken. Rethrows what the writing thread met.
  [[nodiscard]] RecordedStep& next();
  /// Hands over the step that next() returned.
  void submit();
  /// Waits until all steps are written and closes the file, with its `complete` mark if `complete`. Rethrows as next().
  void finish(bool complete);

  /// Raw bytes of data written, and the time that took. Valid after finish().
  [[nodiscard]] std::uint64_t bytes() const noexcept { return bytes_; }
  [[nodiscard]] double write_seconds() const noexcept { return seconds_; }

 private:
  void write_all();
  void write(const RecordedStep& step);
  void stop();

  GradientWriter writer_;
  std::vector<TensorInfo> tensors_;
  std::size_t workers_;
  std::function<void(const StepInfo&)> on_written_;
  RecordedStep slots_[2];

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::size_t> free_{0, 1}, full_;
  std::size_t filling_ = 0;
  bool no_more_ = false;
  std::exception_ptr failure_;
  std::uint64_t bytes_ = 0;
  double seconds_ = 0.0;
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace gradtool
