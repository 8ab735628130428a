#include "lib/io/chunking.hpp"

#include <algorithm>

#include "lib/io/schema.hpp"

namespace gradtool {
namespace {

constexpr std::uint64_t kGatherWorkers = 64 << 10;
constexpr std::uint64_t kGatherSteps = 4 << 10;
constexpr std::uint64_t kMaxSteps = 32;

std::uint64_t divide_up(std::uint64_t a, std::uint64_t b) {
  return a / b + (a % b != 0 ? 1 : 0);
}

/// The length of equal parts of `whole` of at most `most`, so that the last part is hardly shorter than the others.
std::uint64_t even_part(std::uint64_t whole, std::uint64_t most) {
  return divide_up(whole, divide_up(whole, most));
}

}  // namespace

std::vector<std::uint64_t> chunk_shape(std::uint64_t workers, std::uint64_t elements, std::uint64_t value_bytes) {
  const std::uint64_t part = even_part(elements, schema::kMaxChunkBytes / value_bytes);
  const std::uint64_t row = part * value_bytes;
  if (row * 2 > kGatherWorkers) return {1, 1, part};
  const std::uint64_t together = even_part(workers, kGatherWorkers / row);
  const std::uint64_t steps =
      together < workers ? 1 : std::clamp<std::uint64_t>(kGatherSteps / (row * workers), 1, kMaxSteps);
  return {steps, together, part};
}

}  // namespace gradtool
