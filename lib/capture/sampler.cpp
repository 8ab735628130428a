#include "lib/capture/sampler.hpp"

#include <limits>
#include <numeric>
#include <random>
#include <utility>

#include "lib/core/throw_error.hpp"

namespace gradtool {
namespace {

/// An unbiased draw from [0, bound). std::uniform_int_distribution and std::shuffle are not used because their results
/// differ between standard libraries.
std::uint64_t draw_below(std::mt19937_64& generator, std::uint64_t bound) {
  const std::uint64_t reject_below = (0 - bound) % bound;  // 2^64 mod bound
  std::uint64_t value = generator();
  while (value < reject_below) value = generator();
  return value % bound;
}

}  // namespace

Sampler::Sampler(std::size_t samples, std::size_t workers, std::size_t batch_size, std::uint64_t seed)
    : workers_{workers}, batch_size_{batch_size}, seed_{seed} {
  expect_valid(workers >= 1 && batch_size >= 1, "a sampler needs at least one worker and one sample a batch");
  expect_valid(samples <= std::numeric_limits<std::uint32_t>::max(), "a sampler takes at most 2^32 - 1 samples");
  if (samples / workers < batch_size) {
    throw_error(Fault::usage, "{} workers with batches of {} need at least {} training samples; the data set has {}",
                workers, batch_size, workers * batch_size, samples);
  }
  iterations_per_epoch_ = static_cast<std::int64_t>(samples / workers / batch_size);
  order_.resize(samples);
  drawn_.resize(workers * batch_size);
}

void Sampler::permute(std::int64_t epoch) {
  if (epoch == epoch_) return;
  epoch_ = epoch;
  const auto number = static_cast<std::uint64_t>(epoch);
  std::seed_seq words{static_cast<std::uint32_t>(seed_), static_cast<std::uint32_t>(seed_ >> 32),
                      static_cast<std::uint32_t>(number), static_cast<std::uint32_t>(number >> 32)};
  std::mt19937_64 generator{words};
  std::iota(order_.begin(), order_.end(), std::uint32_t{0});
  for (std::size_t i = order_.size(); i > 1; --i) std::swap(order_[i - 1], order_[draw_below(generator, i)]);
}

std::span<const std::uint32_t> Sampler::batches(std::int64_t iteration) {
  permute(iteration / iterations_per_epoch_);
  const std::size_t first = static_cast<std::size_t>(iteration % iterations_per_epoch_) * batch_size_;
  for (std::size_t worker = 0; worker < workers_; ++worker) {
    for (std::size_t i = 0; i < batch_size_; ++i) {
      drawn_[worker * batch_size_ + i] = order_[(first + i) * workers_ + worker];
    }
  }
  return drawn_;
}

std::vector<std::uint32_t> Sampler::shard(std::int64_t epoch, std::size_t worker) {
  permute(epoch);
  std::vector<std::uint32_t> mine;
  for (std::size_t i = worker; i < order_.size(); i += workers_) mine.push_back(order_[i]);
  return mine;
}

}  // namespace gradtool
