#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/bitpack.hpp"
#include "lib/comm/communicator.hpp"
#include "lib/core/task_pool.hpp"
#include "lib/core/view.hpp"
#include "lib/methods/dynamiq/format.hpp"

namespace gradtool {

/// How the elements of a step are rounded on one rank.
struct DynamiqRounding {
  format::DrawKey key;
  std::uint32_t place = 0;  ///< of this rank in the permutation
  std::uint32_t ranks = 1;  ///< 1: every rank for itself
};

/// The shape of one unit: its super-groups, their words of codes, and what the ring makes of them.
struct DynamiqShape {
  std::size_t n = 0;
  std::int64_t budget = 0;  ///< words of codes

  DynamiqShape(std::size_t elements, double bits) : n{elements} {
    // Two bfloat16 in the statistics, one in the payload, and a byte for each group.
    const std::size_t groups = (n + format::kDynamiqGroup - 1) / format::kDynamiqGroup;
    const auto metadata = static_cast<double>(48 * super_groups() + 8 * groups);
    budget = static_cast<std::int64_t>(std::floor((bits * static_cast<double>(n) - metadata) / 32.0));
  }

  [[nodiscard]] GT_HD std::size_t super_groups() const {
    return (n + format::kDynamiqSuper - 1) / format::kDynamiqSuper;
  }
  [[nodiscard]] GT_HD std::size_t elements_before(std::size_t super_group) const {
    const std::size_t first = super_group * format::kDynamiqSuper;
    return first < n ? first : n;
  }
  /// Elements of super-group j; 0 behind the last.
  [[nodiscard]] GT_HD std::size_t elements_of(std::size_t j) const {
    return elements_before(j + 1) - elements_before(j);
  }
  /// Words of codes of super-group j for each bit of its width.
  [[nodiscard]] GT_HD std::size_t packs(std::size_t j) const {
    return (elements_of(j) + format::kPackGroup - 1) / format::kPackGroup;
  }
};

/// Super-groups that travel together, and where the sections of their payload begin.
struct DynamiqPart {
  std::size_t first, count;
  std::size_t groups;              ///< of 16 elements
  std::size_t group_codes, codes;  ///< bytes in front of these sections
};

/// The parts of a unit on a ring, and what the CPU knows of their payloads; HostDynamiq and CudaDynamiq add the work:
///   statistics(queue, values, means, squares)   bfloat16 of the mean and of the sum of squares of every super-group
///   set_widths(queue, squares)   the widest widths that the budget has room for, and where their codes lie
///   remove_means(queue, means, values)   values -= means, which are sums over ranks, divided by the ranks
///   encode(queue, values, i, rounding, payload)   part i of `values`, which are those of the whole unit
///   add(queue, payload, i, values)   values += what the payload of part i says
///   finish(queue, payload, i, means, values)   part i of values := (means + what its payload says) / ranks
class DynamiqRing {
 public:
  DynamiqRing(std::size_t n, double bits, std::size_t ranks) : shape_{n, bits}, ranks_{ranks}, starts_(ranks + 1) {}

  [[nodiscard]] std::size_t super_groups() const { return shape_.super_groups(); }
  [[nodiscard]] std::size_t elements(std::size_t i) const {
    const DynamiqPart p = part(i);
    return shape_.elements_before(p.first + p.count) - shape_.elements_before(p.first);
  }
  /// Bytes of the payload of part i with the widths that are set, and the most that it may have.
  [[nodiscard]] std::size_t payload_bytes(std::size_t i) const {
    return part(i).codes + 4 * (starts_[i + 1] - starts_[i]);
  }
  [[nodiscard]] std::size_t most_bytes(std::size_t i) const {
    return part(i).codes + (elements(i) + format::kPackGroup - 1) / format::kPackGroup * format::kPackGroup;
  }

 protected:
  [[nodiscard]] DynamiqPart part(std::size_t i) const {
    const Segment own = ring_segment(super_groups(), static_cast<int>(i), static_cast<int>(ranks_));
    const std::size_t elements = shape_.elements_before(own.first + own.count) - shape_.elements_before(own.first);
    const std::size_t groups = (elements + format::kDynamiqGroup - 1) / format::kDynamiqGroup;
    const std::size_t group_codes = (2 * own.count + 3) / 4 * 4;
    return {own.first, own.count, groups, group_codes, group_codes + (groups + 3) / 4 * 4};
  }
  [[nodiscard]] float share() const { return 1.0F / static_cast<float>(ranks_); }

  DynamiqShape shape_;
  std::size_t ranks_;
  std::vector<std::uint64_t> starts_;  ///< words of codes in front of every part, and of all
};

class HostDynamiq : public DynamiqRing {
 public:
  /// `bits`: of an element on average, with all that goes with it. `uniform`: evenly spaced levels.
  HostDynamiq(std::size_t n, double bits, bool uniform, std::size_t ranks, Queue<Space::host> queue);

  void statistics(Queue<Space::host> queue, HostView<const float> values, HostView<std::uint16_t> means,
                  HostView<std::uint16_t> squares) const;
  void set_widths(Queue<Space::host> queue, HostView<const std::uint16_t> squares);
  void remove_means(Queue<Space::host> queue, HostView<const std::uint16_t> means, HostView<float> values) const;
  void encode(Queue<Space::host> queue, HostView<const float> values, std::size_t i, const DynamiqRounding& rounding,
              HostView<std::byte> payload) const;
  void add(Queue<Space::host> queue, HostView<const std::byte> payload, std::size_t i, HostView<float> values) const;
  void finish(Queue<Space::host> queue, HostView<const std::byte> payload, std::size_t i,
              HostView<const std::uint16_t> means, HostView<float> values) const;

  [[nodiscard]] std::uint32_t width(std::size_t super_group) const { return widths_[super_group]; }

 private:
  /// put(super-group, codes, how many, what each stands for, scales of the groups) for all of part i.
  template <class Put>
  void decode(Queue<Space::host> queue, HostView<const std::byte> payload, std::size_t i, const Put& put) const;

  format::DynamiqTables tables_;
  std::vector<std::uint32_t>
      guide_;  ///< for an x in [i/256, (i+1)/256), the largest r whose 8-bit level is below i/256
  std::vector<std::uint8_t> widths_;    ///< bits of an element of every super-group
  std::vector<std::uint64_t> offsets_;  ///< words of codes in front of every super-group, and of all
};

}  // namespace gradtool
