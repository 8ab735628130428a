#include "lib/codecs/dlcp_transport.hpp"

#include <algorithm>
#include <cmath>

#include "kernels/law/hd.hpp"
#include "lib/codecs/payload.hpp"
#include "lib/core/task_pool.hpp"

namespace gradtool {
namespace {

/// Sum of magnitudes over 16 running sums, the same bits on every processor.
GT_SIMD_CLONES float mean_magnitude(const float* x, std::size_t count) {
  constexpr std::size_t kLanes = law::kPacketLanes;
  std::array<float, kLanes> sum{};
  std::size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (std::size_t j = 0; j < kLanes; ++j) sum[j] += std::fabs(x[i + j]);
  }
  for (std::size_t j = 0; i + j < count; ++j) sum[j] += std::fabs(x[i + j]);
  for (std::size_t half = kLanes / 2; half > 0; half /= 2) {
    for (std::size_t j = 0; j < half; ++j) sum[j] += sum[j + half];
  }
  return law::packet_mean(sum[0], count);
}

void set_bit(std::uint32_t* words, std::size_t i) {
  words[i / 32] |= 1U << i % 32;
}

}  // namespace

/// Important is a packet whose mean magnitude is at least the tensor's usual median, or one of the back layers.
void DlcpTransport::mark(Queue<Space::host> queue, HostView<const float> gradient, const Packets::Tensor& tensor,
                         float* statistic, float* sorted, std::uint8_t* marks, law::RunningMedian* running) const {
  if (tensor.packets == 0) return;
  float* mean = statistic + tensor.before;
  parallel_for(queue, tensor.packets, 1, 64, [&](std::size_t first, std::size_t last) {
    for (std::size_t i = first; i < last; ++i) {
      mean[i] = mean_magnitude(gradient.data() + tensor.first + i * packets_.elements_each(),
                               packets_.elements_in(tensor, i));
    }
  });
  std::copy_n(mean, tensor.packets, sorted);
  float* middle = sorted + tensor.packets / 2;
  std::nth_element(sorted, middle, sorted + tensor.packets);
  const float usual = running != nullptr ? running->usual(*middle) : *middle;
  for (std::size_t i = 0; i < tensor.packets; ++i) marks[tensor.before + i] = tensor.back || mean[i] >= usual ? 1 : 0;
  if (running != nullptr) running->move(*middle, decay_);
}

DlcpSent DlcpTransport::send(Queue<Space::host> queue, HostView<const float> gradient, const law::DrawKey& key,
                             HostView<std::byte> scratch, law::RunningMedian* running, DlcpDelivery& delivery) const {
  const std::size_t p = packets_.count();
  auto* statistic = section<float>(scratch);
  auto* sorted = section<float>(scratch, padded(4 * p));
  auto* marks = section<std::uint8_t>(scratch, 2 * padded(4 * p));
  auto* arrived = section<std::uint32_t>(scratch, 2 * padded(4 * p) + padded(p));
  std::fill_n(arrived, law::bitmap_bytes(2 * p) / 4, 0U);

  LossyChannel channel{channel_, key};
  for (const auto& tensor : packets_.tensors()) {
    mark(queue, gradient, tensor, statistic, sorted, marks, running);
    if (running != nullptr) ++running;
  }
  std::size_t transmissions = p;
  std::size_t resent_bytes = 0;
  for (const auto& tensor : packets_.tensors()) {
    std::size_t missing = 0;
    for (std::size_t i = 0; i < tensor.packets; ++i) {
      const std::size_t bytes = 4 * packets_.elements_in(tensor, i);
      const bool matters = marks[tensor.before + i] != 0;
      const bool lost = channel.loses(tensor.before + i, bytes + sizeof(PacketHeader), matters);
      delivery.sent[matters ? 1 : 0] += bytes;
      if (lost) {
        missing += bytes;
      } else {
        set_bit(arrived, tensor.before + i);
        delivery.arrived[matters ? 1 : 0] += bytes;
      }
    }
    // The receiver says stop when at least 1 - bound of the bytes are there.
    const double tolerated = bound_ * static_cast<double>(4 * tensor.elements);
    for (std::size_t i = 0; static_cast<double>(missing) > tolerated && i < tensor.packets; ++i) {
      if (law::bit_of(arrived, tensor.before + i)) continue;
      const std::size_t bytes = 4 * packets_.elements_in(tensor, i);
      set_bit(arrived, transmissions++);
      marks[tensor.before + i] |= DlcpSent::kResent;
      missing -= bytes;
      resent_bytes += sizeof(PacketHeader) + bytes;
      delivery.resent += bytes;
      delivery.arrived[(marks[tensor.before + i] & DlcpSent::kImportant) != 0 ? 1 : 0] += bytes;
    }
  }
  return {marks, arrived, transmissions, resent_bytes};
}

}  // namespace gradtool
