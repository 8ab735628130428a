#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace gradtool {

/// A bar on stderr with an estimate of the time left, drawn at most ten times a second. Where stderr is no terminal, a
/// line every 20 seconds: what takes longer is not silent in a log.
class Progress {
 public:
  /// `total` steps of work; `label` stands in front of the bar.
  Progress(std::string label, std::uint64_t total);
  ~Progress();  ///< clears the line
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// `done` of `total`; `note` stands behind the bar ("loss 0.412"). `seconds_left`: where steps are not alike; else
  /// those to come take as long as those that were. The bar is of time.
  void update(std::uint64_t done, std::string_view note = {}, std::optional<double> seconds_left = {});

 private:
  std::string label_;
  std::uint64_t total_;
  bool terminal_;
  bool drawn_ = false;
  std::chrono::steady_clock::time_point start_, last_;
};

}  // namespace gradtool
