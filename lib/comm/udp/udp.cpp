#include "lib/comm/udp/udp.hpp"

#include <algorithm>

#include "lib/comm/host_sum.hpp"
#include "lib/core/error.hpp"

namespace gradtool::udp {
UdpCommunicator::UdpCommunicator(Engine& engine, const UdpOptions& options)
    : RingCommunicator{engine.rank(), engine.size()}, engine_{engine}, options_{options} {
  out_parts_.resize(static_cast<std::size_t>(size()));
  in_parts_.resize(static_cast<std::size_t>(size()));
}

void UdpCommunicator::barrier(Queue<Space::host> /*queue*/) {
  engine_.meet({});
}

void UdpCommunicator::cut(std::size_t offset, std::size_t bytes, std::vector<TensorPart>& parts) const {
  parts.clear();
  const auto part_of = [this](double tolerated) {
    const double loss = stage() == Stage::summands ? tolerated : stage() == Stage::sums ? options_.loss_sums : 0.0;
    const double important = options_.loss_important < 0.0 ? loss : std::min(loss, options_.loss_important);
    return TensorPart{.loss = loss_of_hop(loss, hops()), .loss_important = loss_of_hop(important, hops())};
  };
  const std::size_t element = size_of(summed_type());
  std::size_t elements = 0;
  for (const SummedTensor& tensor : tensors_) elements += tensor.elements;
  if (stage() == Stage::exact || elements * element != summed_view().size()) {
    // The tensors are not known here, so the stricter bound holds.
    parts.push_back(part_of(options_.loss_back < 0.0 ? options_.loss : std::min(options_.loss, options_.loss_back)));
    parts.back().bytes = bytes;
    return;
  }
  std::size_t begin = 0;
  for (const SummedTensor& tensor : tensors_) {
    const std::size_t end = begin + tensor.elements * element;
    const std::size_t first = std::max(begin, offset);
    const std::size_t last = std::min(end, offset + bytes);
    if (first < last) {
      const bool back = at_depth({}, tensor.depth).back && options_.loss_back >= 0.0;
      parts.push_back(at_depth(part_of(back ? options_.loss_back : options_.loss), tensor.depth));
      parts.back().bytes = last - first;
    }
    begin = end;
  }
}

Bits UdpCommunicator::important_in(std::span<const TensorPart> parts, ConstBytes bytes) const {
  if (stage() == Stage::exact || !options_.marks()) return {};
  return important_packets(Plan{parts, options_.packet}, bytes.span(), summed_type());
}

std::size_t UdpCommunicator::offset_in_view(const std::byte* at) const {
  const std::byte* begin = summed_view().data();
  // Outside of sums the view is of no meaning, and neither is the offset.
  return stage() == Stage::exact || at < begin ? 0 : static_cast<std::size_t>(at - begin);
}

void UdpCommunicator::transfer_many(Queue<Space::host> /*queue*/, std::span<const Outgoing> out,
                                    std::span<const Incoming> in) {
  sendings_.clear();
  receivings_.clear();
  for (std::size_t i = 0; i < out.size(); ++i) {
    cut(out[i].offset, out[i].bytes.size(), out_parts_[i]);
    sendings_.push_back({out[i].to, out[i].bytes.span(), out_parts_[i], important_in(out_parts_[i], out[i].bytes)});
  }
  for (std::size_t i = 0; i < in.size(); ++i) {
    cut(in[i].offset, in[i].bytes.size(), in_parts_[i]);
    receivings_.push_back({in[i].from, in[i].bytes.span(), in_parts_[i]});
  }
  engine_.exchange(sendings_, receivings_);
}

void UdpCommunicator::transfer(Queue<Space::host> queue, int to, ConstBytes out, int from, Bytes in) {
  const Outgoing outgoing{to, out, offset_in_view(out.data())};
  const Incoming incoming{from, in, offset_in_view(in.data())};
  transfer_many(queue, {&outgoing, out.empty() ? 0U : 1U}, {&incoming, in.empty() ? 0U : 1U});
}

void UdpCommunicator::transfer_sum(Queue<Space::host> queue, int to, ConstBytes out, int from, Bytes inout, Dtype dtype,
                                   Bytes scratch) {
  const Bytes arrived = scratch.first(inout.size());
  const Outgoing outgoing{to, out, offset_in_view(out.data())};
  const Incoming incoming{from, arrived, offset_in_view(inout.data())};
  transfer_many(queue, {&outgoing, out.empty() ? 0U : 1U}, {&incoming, arrived.empty() ? 0U : 1U});
  sum_into(queue, inout, arrived, dtype);
}

std::size_t UdpCommunicator::ring_scratch(std::size_t bytes) const {
  return std::min(bytes, bytes / static_cast<std::size_t>(size()) + sizeof(float));
}

void UdpCommunicator::copy_local(Queue<Space::host> queue, Bytes to, ConstBytes from) {
  copy_into(queue, to, from);
}

void UdpCommunicator::sum_local(Queue<Space::host> queue, Bytes sum, ConstBytes addend, Dtype dtype) {
  sum_into(queue, sum, addend, dtype);
}

}  // namespace gradtool::udp
