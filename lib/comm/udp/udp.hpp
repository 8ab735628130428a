#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "lib/comm/ring.hpp"
#include "lib/comm/udp/engine.hpp"
#include "lib/comm/udp/marking.hpp"
#include "lib/comm/udp/options.hpp"

namespace gradtool::udp {

/// One rank of a job whose gradients travel over the bounded-loss transport. The collectives are those of
/// RingCommunicator. Elements of sums over ranks may be lost on their way, within the bounds of the options: each
/// transfer of a ring of p ranks loses at most 1 - (1 - loss)^(1/(p-1)) of a tensor, so that a contribution, which
/// crosses up to p - 1 of them, is lost with at most `loss`; what goes to a server or to the owner of a segment crosses
/// one. Everything else arrives whole, also finished sums unless loss_sums is above 0, so that all ranks end with the
/// same bits. Recursive doubling loses nothing, because both sides of a pair need the same bits.
class UdpCommunicator final : public RingCommunicator<Space::host> {
 public:
  /// `engine` outlives this object.
  UdpCommunicator(Engine& engine, const UdpOptions& options);

  [[nodiscard]] std::string_view name() const noexcept override { return "udp"; }
  void describe(std::span<const SummedTensor> tensors) override { tensors_.assign(tensors.begin(), tensors.end()); }
  /// Sums by set_all_reduce's algorithm: there is no library behind this transport that could choose.
  void all_reduce_native(Queue<Space::host> queue, Bytes inout, Dtype dtype, Bytes scratch) override {
    all_reduce_sum(queue, inout, dtype, scratch);
  }
  void barrier(Queue<Space::host> queue) override;
  void agree_max(std::span<double> values) override { engine_.meet(values); }
  [[nodiscard]] const TransportCounts* transport() const noexcept override { return &engine_.counts(); }
  void reset_transport() noexcept override { engine_.reset_counts(); }

 protected:
  void transfer(Queue<Space::host> queue, int to, ConstBytes out, int from, Bytes in) override;
  void transfer_many(Queue<Space::host> queue, std::span<const Outgoing> out, std::span<const Incoming> in) override;
  void transfer_sum(Queue<Space::host> queue, int to, ConstBytes out, int from, Bytes inout, Dtype dtype,
                    Bytes scratch) override;
  /// One ring segment, which holds what arrives until it is added.
  [[nodiscard]] std::size_t ring_scratch(std::size_t bytes) const override;
  void copy_local(Queue<Space::host> queue, Bytes to, ConstBytes from) override;
  void sum_local(Queue<Space::host> queue, Bytes sum, ConstBytes addend, Dtype dtype) override;

 private:
  /// The part of the view that is summed from byte `offset` on, cut at tensors, with what may be lost of each.
  void cut(std::size_t offset, std::size_t bytes, std::vector<TensorPart>& parts) const;
  /// The important packets of summed data, if packets are marked; otherwise none.
  [[nodiscard]] Bits important_in(std::span<const TensorPart> parts, ConstBytes bytes) const;
  [[nodiscard]] std::size_t offset_in_view(const std::byte* at) const;

  Engine& engine_;
  UdpOptions options_;
  std::vector<SummedTensor> tensors_;
  // Kept from call to call, so that only the first ones allocate.
  std::vector<std::vector<TensorPart>> out_parts_, in_parts_;
  std::vector<Engine::Sending> sendings_;
  std::vector<Engine::Receiving> receivings_;
};

}  // namespace gradtool::udp
