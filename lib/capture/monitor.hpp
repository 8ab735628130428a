#pragma once

#include <chrono>
#include <cstdint>
#include <fstream>
#include <memory>
#include <string>

#include "lib/io/gradient_file.hpp"
#include "lib/report/progress.hpp"

namespace gradtool {

/// Tells the user how the training goes, on stderr. On a terminal: a bar with loss and time left. Elsewhere: a line
/// every half minute. With `log_steps`: instead a line "captured step <iteration>" for every step, after it is safe in
/// the file.
class Monitor {
 public:
  Monitor(const std::string& label, std::int64_t iterations, bool log_steps);

  /// After each iteration. `done` iterations of training, the last of them with mean loss `loss`.
  void trained(std::int64_t done, double loss);
  /// From the writing thread.
  void captured(const StepInfo& step) const;

 private:
  std::int64_t iterations_;
  bool log_steps_;
  std::unique_ptr<Progress> bar_;
  std::chrono::steady_clock::time_point start_, last_line_;
};

/// The CSV of --train-log: iteration, epoch, learning_rate, loss (mean over workers), captured (0 or 1). Written as it
/// comes, so it does not grow in memory and survives a kill.
class TrainLog {
 public:
  /// An empty path: every call does nothing. Throws Fault::backend when the file cannot be made.
  explicit TrainLog(const std::string& path);
  void add(std::int64_t iteration, double epoch, double learning_rate, double loss, bool captured);

 private:
  std::string path_;
  std::ofstream file_;
};

}  // namespace gradtool
