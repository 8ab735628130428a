#include "lib/capture/readiness.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "lib/core/error.hpp"
#include "lib/core/median.hpp"

namespace gradtool {
namespace {

constexpr double kNotSeen = std::numeric_limits<double>::quiet_NaN();

}  // namespace

ReadinessLog::ReadinessLog(std::size_t workers, std::size_t tensors) : tensors_{tensors}, workers_(workers) {}

void ReadinessLog::add(std::size_t worker, const BackwardTimes& times, double compute_seconds) {
  if (times.seconds <= 0.0 || compute_seconds <= 0.0) return;
  expects(times.ready.size() == tensors_, "a backward pass has a time for each tensor");
  Iteration iteration{.ready = std::vector<float>(tensors_),
                      .backward_share = std::min(1.0, times.seconds / compute_seconds)};
  for (std::size_t t = 0; t < tensors_; ++t) {
    const double share = times.ready[t] / times.seconds;
    iteration.ready[t] = static_cast<float>(std::isnan(share) ? share : std::clamp(share, 0.0, 1.0));
  }
  Worker& mine = workers_.at(worker);
  if (mine.iterations.size() < kIterations) {
    mine.iterations.push_back(std::move(iteration));
    return;
  }
  mine.iterations[mine.oldest] = std::move(iteration);
  mine.oldest = (mine.oldest + 1) % kIterations;
}

Readiness ReadinessLog::medians(std::span<const std::size_t> chosen) const {
  Readiness readiness;
  std::vector<double> values;
  for (const Worker& worker : workers_) {
    for (const std::size_t tensor : chosen) {
      values.clear();
      for (const Iteration& iteration : worker.iterations) values.push_back(iteration.ready.at(tensor));
      readiness.ready.push_back(median_of_known(values).value_or(kNotSeen));
    }
    values.clear();
    for (const Iteration& iteration : worker.iterations) values.push_back(iteration.backward_share);
    readiness.backward_share.push_back(median_of_known(values).value_or(kNotSeen));
  }
  return readiness;
}

}  // namespace gradtool
