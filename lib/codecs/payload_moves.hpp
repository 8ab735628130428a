#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "kernels/vector.hpp"
#include "lib/codecs/codec.hpp"
#include "lib/comm/communicator.hpp"
#include "lib/core/arena.hpp"
#include "lib/core/scratch.hpp"

namespace gradtool {

/// How a vector of n elements is cut into one shard a rank: as ring_segment cuts whole segments of `multiple` elements,
/// of which the last may be shorter. Some shards are empty where there are fewer segments than ranks.
struct ShardCut {
  std::size_t n = 0;
  int ranks = 1;
  std::size_t multiple = 1;

  [[nodiscard]] Segment shard(int i) const {
    const Segment whole = ring_segment((n + multiple - 1) / multiple, i, ranks);
    const std::size_t first = std::min(n, whole.first * multiple);
    return {first, std::min(n, (whole.first + whole.count) * multiple) - first};
  }
};

/// A slot for the payload of each segment, one behind the other and all as large as the largest payload can be, so that
/// every payload is aligned to 256 bytes.
class PayloadSlots {
 public:
  /// `footprints`: of the payload in each slot.
  explicit PayloadSlots(std::vector<Footprint> footprints) : footprints_{std::move(footprints)} {
    for (const Footprint& footprint : footprints_) {
      slot_ = std::max(slot_, padded(footprint.payload_bytes));
      scratch_ = std::max(scratch_, footprint.scratch_bytes);
      exact_ = exact_ && footprint.exact;
    }
  }
  /// Slots for the shards of a vector.
  template <Space S>
  static PayloadSlots of_shards(const Codec<S>& codec, const ShardCut& cut) {
    std::vector<Footprint> footprints;
    footprints.reserve(static_cast<std::size_t>(cut.ranks));
    for (int i = 0; i < cut.ranks; ++i) footprints.push_back(codec.plan(cut.shard(i).count));
    return PayloadSlots{std::move(footprints)};
  }

  [[nodiscard]] std::size_t count() const { return footprints_.size(); }
  [[nodiscard]] std::size_t bytes() const { return slot_ * count(); }   ///< of all slots
  [[nodiscard]] std::size_t slot_bytes() const { return slot_; }        ///< of one
  [[nodiscard]] std::size_t scratch_bytes() const { return scratch_; }  ///< enough for each payload's codec
  [[nodiscard]] bool exact() const { return exact_; }                   ///< no payload's size depends on its data
  [[nodiscard]] std::size_t offset(int i) const { return static_cast<std::size_t>(i) * slot_; }
  [[nodiscard]] const Footprint& footprint(int i) const { return footprints_[static_cast<std::size_t>(i)]; }
  /// Room for payload i.
  template <class V>
  [[nodiscard]] V room(V all, int i) const {
    return all.part(offset(i), footprint(i).payload_bytes);
  }
  /// A size that a rank states, which a payload in slot i may have.
  [[nodiscard]] std::uint64_t checked(std::uint64_t stated, int i) const {
    if (stated > footprint(i).payload_bytes)
      throw Error{Fault::data, "a rank states a payload larger than the codec's bound"};
    return stated;
  }

 private:
  static std::size_t padded(std::size_t bytes) { return Arena<Space::cuda>::padded_size(bytes); }

  std::vector<Footprint> footprints_;
  std::size_t slot_ = 0;
  std::size_t scratch_ = 0;
  bool exact_ = true;
};

/// All-gathers one payload of each rank: slot r holds that of rank r. Where sizes vary they are exchanged first, 8
/// bytes a rank, from where they were written, and count as traffic like everything else. On a GPU the host waits once,
/// for that row: the collective behind it takes its counts from the host.
template <Space S>
class PayloadGather {
 public:
  explicit PayloadGather(PayloadSlots slots)
      : slots_{std::move(slots)},
        sizes_(slots_.count()),
        offsets_(slots_.count()),
        parts_(slots_.count()),
        stated_{slots_.exact() ? 0 : slots_.count()} {
    for (std::size_t r = 0; r < slots_.count(); ++r) {
      sizes_[r] = slots_.footprint(static_cast<int>(r)).payload_bytes;
      offsets_[r] = slots_.offset(static_cast<int>(r));
    }
  }

  [[nodiscard]] const PayloadSlots& slots() const { return slots_; }

  /// Scratch of a gather.
  struct Workspace {
    Workspace(const PayloadGather& gather, Scratch<S>& pieces)
        : all{pieces.take_bytes(gather.slots_.bytes())},
          size_row{pieces.take_bytes(gather.slots_.exact() ? 0 : 8 * gather.slots_.count())},
          size{pieces.take_bytes(gather.slots_.exact() ? 0 : 8)} {}
    View<std::byte, S> all;       ///< the slots
    View<std::byte, S> size_row;  ///< the sizes of all payloads, where they vary
    View<std::byte, S> size;      ///< of this rank's payload, where that is exact and another one's is not
  };

  /// This rank's payload is in its slot. Afterwards all are.
  void gather(Communicator<S>& comm, Queue<S> queue, const Workspace& work) {
    const int me = comm.rank();
    if (!slots_.exact()) {
      View<const std::byte, S> mine = work.size;
      if (slots_.footprint(me).exact)
        write_size(queue, slots_.footprint(me).payload_bytes, work.size);
      else
        mine = slots_.room(work.all, me).first(8);
      comm.all_gather(queue, mine, work.size_row);
      stated_.fetch(queue, work.size_row);
      const auto stated = stated_.wait(queue);
      for (std::size_t r = 0; r < sizes_.size(); ++r) sizes_[r] = slots_.checked(stated[r], static_cast<int>(r));
    }
    comm.all_gather_v(queue, slots_.room(work.all, me).first(size(me)), sizes_, offsets_, work.all);
    for (std::size_t r = 0; r < sizes_.size(); ++r) parts_[r] = work.all.part(offsets_[r], sizes_[r]);
  }

  /// After a gather: of rank r's payload.
  [[nodiscard]] std::size_t size(int r) const { return static_cast<std::size_t>(sizes_[static_cast<std::size_t>(r)]); }
  /// After a gather: the payloads, valid as long as the workspace.
  [[nodiscard]] std::span<const View<const std::byte, S>> payloads() const { return parts_; }

 private:
  PayloadSlots slots_;
  std::vector<std::uint64_t> sizes_, offsets_;
  std::vector<View<const std::byte, S>> parts_;
  ReadBack<S> stated_;
};

/// Sends the payload of segment r to rank r, and receives every rank's payload of this rank's segment: an all-to-all of
/// encoded segments. Sizes that vary go first, 8 bytes for each payload.
template <Space S>
class PayloadExchange {
 public:
  explicit PayloadExchange(PayloadSlots slots)
      : slots_{std::move(slots)},
        out_sizes_(slots_.count()),
        in_sizes_(slots_.count()),
        out_offsets_(slots_.count()),
        in_offsets_(slots_.count()),
        eights_out_(slots_.count()),
        eights_in_(slots_.count()),
        row_offsets_(slots_.count()),
        parts_(slots_.count()),
        stated_{slots_.exact() ? 0 : 2 * slots_.count()} {}

  [[nodiscard]] const PayloadSlots& slots() const { return slots_; }

  struct Workspace {
    Workspace(const PayloadExchange& exchange, Scratch<S>& pieces)
        : out{pieces.take_bytes(exchange.slots_.bytes())},
          in{pieces.take_bytes(exchange.slots_.bytes())},
          size_row{pieces.take_bytes(exchange.slots_.exact() ? 0 : 8 * exchange.slots_.count())} {}
    View<std::byte, S> out;       ///< this rank's payloads, of segment r in slot r
    View<std::byte, S> in;        ///< every rank's payload of this rank's segment, that of rank r in the r-th slot
    View<std::byte, S> size_row;  ///< the sizes of what comes in, where they vary
  };

  /// All of this rank's payloads are in `work.out`.
  void exchange(Communicator<S>& comm, Queue<S> queue, const Workspace& work) {
    const int me = comm.rank();
    for (std::size_t r = 0; r < slots_.count(); ++r) {
      const int rank = static_cast<int>(r);
      out_sizes_[r] = slots_.footprint(rank).payload_bytes;
      in_sizes_[r] = slots_.footprint(me).payload_bytes;
      out_offsets_[r] = in_offsets_[r] = slots_.offset(rank);
      eights_out_[r] = slots_.footprint(rank).exact ? 0 : 8;
      eights_in_[r] = slots_.footprint(me).exact ? 0 : 8;
      row_offsets_[r] = 8 * r;
    }
    if (!slots_.exact()) learn_sizes(comm, queue, work);
    comm.all_to_all_v(queue, work.out, {out_sizes_, out_offsets_}, work.in, {in_sizes_, in_offsets_});
    for (std::size_t r = 0; r < slots_.count(); ++r) parts_[r] = work.in.part(in_offsets_[r], in_sizes_[r]);
  }

  /// After an exchange: bytes of this rank's payloads.
  [[nodiscard]] std::uint64_t bytes_out() const {
    std::uint64_t sum = 0;
    for (const std::uint64_t bytes : out_sizes_) sum += bytes;
    return sum;
  }
  /// After an exchange: what came in, in the order of ranks; valid as long as the workspace.
  [[nodiscard]] std::span<const View<const std::byte, S>> payloads() const { return parts_; }

 private:
  void learn_sizes(Communicator<S>& comm, Queue<S> queue, const Workspace& work) {
    const int me = comm.rank();
    comm.all_to_all_v(queue, work.out, {eights_out_, out_offsets_}, work.size_row, {eights_in_, row_offsets_});
    const std::size_t count = slots_.count();
    for (std::size_t r = 0; r < count; ++r) {
      if (eights_out_[r] > 0) stated_.fetch(queue, work.out.part(out_offsets_[r], 8), r);
    }
    if (!slots_.footprint(me).exact) stated_.fetch(queue, work.size_row, count);
    const auto stated = stated_.wait(queue);
    for (std::size_t r = 0; r < count; ++r) {
      if (eights_out_[r] > 0) out_sizes_[r] = slots_.checked(stated[r], static_cast<int>(r));
      if (eights_in_[r] > 0) in_sizes_[r] = slots_.checked(stated[count + r], me);
    }
  }

  PayloadSlots slots_;
  std::vector<std::uint64_t> out_sizes_, in_sizes_, out_offsets_, in_offsets_;
  std::vector<std::uint64_t> eights_out_, eights_in_, row_offsets_;  ///< of the sizes themselves
  std::vector<View<const std::byte, S>> parts_;
  ReadBack<S> stated_;
};

}  // namespace gradtool
