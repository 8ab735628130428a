#include "lib/io/schema.hpp"

#include <algorithm>

namespace gradtool {
namespace {

constexpr std::uint64_t kManyWorkersBytes = 64 << 10;  ///< the largest chunk that holds several workers
constexpr std::uint64_t kManyStepsBytes = 4 << 10;     ///< the largest chunk that holds several steps
constexpr std::uint64_t kMaxStepsPerChunk = 32;

std::uint64_t divide_up(std::uint64_t a, std::uint64_t b) {
  return a / b + (a % b != 0 ? 1 : 0);
}

/// The length of the parts when `whole` is cut into as few parts of at most `most` as possible, all of about the same
/// length.
std::uint64_t even_part(std::uint64_t whole, std::uint64_t most) {
  return divide_up(whole, divide_up(whole, most));
}

}  // namespace

std::vector<std::uint64_t> chunk_shape(std::uint64_t workers, std::uint64_t elements, std::uint64_t value_bytes) {
  const std::uint64_t part = even_part(elements, schema::kMaxChunkBytes / value_bytes);
  const std::uint64_t row = part * value_bytes;
  if (row * 2 > kManyWorkersBytes) return {1, 1, part};
  const std::uint64_t together = even_part(workers, kManyWorkersBytes / row);
  const std::uint64_t steps =
      together < workers ? 1 : std::clamp<std::uint64_t>(kManyStepsBytes / (row * workers), 1, kMaxStepsPerChunk);
  return {steps, together, part};
}

}  // namespace gradtool
