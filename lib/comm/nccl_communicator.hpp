#pragma once

#include <chrono>
#include <functional>
#include <thread>
#include <utility>

#include "kernels/cuda/runtime.hpp"
#include "lib/comm/nccl_handle.hpp"
#include "lib/comm/traffic.hpp"

namespace gradtool::nccl {

inline ncclDataType_t nccl_type(Dtype dtype) {
  return dtype == Dtype::f32 ? ncclFloat32 : dtype == Dtype::f16 ? ncclFloat16 : ncclBfloat16;
}

/// NCCL's collectives. Bytes are counted by the ring formulas (lib/comm/traffic.hpp), so that rows of different
/// communicators compare; NCCL itself may choose trees or in-switch reduction and send otherwise. The order of its sums
/// is NCCL's too. A user's stream carries the work; the host waits in await alone, with an eye on errors.
class NcclCommunicator final : public Communicator<Space::cuda> {
 public:
  using Bytes = View<std::byte, Space::cuda>;
  using ConstBytes = View<const std::byte, Space::cuda>;

  /// `host` is the same ranks on the host, for what is not counted. `check_peers` is called with the
  /// seconds that this rank has waited for its queue, 0 when it does not: it throws when another rank has failed, or
  /// keeps this one waiting for too long.
  NcclCommunicator(Handle& handle, Communicator<Space::host>& host, std::function<void(double)> check_peers)
      : handle_{handle}, host_{host}, check_peers_{std::move(check_peers)} {}

  [[nodiscard]] int rank() const noexcept override { return host_.rank(); }
  [[nodiscard]] int size() const noexcept override { return host_.size(); }
  [[nodiscard]] std::string_view name() const noexcept override { return "nccl"; }
  [[nodiscard]] std::size_t scratch_bytes(std::size_t /*bytes*/) const override { return 0; }
  void set_all_reduce(AllReduce algorithm) override {
    expects(algorithm != AllReduce::doubling, "NCCL chooses by itself how an all-reduce adds");
  }

  void exchange(Queue<Space::cuda> queue, int to, ConstBytes out, int from, Bytes in) override {
    check_peers_(0.0);
    const auto valid = [this](int other, bool used) { return !used || (other >= 0 && other < size()); };
    expects(valid(to, !out.empty()) && valid(from, !in.empty()), "an exchange names ranks from 0 to size - 1");
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
    check_peers_(0.0);
    expects(inout.size() % size_of(dtype) == 0, "all_reduce_sum: the view holds no whole number of elements");
    ++traffic_.collectives;
    const std::size_t elements = inout.size() / size_of(dtype);
    count(ring_all_reduce_bytes(elements, size_of(dtype), rank(), size()));
    if (elements == 0 || size() == 1) return;
    const Handle::Use comm{handle_};
    GT_NCCL(ncclAllReduce(inout.data(), inout.data(), elements, nccl_type(dtype), ncclSum, comm, queue.stream));
  }

  /// NCCL's own is all there is.
  void all_reduce_native(Queue<Space::cuda> queue, Bytes inout, Dtype dtype, Bytes scratch) override {
    all_reduce_sum(queue, inout, dtype, scratch);
  }

  /// ncclReduceScatter where p divides the elements; else a reduction of each segment to its rank, in one group.
  void reduce_scatter_sum(Queue<Space::cuda> queue, Bytes inout, Dtype dtype, Bytes /*scratch*/) override {
    check_peers_(0.0);
    const std::size_t element = size_of(dtype);
    expects(inout.size() % element == 0, "reduce_scatter_sum: the view holds no whole number of elements");
    ++traffic_.collectives;
    const std::size_t elements = inout.size() / element;
    count(ring_reduce_scatter_bytes(elements, element, rank(), size()));
    if (elements == 0 || size() == 1) return;
    const auto segment = [&](int r) {
      const Segment s = ring_segment(elements, r, size());
      return inout.part(s.first * element, s.count * element);
    };
    const Handle::Use comm{handle_};
    if (elements % ranks() == 0) {
      GT_NCCL(ncclReduceScatter(inout.data(), segment(rank()).data(), elements / ranks(), nccl_type(dtype), ncclSum,
                                comm, queue.stream));
      return;
    }
    Group group;
    for (int r = 0; r < size(); ++r) {
      const Bytes part = segment(r);
      if (part.empty()) continue;
      GT_NCCL(ncclReduce(part.data(), part.data(), part.size() / element, nccl_type(dtype), ncclSum, r, comm,
                         queue.stream));
    }
    group.end();
  }

  void all_gather(Queue<Space::cuda> queue, ConstBytes mine, Bytes all) override {
    check_peers_(0.0);
    expects(all.size() == mine.size() * ranks(), "all_gather: `all` is not size() times `mine`");
    ++traffic_.collectives;
    count((ranks() - 1) * mine.size());
    if (mine.empty()) return;
    const Handle::Use comm{handle_};
    GT_NCCL(ncclAllGather(mine.data(), all.data(), mine.size(), ncclInt8, comm, queue.stream));
  }

  void all_gather_v(Queue<Space::cuda> queue, ConstBytes mine, std::span<const std::uint64_t> sizes,
                    std::span<const std::uint64_t> offsets, Bytes all) override {
    check_peers_(0.0);
    check_parts(mine.size(), {sizes, offsets}, all.size(), rank(), size());
    ++traffic_.collectives;
    count(ring_all_gather_bytes(sizes, rank()));
    const auto part = [&](int r) {
      return all.part(offsets[static_cast<std::size_t>(r)], sizes[static_cast<std::size_t>(r)]);
    };
    exchange_all(
        queue, [&](int) { return mine; }, part);
  }

  void all_to_all(Queue<Space::cuda> queue, ConstBytes out, Bytes in) override {
    check_peers_(0.0);
    expects(out.size() == in.size() && out.size() % ranks() == 0,
            "all_to_all: both views hold one part for every rank, all of one size");
    const std::size_t part = out.size() / ranks();
    ++traffic_.collectives;
    count(out.size() - part);
    exchange_all(
        queue, [&](int r) { return out.part(static_cast<std::size_t>(r) * part, part); },
        [&](int r) { return in.part(static_cast<std::size_t>(r) * part, part); });
  }

  void all_to_all_v(Queue<Space::cuda> queue, ConstBytes out, const Parts& out_parts, Bytes in,
                    const Parts& in_parts) override {
    check_peers_(0.0);
    check_all_to_all(out.size(), out_parts, in.size(), in_parts, rank(), size());
    ++traffic_.collectives;
    count(all_to_all_bytes(out_parts.sizes, rank()));
    const auto part = [](auto view, const Parts& parts, int r) {
      return view.part(parts.offsets[static_cast<std::size_t>(r)], parts.sizes[static_cast<std::size_t>(r)]);
    };
    exchange_all(
        queue, [&](int r) { return part(out, out_parts, r); }, [&](int r) { return part(in, in_parts, r); });
  }

  void broadcast(Queue<Space::cuda> queue, Bytes view, int root) override {
    check_peers_(0.0);
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

  /// With ncclCommRegister (NCCL 2.19). What cannot be registered is used as any other memory.
  void register_memory(Bytes memory) override {
    release_memory();
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 19, 0)
    if (memory.empty()) return;
    const Handle::Use comm{handle_};
    if (ncclCommRegister(comm, memory.data(), memory.size(), &registered_) != ncclSuccess) registered_ = nullptr;
#else
    static_cast<void>(memory);
#endif
  }
  void release_memory() noexcept override {
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 19, 0)
    void* registered = std::exchange(registered_, nullptr);
    if (registered == nullptr) return;
    try {
      const Handle::Use comm{handle_};
      ncclCommDeregister(comm, registered);
    } catch (const Error&) {  // aborted: nothing is registered any more
    }
#endif
  }

  /// Waits for the stream with an eye on NCCL's own errors, and on the other ranks. Before it throws it
  /// aborts the communicator, which releases the stream: what is freed on the way out would wait for it otherwise.
  void await(Queue<Space::cuda> queue) {
    const auto begin = std::chrono::steady_clock::now();
    try {
      while (!cuda::idle(queue)) {
        check_peers_(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
        check_errors();
        std::this_thread::sleep_for(std::chrono::microseconds{20});
      }
    } catch (...) {
      handle_.abort();
      throw;
    }
    check_peers_(0.0);
  }

 private:
  void check_errors() {
    ncclResult_t state = ncclSuccess;
    {
      const Handle::Use comm{handle_};
      GT_NCCL(ncclCommGetAsyncError(comm, &state));
    }
    check(state, "a collective");
  }
  [[nodiscard]] std::size_t ranks() const {
    return static_cast<std::size_t>(size());
  }
  void count(std::uint64_t bytes) {
    traffic_.bytes_sent += bytes;
    traffic_.messages_sent += bytes > 0 ? 1 : 0;
  }
  /// out(r) to every other rank r and in(r) from it, in one group; the own part is copied.
  template <class Out, class In>
  void exchange_all(Queue<Space::cuda> queue, Out&& out, In&& in) {
    copy_local(queue, in(rank()), out(rank()));
    const Handle::Use comm{handle_};
    Group group;
    for (int r = 0; r < size(); ++r) {
      if (r == rank()) continue;
      if (const ConstBytes ours = out(r); !ours.empty()) {
        GT_NCCL(ncclSend(ours.data(), ours.size(), ncclInt8, r, comm, queue.stream));
      }
      if (const Bytes theirs = in(r); !theirs.empty()) {
        GT_NCCL(ncclRecv(theirs.data(), theirs.size(), ncclInt8, r, comm, queue.stream));
      }
    }
    group.end();
  }
  static void copy_local(Queue<Space::cuda> queue, Bytes to, ConstBytes from) {
    if (!to.empty() && to.data() != from.data()) cuda::copy(queue, to, from);
  }

  Handle& handle_;
  Communicator<Space::host>& host_;
  std::function<void(double)> check_peers_;
  void* registered_ = nullptr;  ///< NCCL's handle for what register_memory was given
};

}  // namespace gradtool::nccl
