#pragma once

#include <algorithm>
#include <span>
#include <vector>

#include "lib/codecs/index_code.hpp"
#include "lib/reduce/host_reducer.hpp"

namespace gradtool {

/// What oktopk's steps work on.
struct OkTopkSizes {
  std::size_t n = 0, ranks = 1;
  IndexCoding coding;

  /// A part of at most m of m elements, as write_sparse makes it.
  [[nodiscard]] std::size_t part_bytes(std::size_t m) const { return sparse_bound(coding, m, m); }
};

/// What a step of oktopk sends: the regions that ranks agree on, parts of gradients to the owners of regions, and parts
/// of the sums from them to all. `Steps` does the work of one space on a list of values and their positions, which
/// `select` makes: those that are neither 0 nor smaller than a threshold in magnitude, NaN among them, in ascending
/// order.
///   Steps(sizes), workspace_bytes(), use(workspace)
///   kth(queue, values, k)               the k-th largest magnitude
///   select(queue, values, threshold)    how many they are; list() is their values
///   cuts(queue, selected, to)           to[j-1] := where j/ranks of the list begins, of n where it is empty
///   split(queue, borders, mine, out, offsets, sizes, region)
///                                       a part for every other region, its size; the own part into `region`, over 0;
///                                       how many of the list are own
///   write(queue, elements, out)         the list as a part of a region; its size
///   add(queue, part, weight, to)        to += weight * part
///   add_and_forget(queue, part, weight, to, kept, threshold)
///                                       the same; kept := 0 where the part has a value and it was selected
///   counts(queue, parts)                values in all parts together
/// Numbers that come back to the host are what the next collective's sizes are made of: on a GPU it waits for them.
template <Space S, class Steps>
class OkTopkExchange {
 public:
  explicit OkTopkExchange(const OkTopkSizes& shapes)
      : shapes_{shapes},
        steps_{shapes_},
        borders_(shapes.ranks + 1),
        sizes_(shapes.ranks),
        offsets_(shapes.ranks),
        cuts_(shapes.ranks * shapes.ranks),
        stated_{shapes.ranks} {}

  [[nodiscard]] std::size_t workspace_bytes() const {
    const std::size_t ranks = shapes_.ranks;
    return 2 * padded(4 * shapes_.n) + padded(all_bytes()) + padded(shapes_.part_bytes(shapes_.n)) +
           padded(8 * ranks * ranks) + padded(steps_.workspace_bytes()) + 1024;
  }
  /// Begins a step.
  void use(View<std::byte, S> workspace) {
    Carver<S> carve{workspace};
    sums_ = take<float>(carve, shapes_.n);
    region_ = take<float>(carve, shapes_.n);
    out_ = carve.take(all_bytes());
    in_ = carve.take(shapes_.part_bytes(shapes_.n));
    numbers_ = take<std::uint64_t>(carve, shapes_.ranks * shapes_.ranks);
    steps_.use(carve.take(steps_.workspace_bytes()));
    bytes_sent_ = 0;
  }

  [[nodiscard]] Steps& steps() { return steps_; }
  [[nodiscard]] Segment region(std::size_t r) const { return {borders_[r], borders_[r + 1] - borders_[r]}; }
  /// What gather_kept brought of a region.
  [[nodiscard]] View<const std::byte, S> part(std::size_t r) const {
    return out_.part(static_cast<std::size_t>(offsets_[r]), static_cast<std::size_t>(sizes_[r]));
  }
  /// In this step, by this rank.
  [[nodiscard]] std::uint64_t bytes_sent() const { return bytes_sent_; }

  /// Regions that split the ranks' selections evenly: the mean over ranks of where each would cut its own list, of
  /// `selected` values.
  void agree_on_regions(Communicator<S>& comm, Queue<S> queue, std::size_t selected, PhaseClock<S>& clock) {
    in_phase(clock, Phase::communicate, queue, [&] {
      const auto me = static_cast<std::size_t>(comm.rank());
      const std::size_t each = shapes_.ranks - 1;
      const View<std::uint32_t, S> all{reinterpret_cast<std::uint32_t*>(numbers_.data()), each * shapes_.ranks};
      if (each > 0) steps_.cuts(queue, selected, all.part(me * each, each));
      comm.all_gather(queue, as_bytes(View<const std::uint32_t, S>{all.part(me * each, each)}), as_writable_bytes(all));
      if (each > 0) read_back(queue, as_bytes(View<const std::uint32_t, S>{all}), cuts_.data());
      borders_.front() = 0;
      borders_.back() = shapes_.n;
      for (std::size_t j = 1; j < shapes_.ranks; ++j) {
        std::uint64_t sum = 0;
        for (std::size_t r = 0; r < shapes_.ranks; ++r) sum += cuts_[r * each + j - 1];
        borders_[j] = static_cast<std::size_t>(sum / shapes_.ranks);
        if (borders_[j] < borders_[j - 1] || borders_[j] > shapes_.n)
          throw Error{Fault::data, "oktopk: a rank's regions do not ascend"};
      }
      bytes_sent_ += 4 * each;
    });
  }

  /// Every part of the list to its owner, one partner after the other, and the sum of what arrives for the own region.
  /// How many values of the list that has.
  std::size_t split_and_reduce(Communicator<S>& comm, Queue<S> queue, PhaseClock<S>& clock) {
    const auto me = static_cast<std::size_t>(comm.rank());
    const auto sums = region_.first(region(me).count);
    std::size_t own = 0;
    in_phase(clock, Phase::encode, queue, [&] {
      std::size_t at = 0;
      for (std::size_t r = 0; r < shapes_.ranks; ++r) {
        offsets_[r] = at;
        if (r != me) at += padded(shapes_.part_bytes(region(r).count));
      }
      own = steps_.split(queue, borders_, me, out_, offsets_, sizes_, sums);
      for (const auto size : sizes_) bytes_sent_ += size;
    });
    for (std::size_t hop = 1; hop < shapes_.ranks; ++hop) {
      const std::size_t to = (me + hop) % shapes_.ranks;
      const std::size_t from = (me + shapes_.ranks - hop) % shapes_.ranks;
      std::size_t bytes = 0;
      in_phase(clock, Phase::communicate, queue, [&] { bytes = swap_parts(comm, queue, to, from); });
      in_phase(clock, Phase::decode, queue, [&] { steps_.add(queue, in_.first(bytes), 1.0F, sums); });
    }
    return own;
  }

  /// All sums that are not 0, from all ranks.
  [[nodiscard]] View<const float, S> gather_sums(Communicator<S>& comm, Queue<S> queue, PhaseClock<S>& clock) {
    const Segment mine = region(static_cast<std::size_t>(comm.rank()));
    std::size_t count = 0;
    std::uint64_t all = 0;
    in_phase(clock, Phase::encode, queue, [&] { count = steps_.select(queue, region_.first(mine.count), 0.0F); });
    in_phase(clock, Phase::communicate, queue, [&] {
      exchange_sizes(comm, queue, 4 * count);
      for (std::size_t r = 0; r < shapes_.ranks; ++r) {
        offsets_[r] = all;
        all += sizes_[r];
      }
      if (all > 4 * shapes_.n) throw Error{Fault::data, "oktopk: more sums than elements"};
      comm.all_gather_v(queue, as_bytes(steps_.list().first(count)), sizes_, offsets_, as_writable_bytes(sums_));
      bytes_sent_ += 4 * count;
    });
    return sums_.first(static_cast<std::size_t>(all / 4));
  }

  /// The sums that reach a threshold, from their owners to all, as parts. How many are of this rank's region.
  std::size_t gather_kept(Communicator<S>& comm, Queue<S> queue, float threshold, PhaseClock<S>& clock) {
    const Segment mine = region(static_cast<std::size_t>(comm.rank()));
    std::size_t kept = 0;
    std::size_t bytes = 0;
    in_phase(clock, Phase::encode, queue, [&] {
      kept = steps_.select(queue, region_.first(mine.count), threshold);
      bytes = steps_.write(queue, mine.count, in_);
      bytes_sent_ += bytes;
    });
    in_phase(clock, Phase::communicate, queue, [&] {
      exchange_sizes(comm, queue, bytes);
      std::uint64_t at = 0;
      for (std::size_t r = 0; r < shapes_.ranks; ++r) {
        if (sizes_[r] < sizeof(SparseHeader) || sizes_[r] > shapes_.part_bytes(region(r).count))
          throw Error{Fault::data, "oktopk: a part that cannot be one"};
        offsets_[r] = at;
        at += padded(static_cast<std::size_t>(sizes_[r]));
      }
      comm.all_gather_v(queue, in_.first(bytes), sizes_, offsets_, out_);
    });
    return kept;
  }

 private:
  static constexpr std::size_t padded(std::size_t bytes) { return Arena<S>::padded_size(bytes); }

  /// All parts of a gradient, whatever the regions are: codes are at most 4 bytes an element.
  [[nodiscard]] std::size_t all_bytes() const { return 8 * shapes_.n + 512 * shapes_.ranks; }

  /// Sends a part and receives one, whose head says how long it is: so many bytes, in in_.
  std::size_t swap_parts(Communicator<S>& comm, Queue<S> queue, std::size_t to, std::size_t from) {
    constexpr std::size_t kHead = sizeof(SparseHeader);
    const auto swap = [&](std::size_t first, std::size_t out, std::size_t in) {
      comm.exchange(queue, static_cast<int>(to), out_.part(offsets_[to] + first, out), static_cast<int>(from),
                    in_.part(first, in));
    };
    swap(0, kHead, kHead);
    stated_.fetch(queue, in_.first(8));
    const auto bytes = static_cast<std::size_t>(stated_.wait(queue)[0]);
    if (bytes < kHead || bytes > in_.size()) throw Error{Fault::data, "oktopk: a part that cannot be one"};
    swap(kHead, static_cast<std::size_t>(sizes_[to]) - kHead, bytes - kHead);
    return bytes;
  }

  /// sizes_ := every rank's `mine`.
  void exchange_sizes(Communicator<S>& comm, Queue<S> queue, std::uint64_t mine) {
    const auto me = static_cast<std::size_t>(comm.rank());
    const auto all = numbers_.first(shapes_.ranks);
    write_size(queue, mine, as_writable_bytes(all.part(me, 1)));
    comm.all_gather(queue, as_bytes(View<const std::uint64_t, S>{all.part(me, 1)}), as_writable_bytes(all));
    stated_.fetch(queue, as_bytes(View<const std::uint64_t, S>{all}));
    const auto stated = stated_.wait(queue);
    std::copy_n(stated.begin(), shapes_.ranks, sizes_.begin());
    bytes_sent_ += 8;
  }

  OkTopkSizes shapes_;
  Steps steps_;
  std::vector<std::size_t> borders_;            ///< of regions
  std::vector<std::uint64_t> sizes_, offsets_;  ///< of every rank's part, in out_ or sums_
  std::vector<std::uint32_t> cuts_;
  ReadBack<S> stated_;
  std::uint64_t bytes_sent_ = 0;

  View<float, S> sums_, region_;  ///< of all regions as a list, of the own one in full
  View<std::byte, S> out_, in_;
  View<std::uint64_t, S> numbers_;
};

}  // namespace gradtool
