#include "lib/comm/ring.hpp"

namespace gradtool {

void check_parts(std::size_t mine, std::span<const std::uint64_t> sizes, std::span<const std::uint64_t> offsets,
                 std::size_t all, int rank, int size) {
  const auto ranks = static_cast<std::size_t>(size);
  expects(sizes.size() == ranks && offsets.size() == ranks, "all_gather_v: one size and one offset for every rank");
  expects(sizes[static_cast<std::size_t>(rank)] == mine, "all_gather_v: this rank's size is not that of its view");
  for (std::size_t r = 0; r < ranks; ++r) {
    expects(offsets[r] <= all && sizes[r] <= all - offsets[r], "all_gather_v: a part lies outside of `all`");
  }
}

template class RingCommunicator<Space::host>;
template class RingCommunicator<Space::cuda>;

}  // namespace gradtool
