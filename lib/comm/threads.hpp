#pragma once

#include "lib/comm/rank_group.hpp"
#include "lib/comm/ring.hpp"

namespace gradtool {

/// One rank of a group of threads. The receiver reads straight from the sender's memory, so data are copied once and
/// the ring needs no scratch.
class ThreadsCommunicator final : public RingCommunicator<Space::host> {
 public:
  /// `group` must outlive the communicator.
  ThreadsCommunicator(RankGroup& group, int rank) : RingCommunicator{rank, group.size()}, group_{group} {}

  [[nodiscard]] std::string_view name() const noexcept override { return "threads"; }
  void barrier(Queue<Space::host> queue) override;
  void agree_max(std::span<double> values) override;

 protected:
  void transfer(Queue<Space::host> queue, int to, ConstBytes out, int from, Bytes in) override;
  void transfer_sum(Queue<Space::host> queue, int to, ConstBytes out, int from, Bytes inout, Dtype dtype,
                    Bytes scratch) override;
  [[nodiscard]] std::size_t ring_scratch(std::size_t /*bytes*/) const override { return 0; }
  void copy_local(Queue<Space::host> queue, Bytes to, ConstBytes from) override;
  void sum_local(Queue<Space::host> queue, Bytes sum, ConstBytes addend, Dtype dtype) override;

 private:
  RankGroup& group_;
};

}  // namespace gradtool
