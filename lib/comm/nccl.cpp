#include <fmt/format.h>
#include <nccl.h>

#include <chrono>
#include <cstdlib>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "kernels/cuda/runtime.hpp"
#include "lib/comm/launch.hpp"
#include "lib/comm/threads.hpp"
#include "lib/comm/traffic.hpp"
#ifdef GT_WITH_MPI
#include "lib/comm/mpi.hpp"
#endif

namespace gradtool {
namespace {

/// Throws Fault::backend with NCCL's own reason unless `result` is ncclSuccess.
void check_nccl(ncclResult_t result, const char* call, const char* file = __builtin_FILE(),
                int line = __builtin_LINE()) {
  if (result == ncclSuccess) return;
  const char* detail = ncclGetLastError(nullptr);
  const bool said = detail != nullptr && *detail != '\0';
  throw Error{
      Fault::backend,
      fmt::format("NCCL: {} failed: {}{}{}", call, ncclGetErrorString(result), said ? ": " : "", said ? detail : ""),
      file, line};
}
#define GT_NCCL(call) check_nccl(call, #call)

/// Owns an NCCL communicator that another thread may abort. Aborting releases a stream, and a host thread, that wait
/// inside NCCL for a rank that will not come.
class Handle {
 public:
  Handle() = default;
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;
  ~Handle() {
    if (comm_ != nullptr) ncclCommAbort(comm_);
  }

  ncclComm_t* address() { return &comm_; }
  /// Holds the communicator for one call or one group of calls. No other thread aborts it meanwhile, unless the calls
  /// take longer than kPatience.
  class Use {
   public:
    explicit Use(Handle& handle) : lock_{handle.mutex_}, comm_{handle.comm_} {
      if (comm_ != nullptr) return;
      throw Error{Fault::backend, "NCCL: the communicator was aborted because another rank failed"};
    }
    operator ncclComm_t() const { return comm_; }

   private:
    std::unique_lock<std::timed_mutex> lock_;
    ncclComm_t comm_;
  };

  /// A communicator of the ranks that give the same color, in the order of their ranks here. Every rank calls it. It is
  /// aborted and destroyed together with this one.
  Handle& split(int color, int rank) {
    const Use comm{*this};
    Handle& part = add_part();
    GT_NCCL(ncclCommSplit(comm, color, rank, part.address(), nullptr));
    return part;
  }

  void abort() {
    for_each_part([](Handle& part) { part.abort(); });
    // After kPatience it goes on without the lock, because its holder may be inside an NCCL call that only an abort can
    // end.
    const std::unique_lock lock{mutex_, kPatience};
    if (ncclComm_t comm = std::exchange(comm_, nullptr); comm != nullptr) ncclCommAbort(comm);
  }
  /// Ends the communicator after all work is done. Every rank calls it.
  void destroy() {
    for_each_part([](Handle& part) { part.destroy(); });
    if (ncclComm_t comm = std::exchange(comm_, nullptr); comm != nullptr) GT_NCCL(ncclCommDestroy(comm));
  }

  /// Calls f for every communicator that was split off this one.
  template <class F>
  void for_each_part(F&& f) {
    const std::lock_guard lock{parts_mutex_};
    for (const auto& part : parts_) f(*part);
  }

 private:
  Handle& add_part() {
    const std::lock_guard lock{parts_mutex_};
    return *parts_.emplace_back(std::make_unique<Handle>());
  }

  static constexpr std::chrono::seconds kPatience{2};
  std::mutex parts_mutex_;  ///< a rank that fails aborts the others, which may be splitting
  std::vector<std::unique_ptr<Handle>> parts_;
  std::timed_mutex mutex_;
  ncclComm_t comm_ = nullptr;
};

/// A group of calls that NCCL starts together. When an exception leaves its scope the group is closed, because
/// otherwise this thread could make no other NCCL call.
class Group {
 public:
  Group() { GT_NCCL(ncclGroupStart()); }
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;
  ~Group() {
    if (open_) ncclGroupEnd();
  }
  void end() {
    open_ = false;
    GT_NCCL(ncclGroupEnd());
  }

 private:
  bool open_ = true;
};

ncclDataType_t nccl_type(Dtype dtype) {
  return dtype == Dtype::f32 ? ncclFloat32 : dtype == Dtype::f16 ? ncclFloat16 : ncclBfloat16;
}

/// NCCL's collectives. Bytes are counted by the ring formulas (lib/comm/traffic.hpp), so that rows of different
/// communicators can be compared; NCCL itself may choose trees or reduction in the switch and send otherwise. NCCL also
/// chooses the order of its sums. The caller's stream carries the work; the host waits in `await` alone.
class NcclCommunicator final : public Communicator<Space::cuda> {
 public:
  using Bytes = View<std::byte, Space::cuda>;
  using ConstBytes = View<const std::byte, Space::cuda>;

  /// `host` connects the same ranks on the host, for barriers and agree_max. `check_peers` is called with the seconds
  /// that this rank has waited for its queue, or 0 when it does not wait. It throws when another rank has failed or
  /// keeps this one waiting for too long.
  NcclCommunicator(Handle& handle, Communicator<Space::host>& host, std::function<void(double)> check_peers)
      : NcclCommunicator{handle, host, std::move(check_peers), host.rank(), host.size()} {}

  [[nodiscard]] int rank() const noexcept override { return rank_; }
  [[nodiscard]] int size() const noexcept override { return size_; }
  /// Communicators of NCCL's own (ncclCommSplit).
  void set_levels(int node) override {
    expects(node >= 1 && size_ % node == 0, "machines share the ranks evenly");
    const auto split = [&](int color, int rank, int size) {
      return std::unique_ptr<NcclCommunicator>{
          new NcclCommunicator{handle_.split(color, rank_), host_, check_peers_, rank, size}};
    };
    inside_ = split(rank_ / node, rank_ % node, node);
    across_ = split(rank_ % node, rank_ / node, size_ / node);
  }
  [[nodiscard]] std::string_view name() const noexcept override { return "nccl"; }
  [[nodiscard]] std::size_t scratch_bytes(std::size_t /*bytes*/) const override { return 0; }
  void set_all_reduce(AllReduce algorithm) override {
    expect_valid(algorithm == AllReduce::ring || algorithm == AllReduce::automatic,
                 "NCCL chooses by itself how an all-reduce adds");
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

  /// all_reduce_sum is NCCL's own all-reduce already.
  void all_reduce_native(Queue<Space::cuda> queue, Bytes inout, Dtype dtype, Bytes scratch) override {
    all_reduce_sum(queue, inout, dtype, scratch);
  }

  /// Uses ncclReduceScatter when p divides the elements; otherwise reduces each segment to its rank, in one group.
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

  void gather(Queue<Space::cuda> queue, ConstBytes mine, Bytes all, int root) override {
    check_peers_(0.0);
    expects(root >= 0 && root < size(), "gather: the root is a rank from 0 to size - 1");
    expects(rank() != root || all.size() == mine.size() * ranks(),
            "gather: the root's `all` is not size() times `mine`");
    ++traffic_.collectives;
    count(rank() == root ? 0 : mine.size());
    const auto r_part = [&](int r) {
      return rank() == root ? all.part(static_cast<std::size_t>(r) * mine.size(), mine.size()) : Bytes{};
    };
    exchange_all(
        queue, [&](int r) { return r == root ? mine : ConstBytes{}; }, r_part);
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
    bool in_a_row = true;  // parts of one size, one behind the other, which NCCL gathers itself
    for (std::size_t r = 0; r < ranks(); ++r)
      in_a_row = in_a_row && sizes[r] == mine.size() && offsets[r] == r * mine.size();
    if (in_a_row && !mine.empty()) {
      const Handle::Use comm{handle_};
      GT_NCCL(ncclAllGather(mine.data(), all.data(), mine.size(), ncclInt8, comm, queue.stream));
      return;
    }
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

  /// Registers `memory` with ncclCommRegister, which NCCL has since 2.19. Memory that cannot be registered works like
  /// any other memory.
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

  /// Waits for the stream and throws when NCCL reports an error or another rank fails meanwhile. Before it throws it
  /// aborts the communicator, which releases the stream; otherwise destructors that free memory would wait for the
  /// stream.
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
  NcclCommunicator(Handle& handle, Communicator<Space::host>& host, std::function<void(double)> check_peers, int rank,
                   int size)
      : handle_{handle}, host_{host}, check_peers_{std::move(check_peers)}, rank_{rank}, size_{size} {}

  void check_errors() {
    const auto check = [](Handle& handle) {
      ncclResult_t state = ncclSuccess;
      {
        const Handle::Use comm{handle};
        GT_NCCL(ncclCommGetAsyncError(comm, &state));
      }
      check_nccl(state, "a collective");
    };
    check(handle_);
    handle_.for_each_part(check);
  }
  [[nodiscard]] std::size_t ranks() const {
    return static_cast<std::size_t>(size());
  }
  void count(std::uint64_t bytes) {
    traffic_.bytes_sent += bytes;
    traffic_.messages_sent += bytes > 0 ? 1 : 0;
  }
  /// Sends out(r) to every other rank r and receives in(r) from it, in one group; the rank's own part is copied.
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
  int rank_, size_;
  void* registered_ = nullptr;  ///< NCCL's handle for what register_memory was given
};

/// Makes NCCL connect its algorithms when a communicator is created and not when one is first used, which would be part
/// of a measurement. NCCL reads the variable once; a value that the user has set stays.
void connect_at_start() {
  setenv("NCCL_RUNTIME_CONNECT", "0", 0);
}

/// Lets every pair of ranks exchange data and uses NCCL's rings and trees once, so that no measurement pays for setting
/// up connections.
void meet_everybody(NcclCommunicator& communicator, Queue<Space::cuda> queue) {
  const auto each = 4 * static_cast<std::size_t>(communicator.size());
  const cuda::DeviceBuffer out{each};
  const cuda::DeviceBuffer in{each};
  cuda::fill(queue, out.bytes(), 0);
  communicator.all_to_all(queue, out.bytes(), in.bytes());
  communicator.all_reduce_sum(queue, in.bytes(), Dtype::f32, {});
  communicator.await(queue);
  communicator.reset_traffic();
}

/// Runs the body on this thread and the current GPU, and waits for the work that it has enqueued.
void run_rank(NcclCommunicator& communicator, const CudaBody& body) {
  const cuda::Stream stream;
  meet_everybody(communicator, stream.queue());
  body(communicator, stream.queue());
  communicator.await(stream.queue());
}

}  // namespace

std::string nccl_library_version() {
  int version = 0;
  GT_NCCL(ncclGetVersion(&version));
  return fmt::format("NCCL {}.{}.{}", version / 10000, version % 10000 / 100, version % 100);
}

void run_nccl(int gpus, const CudaBody& body, double timeout_seconds) {
  expect_valid(gpus >= 1, "NCCL needs at least one GPU");
  cuda::require_device(gpus - 1, fmt::format("the NCCL communicator with {} rank{}", gpus, gpus == 1 ? "" : "s"));
  // All communicators start in one group, so that NCCL ends all of them when one cannot start; a thread that started
  // its own would wait for ever.
  const auto handles = std::make_unique<Handle[]>(static_cast<std::size_t>(gpus));
  connect_at_start();
  ncclUniqueId id{};
  GT_NCCL(ncclGetUniqueId(&id));
  Group start;
  for (int gpu = 0; gpu < gpus; ++gpu) {
    cuda::set_device(gpu);
    GT_NCCL(ncclCommInitRank(handles[static_cast<std::size_t>(gpu)].address(), gpus, id, gpu));
  }
  start.end();

  RankGroup group{gpus, timeout_seconds};
  const auto abort_all = [&] {
    for (int gpu = 0; gpu < gpus; ++gpu) handles[static_cast<std::size_t>(gpu)].abort();
  };
  run_ranks(
      group,
      [&](int rank) {
        cuda::set_device(rank);
        ThreadsCommunicator host{group, rank};
        NcclCommunicator communicator{handles[static_cast<std::size_t>(rank)], host,
                                      [&group, rank](double waited) { group.check_wait(rank, waited); }};
        run_rank(communicator, body);
      },
      abort_all);
  Group end;  // In one group, because each may wait for the others.
  for (int gpu = 0; gpu < gpus; ++gpu) {
    cuda::set_device(gpu);
    handles[static_cast<std::size_t>(gpu)].destroy();
  }
  end.end();
}

#ifdef GT_WITH_MPI
void run_nccl_mpi(const CudaBody& body, double timeout_seconds) {
  const auto run_process = [&](MpiCommunicator& host) {
    const int gpu = host.rank_on_node();
    cuda::require_device(gpu, fmt::format("rank {} of the NCCL communicator", host.rank()));
    cuda::set_device(gpu);
    connect_at_start();
    ncclUniqueId id{};
    if (host.rank() == 0) GT_NCCL(ncclGetUniqueId(&id));
    host.share(std::as_writable_bytes(std::span{&id, 1}), 0);
    Handle handle;
    // A process that fails takes the whole job with it (run_mpi), so nobody is left waiting inside NCCL.
    {
      const MpiWatch::Call call{mpi_watch(), "ncclCommInitRank"};
      GT_NCCL(ncclCommInitRank(handle.address(), host.size(), id, host.rank()));
    }
    // The watch over the processes judges how long one keeps another waiting.
    std::optional<MpiWatch::Call> call;
    NcclCommunicator communicator{handle, host, [&](double waited) {
                                    if (waited == 0.0) call.reset();
                                    if (waited > 0.0 && !call) call.emplace(mpi_watch(), "NCCL");
                                  }};
    run_rank(communicator, body);
    handle.destroy();
  };
  run_mpi_job(run_process, {.stall = timeout_seconds});
}
#endif

}  // namespace gradtool
