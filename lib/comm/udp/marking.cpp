#include "lib/comm/udp/marking.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/float_bits.hpp"

namespace gradtool::udp {
namespace {

constexpr double kLayerClasses = 7.0;
constexpr double kBackThird = 2.0 / 3.0;

/// Mean magnitude of the elements of a packet.
float mean_magnitude(std::span<const std::byte> data, Dtype dtype) {
  const std::size_t n = data.size() / size_of(dtype);
  float sum = 0.0F;
  for (std::size_t i = 0; i < n; ++i) {
    if (dtype == Dtype::f32) {
      float value = 0.0F;
      std::memcpy(&value, data.data() + 4 * i, 4);
      sum += std::fabs(value);
    } else {
      std::uint16_t half = 0;
      std::memcpy(&half, data.data() + 2 * i, 2);
      sum += std::fabs(dtype == Dtype::f16 ? format::f32_from_f16(half) : format::f32_from_bf16(half));
    }
  }
  const float mean = n == 0 ? 0.0F : sum / static_cast<float>(n);
  return std::isnan(mean) ? INFINITY : mean;  // so that magnitudes have an order
}

}  // namespace

TensorPart at_depth(TensorPart part, double depth) {
  part.layer_class = static_cast<std::uint8_t>(std::min(std::floor(kLayerClasses * depth), kLayerClasses - 1.0));
  part.back = depth >= kBackThird;
  return part;
}

Bits important_packets(const Plan& plan, std::span<const std::byte> data, Dtype dtype) {
  Bits important(bit_words(plan.packets()));
  std::vector<float> magnitudes, sorted;
  for (std::size_t t = 0; t < plan.tensors(); ++t) {
    const std::size_t first = plan.first_packet(t);
    const std::size_t count = plan.packets_of(t);
    if (count == 0) continue;
    magnitudes.resize(count);
    for (std::size_t i = 0; i < count; ++i) {
      const Plan::Packet packet = plan.packet(first + i);
      magnitudes[i] = mean_magnitude(data.subspan(packet.offset, packet.bytes), dtype);
    }
    sorted = magnitudes;
    const auto middle = sorted.begin() + static_cast<std::ptrdiff_t>(count / 2);
    std::nth_element(sorted.begin(), middle, sorted.end());
    for (std::size_t i = 0; i < count; ++i) {
      if (plan.tensor(t).back || magnitudes[i] >= *middle) set_bit(important, first + i);
    }
  }
  return important;
}

}  // namespace gradtool::udp
