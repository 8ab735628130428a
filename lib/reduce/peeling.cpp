#include "lib/reduce/peeling.hpp"

#include <algorithm>
#include <atomic>
#include <bit>

#include "kernels/law/philox.hpp"
#include "lib/core/task_pool.hpp"

namespace gradtool {
namespace {

constexpr std::size_t padded(std::size_t count) {
  return Arena<Space::host>::padded_size(4 * count);
}

/// Lanes that are read together: those of a word of marks, or all of them where there are fewer.
constexpr std::size_t kGroupLanes = 32;

}  // namespace

PeelingTable::PeelingTable(Queue<Space::host> queue, std::size_t n, std::size_t lanes, std::size_t most_rows,
                           std::uint64_t seed)
    : n_{n},
      lanes_{lanes},
      blocks_{(n + lanes - 1) / lanes},
      state_{padded(4 * blocks_) + 3 * padded(most_rows * lanes)},
      hashes_{state_.take<std::uint32_t>(4 * blocks_)},
      count_{state_.take<std::uint32_t>(most_rows * lanes)},
      block_{state_.take<std::uint32_t>(most_rows * lanes)},
      queue_{state_.take<std::uint32_t>(most_rows * lanes)} {
  const auto key = law::shared_by_ranks({.seed = seed});
  parallel_for(queue, blocks_, 1, 1 << 10, [&](std::size_t first, std::size_t last) {
    for (std::size_t b = first; b < last; ++b) {
      const law::Draws draws = law::draw4(key, b);
      std::copy_n(draws.bits, 4, hashes_.data() + 4 * b);
    }
  });
}

void PeelingTable::write(HostView<const std::uint32_t> positions, HostView<const float> values,
                         HostView<float> table) const {
  std::fill_n(table.data(), cells(), 0.0F);
  for (std::size_t k = 0; k < positions.size(); ++k) {
    for (std::size_t j = 0; j < kHashes; ++j) {
      const Cell c = cell(j, positions[k] / lanes_, positions[k] % lanes_);
      table[c.at] += c.sign * values[k];
    }
  }
}

/// visit(block, lane, word, bit) for the marked elements of a group of lanes, block by block.
template <class Visit>
void PeelingTable::each_marked(HostView<const std::uint32_t> marks, std::size_t group, const Visit& visit) const {
  if (lanes_ < kGroupLanes) {
    for (std::size_t w = 0; w < marks.size(); ++w) {
      for (std::uint32_t rest = marks[w]; rest != 0; rest &= rest - 1) {
        const auto bit = static_cast<std::uint32_t>(std::countr_zero(rest));
        const std::size_t i = 32 * w + bit;
        visit(i / lanes_, i % lanes_, w, bit);
      }
    }
    return;
  }
  const std::size_t stride = lanes_ / kGroupLanes;
  for (std::size_t b = 0; b < blocks_; ++b) {
    const std::size_t w = b * stride + group;
    if (w >= marks.size()) return;
    for (std::uint32_t rest = marks[w]; rest != 0; rest &= rest - 1) {
      const auto bit = static_cast<std::uint32_t>(std::countr_zero(rest));
      visit(b, kGroupLanes * group + bit, w, bit);
    }
  }
}

/// Lanes do not meet, so the order in which a lane's elements come out, and with it rounding, is the same for any cut
/// of the lanes into groups.
std::size_t PeelingTable::read_group(std::size_t group, HostView<std::uint32_t> marks, HostView<float> table,
                                     float factor, HostView<float> out) {
  const std::size_t lanes = std::min(lanes_, kGroupLanes);
  const std::size_t rows = kHashes * rows_each_;
  const std::size_t first_lane = lanes * group;
  for (std::size_t row = 0; row < rows; ++row) {
    std::fill_n(count_.data() + row * lanes_ + first_lane, lanes, 0U);
    std::fill_n(block_.data() + row * lanes_ + first_lane, lanes, 0U);
  }
  each_marked(marks, group, [&](std::size_t block, std::size_t lane, std::size_t, std::uint32_t) {
    for (std::size_t j = 0; j < kHashes; ++j) {
      const std::size_t at = cell(j, block, lane).at;
      ++count_[at];
      block_[at] ^= static_cast<std::uint32_t>(block);
    }
  });
  std::uint32_t* queue = queue_.data() + rows * first_lane;
  std::size_t end = 0;
  for (std::size_t row = 0; row < rows; ++row) {
    for (std::size_t lane = first_lane; lane < first_lane + lanes; ++lane) {
      if (count_[row * lanes_ + lane] == 1) queue[end++] = static_cast<std::uint32_t>(row * lanes_ + lane);
    }
  }
  // A cell comes into the queue when its count becomes 1, at most once. First come, first out: the fewer others an
  // element has been computed from, the less of their rounding it carries.
  for (std::size_t next = 0; next < end; ++next) {
    const std::size_t alone = queue[next];
    if (count_[alone] != 1) continue;  // its element came out elsewhere
    const std::size_t block = block_[alone];
    const std::size_t lane = alone % lanes_;
    const std::size_t hash = alone / (rows_each_ * lanes_);
    const float value = cell(hash, block, lane).sign * table[alone];
    const std::size_t i = block * lanes_ + lane;
    out[i] = factor * value;
    marks[i / 32] &= ~(1U << i % 32);
    for (std::size_t j = 0; j < kHashes; ++j) {
      const Cell c = cell(j, block, lane);
      table[c.at] -= c.sign * value;
      block_[c.at] ^= static_cast<std::uint32_t>(block);
      if (--count_[c.at] == 1) queue[end++] = static_cast<std::uint32_t>(c.at);
    }
  }
  std::size_t left = 0;
  each_marked(marks, group, [&](std::size_t block, std::size_t lane, std::size_t, std::uint32_t) {
    std::array<float, kHashes> estimate{};
    for (std::size_t j = 0; j < kHashes; ++j) {
      const Cell c = cell(j, block, lane);
      estimate[j] = c.sign * table[c.at];
    }
    out[block * lanes_ + lane] = factor * law::median_of_three(estimate[0], estimate[1], estimate[2]);
    ++left;
  });
  return left;
}

std::size_t PeelingTable::read(Queue<Space::host> queue, HostView<std::uint32_t> marks, HostView<float> table,
                               float factor, HostView<float> out) {
  const std::size_t groups = std::max<std::size_t>(lanes_ / kGroupLanes, 1);
  std::atomic<std::size_t> left{0};
  parallel_for(queue, groups, 1, 1, [&](std::size_t first, std::size_t last) {
    for (std::size_t group = first; group < last; ++group)
      left.fetch_add(read_group(group, marks, table, factor, out), std::memory_order_relaxed);
  });
  return left.load();
}

}  // namespace gradtool
