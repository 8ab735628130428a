#include "kernels/cuda/cache_flush.hpp"

#include "kernels/cuda/launch.hpp"
#include "kernels/cuda/warp.hpp"

namespace gradtool::cuda {
namespace {

constexpr std::uint8_t kFilling = 0x5A;

/// Reads every word. The store never happens, as no word has other bits than kFilling's, but the compiler cannot know.
__global__ void read_kernel(const uint4* words, std::size_t count, unsigned* never) {
  unsigned bits = 0;
  for (std::size_t i = thread_in_grid(); i < count; i += threads_in_grid()) {
    const uint4 word = words[i];
    bits |= word.x | word.y | word.z | word.w;
  }
  if (bits == 1) *never = bits;
}

}  // namespace

CacheFlush::CacheFlush(Queue<Space::cuda> queue)
    : written_{2 * device_info(current_device()).l2_bytes}, read_{written_.size()} {
  fill(queue, read_.bytes(), kFilling);
}

void CacheFlush::operator()(Queue<Space::cuda> queue) const {
  fill(queue, written_.bytes(), kFilling);
  const auto words = read_.as<uint4>();
  launch(queue, "read_kernel", read_kernel, blocks_for(words.size(), 4 * kThreads), words.data(), words.size(),
         written_.as<unsigned>().data());
}

}  // namespace gradtool::cuda
