#include "kernels/cuda/select.hpp"

#include <cmath>

#include "kernels/cuda/scratch_pieces.hpp"
#include "kernels/cuda/select_steps.hpp"
#include "kernels/cuda/tile_scan.hpp"

namespace gradtool::cuda {

Select::Room::Room(View<std::byte, Space::cuda> scratch, std::size_t n) {
  tiles.size = (n + SelectTiles::kTile - 1) / SelectTiles::kTile;
  ScratchPieces pieces{scratch};
  pieces.take(state, 1);
  pieces.take(tiles.patterns, SelectTiles::kTile * tiles.size);
  pieces.take(tiles.places, SelectTiles::kTile * tiles.size);
  pieces.take(tiles.counts, tiles.size);
  pieces.take(before, tiles.size + 1);
  scan = pieces.take(scan_bytes<std::uint64_t>(tiles.size + 1));
  bytes = pieces.bytes();
}

std::size_t Select::scratch_bytes(std::size_t n) {
  expects(n < std::size_t{1} << 32, "a selection of 2^32 numbers or more: positions have 32 bits");
  return n == 0 ? 0 : Room{{}, n}.bytes;
}

Select::Select(Queue<Space::cuda> queue, const SelectSource& from, View<std::byte, Space::cuda> scratch,
               std::size_t many)
    : queue_{queue}, from_{from}, many_{many}, at_{scratch, from.size} {
  expects(from.size > 0 && at_.bytes <= scratch.size(), "select: scratch is smaller than planned");
  expects(!from.pairs || reinterpret_cast<std::uintptr_t>(from.x) % 16 == 0, "select: pairs are not 16-byte aligned");
}

void Select::largest(std::size_t k) const {
  const std::size_t n = from_.size;
  expects(k >= 1 && k <= n, "select: more numbers wanted than there are");
  clear();
  if (n >= many_) {
    find_by_sample(k);
  } else {
    select_top_digit(queue_, from_, k, false, at_.state);
    refine();
  }
  count_chosen();
}

/// The share of the sample that the k largest have, and some standard deviations more.
void Select::find_by_sample(std::size_t k) const {
  const double share = static_cast<double>(k) * kSelectSampled / SelectTiles::kTile;
  const auto wanted = static_cast<std::uint32_t>(1.125 * share + 4.0 * std::sqrt(share) + 8.0);
  select_sample(queue_, from_, wanted, at_.state);
  select_gather_sampled(queue_, from_, at_.tiles, k, at_.state);
  select_top_digit(queue_, from_, k, true, at_.state);
  select_gather_again(queue_, from_, at_.tiles, at_.state);
  select_next_digit(queue_, at_.tiles, at_.state);
  select_last_digit(queue_, at_.tiles, at_.state);
}

void Select::at_least(std::uint32_t low) const {
  select_gather_chosen(queue_, from_, at_.tiles, low, nullptr, at_.before, at_.state);
}
void Select::at_least(const std::uint32_t* low) const {
  select_gather_chosen(queue_, from_, at_.tiles, 0, low, at_.before, at_.state);
}
void Select::narrow(const std::uint32_t* low) const {
  select_count(queue_, at_.tiles, low, at_.before, at_.state);
}

SelectChosen Select::chosen() const {
  scan_tiles(queue_, at_.before, at_.tiles.size + 1, at_.scan);
  return {at_.tiles, at_.before, at_.state};
}
void Select::write(std::uint32_t* positions, float* values) const {
  select_write(queue_, chosen(), positions, values, at_.state);
}

void Select::clear() const {
  fill(queue_, {reinterpret_cast<std::byte*>(at_.state), sizeof(SelectState)}, 0);
}
void Select::refine() const {
  select_gather_refining(queue_, from_, at_.tiles, at_.state);
  select_last_digit(queue_, at_.tiles, at_.state);
}
void Select::count_chosen() const {
  select_count(queue_, at_.tiles, nullptr, at_.before, at_.state);
}

}  // namespace gradtool::cuda
