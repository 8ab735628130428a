#include "lib/comm/threads.hpp"

#include "lib/comm/host_sum.hpp"
#include "lib/comm/launch.hpp"

namespace gradtool {
namespace {

/// Wraps a callable as RankGroup::Take. The callable must live as long as the exchange.
template <class F>
RankGroup::Take take_with(F& function) {
  return {[](void* context, const std::byte* data, std::size_t size) { (*static_cast<F*>(context))(data, size); },
          &function};
}

}  // namespace

void ThreadsCommunicator::transfer(Queue<Space::host> queue, int to, ConstBytes out, int from, Bytes in) {
  auto take = [&](const std::byte* data, std::size_t size) { copy_into(queue, in, {data, size}); };
  group_.exchange(rank(), to, out.span(), from, in.size(), take_with(take));
}

void ThreadsCommunicator::transfer_sum(Queue<Space::host> queue, int to, ConstBytes out, int from, Bytes inout,
                                       Dtype dtype, Bytes /*scratch*/) {
  auto take = [&](const std::byte* data, std::size_t size) { sum_into(queue, inout, {data, size}, dtype); };
  group_.exchange(rank(), to, out.span(), from, inout.size(), take_with(take));
}

void ThreadsCommunicator::copy_local(Queue<Space::host> queue, Bytes to, ConstBytes from) {
  copy_into(queue, to, from);
}

void ThreadsCommunicator::sum_local(Queue<Space::host> queue, Bytes sum, ConstBytes addend, Dtype dtype) {
  sum_into(queue, sum, addend, dtype);
}

void ThreadsCommunicator::barrier(Queue<Space::host> /*queue*/) {
  group_.meet(rank(), {});
}

void ThreadsCommunicator::agree_max(std::span<double> values) {
  group_.meet(rank(), values);
}

void run_threads(int ranks, const HostBody& body, double timeout_seconds) {
  RankGroup group{ranks, timeout_seconds};
  run_ranks(group, [&](int rank) {
    ThreadsCommunicator communicator{group, rank};
    body(communicator);
  });
}

}  // namespace gradtool
