#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "lib/io/gradient_file.hpp"

namespace gradtool {

/// One worker's last backward pass of an iteration.
struct BackwardTimes {
  double seconds = 0.0;       ///< that the pass took; 0: not known
  std::vector<double> ready;  ///< seconds from its beginning until the gradient of each tensor was complete; or NaN
};

/// Collects backward passes and says what is usual. The last kIterations of each worker count, so that memory does not
/// grow with the training.
class ReadinessLog {
 public:
  static constexpr std::size_t kIterations = 101;

  ReadinessLog(std::size_t workers, std::size_t tensors);
  /// Adds an iteration of a worker that computed for `compute_seconds`, of which the pass is a part. One whose pass is
  /// not known is left out. `times.ready` has an entry for each tensor.
  void add(std::size_t worker, const BackwardTimes& times, double compute_seconds);
  /// Medians over the iterations, of the tensors at the positions `chosen`; NaN where there was none.
  [[nodiscard]] Readiness medians(std::span<const std::size_t> chosen) const;

 private:
  struct Iteration {
    std::vector<float> ready;
    double backward_share = 0.0;
  };
  struct Worker {
    std::vector<Iteration> iterations;
    std::size_t oldest = 0;
  };
  std::size_t tensors_;
  std::vector<Worker> workers_;
};

}  // namespace gradtool
