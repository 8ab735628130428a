#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace gradtool {

/// Draws the workers' mini-batches. In every epoch all samples are permuted, which depends on `seed` and the epoch
/// alone. The shard of worker w consists of the positions w, w + W, w + 2W, ... of the permutation, so each sample lies
/// in exactly one shard. A worker takes its shard in order, batch after batch; samples at the end that do not fill a
/// batch on every worker are left out of that epoch.
class Sampler {
 public:
  /// Throws Fault::usage when the samples are too few for one batch on every worker.
  Sampler(std::size_t samples, std::size_t workers, std::size_t batch_size, std::uint64_t seed);

  /// Sample indices of iteration `iteration`, worker-major [workers, batch_size]. Valid until the next call.
  /// O(batch), plus O(samples) when the epoch differs from that of the previous call.
  [[nodiscard]] std::span<const std::uint32_t> batches(std::int64_t iteration);

  /// All samples of the shard of `worker` in `epoch`.
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
