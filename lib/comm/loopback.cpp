#include <vector>

#include "kernels/cuda/runtime.hpp"
#include "kernels/vector.hpp"
#include "lib/comm/launch.hpp"
#include "lib/comm/rank_group.hpp"
#include "lib/comm/ring.hpp"

namespace gradtool {
namespace {

/// Two CUDA events for every ordered pair of ranks: one says that the sender's data are ready, the other that the
/// receiver is done with them.
class PairEvents {
 public:
  explicit PairEvents(int ranks)
      : ranks_{ranks}, ready_(static_cast<std::size_t>(ranks * ranks)), done_(ready_.size()) {}
  [[nodiscard]] const cuda::Event& ready(int from, int to) const { return ready_[index(from, to)]; }
  [[nodiscard]] const cuda::Event& done(int from, int to) const { return done_[index(from, to)]; }

 private:
  [[nodiscard]] std::size_t index(int from, int to) const { return static_cast<std::size_t>(from * ranks_ + to); }
  int ranks_;
  std::vector<cuda::Event> ready_, done_;
};

/// One of several ranks on one GPU. The threads meet only to hand over a pointer; the streams copy the data, ordered by
/// events. The host waits for the GPU in `barrier` alone.
class LoopbackCommunicator final : public RingCommunicator<Space::cuda> {
 public:
  LoopbackCommunicator(RankGroup& group, const PairEvents& events, int rank)
      : RingCommunicator{rank, group.size()}, group_{group}, events_{events} {}

  [[nodiscard]] std::string_view name() const noexcept override { return "loopback"; }
  void barrier(Queue<Space::cuda> queue) override {
    cuda::synchronize(queue);
    group_.meet(rank(), {});
  }
  void agree_max(std::span<double> values) override { group_.meet(rank(), values); }

 protected:
  void transfer(Queue<Space::cuda> queue, int to, ConstBytes out, int from, Bytes in) override {
    hand_over(queue, to, out, from, in.size(), [&](ConstBytes arrived) { cuda::copy(queue, in, arrived); });
  }
  void transfer_sum(Queue<Space::cuda> queue, int to, ConstBytes out, int from, Bytes inout, Dtype dtype,
                    Bytes /*scratch*/) override {
    hand_over(queue, to, out, from, inout.size(),
              [&](ConstBytes arrived) { cuda::sum_into(queue, inout, arrived, dtype); });
  }
  /// No scratch is needed, because the sum reads the sender's memory.
  [[nodiscard]] std::size_t ring_scratch(std::size_t /*bytes*/) const override { return 0; }
  void copy_local(Queue<Space::cuda> queue, Bytes to, ConstBytes from) override {
    if (!to.empty() && to.data() != from.data()) cuda::copy(queue, to, from);
  }
  void sum_local(Queue<Space::cuda> queue, Bytes sum, ConstBytes addend, Dtype dtype) override {
    cuda::sum_into(queue, sum, addend, dtype);
  }

 private:
  template <class Use>
  void hand_over(Queue<Space::cuda> queue, int to, ConstBytes out, int from, std::size_t in_size, Use&& use) {
    auto take = [&](const std::byte* data, std::size_t size) {
      events_.ready(from, rank()).hold(queue);
      use(ConstBytes{data, size});
      events_.done(from, rank()).record(queue);
    };
    using Taker = decltype(take);
    if (!out.empty()) events_.ready(rank(), to).record(queue);
    // Only the address of `out` crosses between the threads; nobody reads it on the host.
    group_.exchange(
        rank(), to, {out.data(), out.size()}, from, in_size,
        {[](void* context, const std::byte* data, std::size_t size) { (*static_cast<Taker*>(context))(data, size); },
         &take});
    if (!out.empty()) events_.done(rank(), to).hold(queue);
  }

  RankGroup& group_;
  const PairEvents& events_;
};

}  // namespace

void run_loopback(int ranks, int device, const CudaBody& body, double timeout_seconds) {
  cuda::require_device(device, "the loopback communicator");
  RankGroup group{ranks, timeout_seconds};
  cuda::set_device(device);
  const PairEvents events{ranks};
  run_ranks(group, [&](int rank) {
    cuda::set_device(device);
    const cuda::Stream stream;
    LoopbackCommunicator communicator{group, events, rank};
    body(communicator, stream.queue());
    cuda::synchronize(stream.queue());  // errors of the last kernels surface here, in this rank's name
  });
}

}  // namespace gradtool
