#include "lib/methods/lhc/peeling.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>

#include "kernels/draws.hpp"
#include "lib/core/error.hpp"
#include "lib/core/task_pool.hpp"

namespace gradtool {
namespace {

constexpr std::size_t padded(std::size_t count) {
  return Arena<Space::host>::padded_size(4 * count);
}

/// Lanes that a thread reads together: those of a word of marks, or all lanes where there are fewer.
constexpr std::size_t kGroupLanes = 32;

}  // namespace

PeelingTable::PeelingTable(Queue<Space::host> queue, std::size_t n, std::size_t lanes, std::size_t most_rows,
                           std::uint64_t seed)
    : n_{n},
      lanes_{lanes},
      blocks_{(n + lanes - 1) / lanes},
      state_{padded(4 * blocks_) + 3 * padded(most_rows * lanes)},
      draws_{state_.take<std::uint32_t>(4 * blocks_)},
      unknown_{state_.take<std::uint32_t>(most_rows * lanes)},
      unknown_block_{state_.take<std::uint32_t>(most_rows * lanes)},
      singles_{state_.take<std::uint32_t>(most_rows * lanes)} {
  const auto key = format::shared_by_ranks({.seed = seed});
  parallel_for(queue, blocks_, 1, 1 << 10, [&](std::size_t first, std::size_t last) {
    for (std::size_t b = first; b < last; ++b) {
      const format::Draws draws = format::draw4(key, b);
      std::copy_n(draws.bits, 4, draws_.data() + 4 * b);
    }
  });
}

void PeelingTable::write(HostView<const std::uint32_t> positions, HostView<const float> values,
                         HostView<float> table) const {
  std::fill_n(table.data(), cells(), 0.0F);
  for (std::size_t k = 0; k < positions.size(); ++k) {
    for (std::size_t j = 0; j < kHashes; ++j) {
      const Cell c = cell(j, positions[k] / lanes_, positions[k] % lanes_);
      table[c.index] += c.sign * values[k];
    }
  }
}

/// Calls visit(block, lane) for the marked elements of a group of lanes, block by block.
template <class Visit>
void PeelingTable::each_marked(HostView<const std::uint32_t> marks, std::size_t group, const Visit& visit) const {
  if (lanes_ < kGroupLanes) {
    for (std::size_t w = 0; w < marks.size(); ++w) {
      for (std::uint32_t rest = marks[w]; rest != 0; rest &= rest - 1) {
        const std::size_t i = 32 * w + static_cast<std::size_t>(std::countr_zero(rest));
        visit(i / lanes_, i % lanes_);
      }
    }
    return;
  }
  const std::size_t words_of_block = lanes_ / kGroupLanes;
  for (std::size_t b = 0; b < blocks_; ++b) {
    const std::size_t w = b * words_of_block + group;
    if (w >= marks.size()) return;
    for (std::uint32_t rest = marks[w]; rest != 0; rest &= rest - 1)
      visit(b, kGroupLanes * group + static_cast<std::size_t>(std::countr_zero(rest)));
  }
}

/// Reads the lanes of one group. Lanes share no cells, so the order in which the elements of a lane peel, and with it
/// rounding, does not depend on how lanes are grouped or on threads.
std::size_t PeelingTable::read_group(std::size_t group, HostView<std::uint32_t> marks, HostView<float> table,
                                     float factor, HostView<float> out) {
  const std::size_t lanes = std::min(lanes_, kGroupLanes);
  const std::size_t rows = kHashes * rows_;
  const std::size_t first_lane = lanes * group;
  for (std::size_t row = 0; row < rows; ++row) {
    std::fill_n(unknown_.data() + row * lanes_ + first_lane, lanes, 0U);
    std::fill_n(unknown_block_.data() + row * lanes_ + first_lane, lanes, 0U);
  }
  each_marked(marks, group, [&](std::size_t block, std::size_t lane) {
    for (std::size_t j = 0; j < kHashes; ++j) {
      const std::size_t c = cell(j, block, lane).index;
      ++unknown_[c];
      unknown_block_[c] ^= static_cast<std::uint32_t>(block);
    }
  });
  std::uint32_t* singles = singles_.data() + rows * first_lane;
  std::size_t end = 0;
  for (std::size_t row = 0; row < rows; ++row) {
    for (std::size_t lane = first_lane; lane < first_lane + lanes; ++lane) {
      if (unknown_[row * lanes_ + lane] == 1) singles[end++] = static_cast<std::uint32_t>(row * lanes_ + lane);
    }
  }
  // A cell is queued when its count of unknowns becomes 1, so at most once. The order is first come, first served: the
  // fewer others an element is computed from, the less of their rounding it carries.
  for (std::size_t next = 0; next < end; ++next) {
    const std::size_t single = singles[next];
    if (unknown_[single] != 1) continue;  // its element has peeled from another cell
    const std::size_t block = unknown_block_[single];
    const std::size_t lane = single % lanes_;
    const std::size_t hash = single / (rows_ * lanes_);
    const float value = cell(hash, block, lane).sign * table[single];
    const std::size_t i = block * lanes_ + lane;
    out[i] = factor * value;
    marks[i / 32] &= ~(1U << i % 32);
    for (std::size_t j = 0; j < kHashes; ++j) {
      const Cell c = cell(j, block, lane);
      table[c.index] -= c.sign * value;
      unknown_block_[c.index] ^= static_cast<std::uint32_t>(block);
      if (--unknown_[c.index] == 1) singles[end++] = static_cast<std::uint32_t>(c.index);
    }
  }
  std::size_t estimated = 0;
  each_marked(marks, group, [&](std::size_t block, std::size_t lane) {
    std::array<float, kHashes> estimate{};
    for (std::size_t j = 0; j < kHashes; ++j) {
      const Cell c = cell(j, block, lane);
      estimate[j] = c.sign * table[c.index];
    }
    out[block * lanes_ + lane] = factor * format::median_of_three(estimate[0], estimate[1], estimate[2]);
    ++estimated;
  });
  return estimated;
}

std::size_t PeelingTable::read(Queue<Space::host> queue, HostView<std::uint32_t> marks, HostView<float> table,
                               float factor, HostView<float> out) {
  if (n_ % 32 != 0 && marks[marks.size() - 1] >> n_ % 32 != 0)
    throw Error{Fault::data, "lhc: the bitmap of the ranks marks elements past the end"};
  const std::size_t groups = std::max<std::size_t>(lanes_ / kGroupLanes, 1);
  std::atomic<std::size_t> estimated{0};
  parallel_for(queue, groups, 1, 1, [&](std::size_t first, std::size_t last) {
    for (std::size_t group = first; group < last; ++group)
      estimated.fetch_add(read_group(group, marks, table, factor, out), std::memory_order_relaxed);
  });
  return estimated.load();
}

}  // namespace gradtool
