#pragma once

#include <chrono>
#include <functional>
#include <thread>
#include <utility>

#include "kernels/cuda/runtime.hpp"
#include "lib/comm/nccl_handle.hpp"
#include "lib/comm/ring.hpp"

namespace gradtool::nccl {

inline ncclDataType_t nccl_type(Dtype dtype) {
  return dtype == Dtype::f32 ? ncclFloat32 : dtype == Dtype::f16 ? ncclFloat16 : ncclBfloat16;
}

/// NCCL's collectives. Bytes are counted by the ring formulas (lib/comm/ring.hpp), so that rows of different
/// communicators compare; NCCL itself may choose trees or in-switch reduction and send otherwise. The order of its sums
/// is NCCL's too.
class NcclCommunicator final : public Communicator<Space::cuda> {
 public:
  using Bytes = View<std::byte, Space::cuda>;
  using ConstBytes = View<const std::byte, Space::cuda>;

  /// `host` is the same ranks on the host, for what is not counted. `check_peers` throws when another rank has failed.
  NcclCommunicator(Handle& handle, Communicator<Space::host>& host, std::function<void()> check_peers)
      : handle_{handle}, host_{host}, check_peers_{std::move(check_peers)} {}

  [[nodiscard]] int rank() const noexcept override { return host_.rank(); }
  [[nodiscard]] int size() const noexcept override { return host_.size(); }
  [[nodiscard]] std::string_view name() const noexcept override { return "nccl"; }
  [[nodiscard]] std::size_t scratch_bytes(std::size_t /*bytes*/) const override { return 0; }

  void exchange(Queue<Space::cuda> queue, int to, ConstBytes out, int from, Bytes in) override {
    check_peers_();
    const bool out_stays = !out.empty() && to == rank();
    const bool in_stays = !in.empty() && from == rank();
    if (out_stays || in_stays) {
      expects(out_stays && in_stays && out.size() == in.size(),
              "a rank that sends to itself receives as much from itself");
      copy_local(queue, in, out);
      return;
    }
    count(out.size());
    const Handle::Use comm{handle_};
    Group group;
    if (!out.empty()) GT_NCCL(ncclSend(out.data(), out.size(), ncclInt8, to, comm, queue.stream));
    if (!in.empty()) GT_NCCL(ncclRecv(in.data(), in.size(), ncclInt8, from, comm, queue.stream));
    group.end();
  }

  void all_reduce_sum(Queue<Space::cuda> queue, Bytes inout, Dtype dtype, Bytes /*scratch*/) override {
    check_peers_();
    expects(inout.size() % size_of(dtype) == 0, "all_reduce_sum: the view holds no whole number of elements");
    ++traffic_.collectives;
    const std::size_t elements = inout.size() / size_of(dtype);
    count(ring_all_reduce_bytes(elements, size_of(dtype), rank(), size()));
    if (elements == 0 || size() == 1) return;
    const Handle::Use comm{handle_};
    GT_NCCL(ncclAllReduce(inout.data(), inout.data(), elements, nccl_type(dtype), ncclSum, comm, queue.stream));
  }

  void all_gather(Queue<Space::cuda> queue, ConstBytes mine, Bytes all) override {
    check_peers_();
    expects(all.size() == mine.size() * ranks(), "all_gather: `all` is not size() times `mine`");
    ++traffic_.collectives;
    count((ranks() - 1) * mine.size());
    if (mine.empty()) return;
    const Handle::Use comm{handle_};
    GT_NCCL(ncclAllGather(mine.data(), all.data(), mine.size(), ncclInt8, comm, queue.stream));
  }

  void all_gather_v(Queue<Space::cuda> queue, ConstBytes mine, std::span<const std::uint64_t> sizes,
                    std::span<const std::uint64_t> offsets, Bytes all) override {
    check_peers_();
    check_parts(mine.size(), sizes, offsets, all.size(), rank(), size());
    ++traffic_.collectives;
    count(ring_all_gather_bytes(sizes, rank()));
    const auto part = [&](int r) {
      return all.part(offsets[static_cast<std::size_t>(r)], sizes[static_cast<std::size_t>(r)]);
    };
    copy_local(queue, part(rank()), mine);
    const Handle::Use comm{handle_};
    Group group;
    for (int r = 0; r < size(); ++r) {
      if (r == rank()) continue;
      if (!mine.empty()) GT_NCCL(ncclSend(mine.data(), mine.size(), ncclInt8, r, comm, queue.stream));
      if (const Bytes theirs = part(r); !theirs.empty()) {
        GT_NCCL(ncclRecv(theirs.data(), theirs.size(), ncclInt8, r, comm, queue.stream));
      }
    }
    group.end();
  }

  void broadcast(Queue<Space::cuda> queue, Bytes view, int root) override {
    check_peers_();
    expects(root >= 0 && root < size(), "broadcast: the root is a rank from 0 to size - 1");
    ++traffic_.collectives;
    count(chain_broadcast_bytes(view.size(), root, rank(), size()));
    if (view.empty() || size() == 1) return;
    const Handle::Use comm{handle_};
    GT_NCCL(ncclBroadcast(view.data(), view.data(), view.size(), ncclInt8, root, comm, queue.stream));
  }

  void barrier(Queue<Space::cuda> queue) override {
    await(queue);
    host_.barrier({});
  }
  void agree_max(std::span<double> values) override { host_.agree_max(values); }

  /// Waits for the stream with an eye on NCCL's own errors and on the other ranks.
  void await(Queue<Space::cuda> queue) {
    while (!cuda::idle(queue)) {
      check_peers_();
      ncclResult_t state = ncclSuccess;
      {
        const Handle::Use comm{handle_};
        GT_NCCL(ncclCommGetAsyncError(comm, &state));
      }
      check(state, "a collective");
      std::this_thread::sleep_for(std::chrono::microseconds{20});
    }
  }

 private:
  [[nodiscard]] std::size_t ranks() const { return static_cast<std::size_t>(size()); }
  void count(std::uint64_t bytes) {
    traffic_.bytes_sent += bytes;
    traffic_.messages_sent += bytes > 0 ? 1 : 0;
  }
  static void copy_local(Queue<Space::cuda> queue, Bytes to, ConstBytes from) {
    if (to.data() != from.data()) cuda::copy(queue, to, from);
  }

  Handle& handle_;
  Communicator<Space::host>& host_;
  std::function<void()> check_peers_;
};

}  // namespace gradtool::nccl
