#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace gradtool {

/// Draws the workers' mini-batches. Every epoch permutes all samples anew (from `seed` and the epoch alone) and deals
/// them out: worker w owns positions w, w + W, w + 2W, ... of the permutation, so each sample lies in exactly one
/// shard. A worker takes its shard in order, batch after batch; a rest that fills no batch on every worker is left out
/// of that epoch.
class Sampler {
 public:
  /// Throws Fault::usage when an epoch has not even one batch for every worker.
  Sampler(std::size_t samples, std::size_t workers, std::size_t batch_size, std::uint64_t seed);

  /// Sample indices of iteration `iteration`, worker-major [workers, batch_size]. Valid until the next call.
  /// O(batch), plus O(samples) when the epoch is another than that of the call before.
  [[nodiscard]] std::span<const std::uint32_t> batches(std::int64_t iteration);

  /// The shard of `worker` in `epoch`, whole.
  [[nodiscard]] std::vector<std::uint32_t> shard(std::int64_t epoch, std::size_t worker);

  [[nodiscard]] std::int64_t iterations_per_epoch() const noexcept { return iterations_per_epoch_; }

 private:
  void permute(std::int64_t epoch);

  std::size_t workers_, batch_size_;
  std::uint64_t seed_;
  std::int64_t iterations_per_epoch_;
  std::int64_t epoch_ = -1;
  std::vector<std::uint32_t> order_, drawn_;
};

}  // namespace gradtool
