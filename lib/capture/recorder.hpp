#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "lib/io/gradient_file.hpp"

namespace gradtool {

/// The values of one captured step in memory, tensor by tensor in the order of the writer's tensors. `gradients` and
/// `second_moments` are worker-major [W, elements]; vectors that the file does not store are empty.
struct RecordedStep {
  StepInfo info;
  std::vector<float> gradients, second_moments, weights;
};

/// Writes captured steps on a thread of its own while training continues. At most two steps are in memory: one that is
/// being written and one that is being filled. When the disk is slower than the training, next() waits. All calls of
/// HDF5 between construction and finish() come from that one thread.
class Recorder {
 public:
  /// Creates the file at once, so that a path that cannot be written fails before training begins. `on_written` is
  /// called on the writing thread after a step is in the file (after GradientWriter::end_step).
  Recorder(const std::string& path, const WriterOptions& options, std::function<void(const StepInfo&)> on_written = {});
  /// Writes the submitted steps and closes the file, without marking it complete unless finish() did.
  ~Recorder();
  Recorder(const Recorder&) = delete;
  Recorder& operator=(const Recorder&) = delete;

  /// Returns a free step to fill, whose vectors have the right sizes; waits while both are in use. Rethrows an
  /// exception of the writing thread.
  [[nodiscard]] RecordedStep& next();
  /// Hands over the step that next() returned.
  void submit();
  /// Waits until all steps are written and closes the file, marked as complete when `complete`. `readiness`, for a file
  /// that was declared with it, is put before. Rethrows as next() does.
  void finish(bool complete, const std::optional<Readiness>& readiness = {});

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
  std::thread thread_;  ///< the last member, because the thread uses all members above
};

}  // namespace gradtool
