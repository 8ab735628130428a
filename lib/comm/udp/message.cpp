#include "lib/comm/udp/message.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <numeric>

#include "lib/core/error.hpp"

namespace gradtool::udp {

Plan::Plan(std::span<const TensorPart> tensors, std::size_t packet_bytes) : packet_bytes_{packet_bytes} {
  expects(packet_bytes >= 4 && packet_bytes <= 65535 && packet_bytes % 4 == 0, "packets hold a multiple of 4 bytes");
  tensors_.reserve(tensors.size());
  for (const TensorPart& part : tensors) {
    const std::size_t packets = (part.bytes + packet_bytes - 1) / packet_bytes;
    tensors_.push_back({part, packets, packets_, bytes_});
    packets_ += packets;
    bytes_ += part.bytes;
    tolerates_ = tolerates_ || part.loss > 0.0;
  }
  expects(packets_ <= 0xffffffffU, "a message has at most 2^32 packets");
}

Plan::Packet Plan::packet(std::size_t index) const {
  // The last tensor that begins at or before the packet; empty tensors begin where their successor does.
  const auto after = std::upper_bound(tensors_.begin(), tensors_.end(), index,
                                      [](std::size_t i, const Tensor& tensor) { return i < tensor.first_packet; });
  const Tensor& tensor = *std::prev(after);
  const std::size_t number = index - tensor.first_packet;
  const std::size_t begin = number * packet_bytes_;
  return {static_cast<std::uint32_t>(std::distance(tensors_.begin(), after) - 1), static_cast<std::uint32_t>(number),
          tensor.offset + begin, static_cast<std::uint16_t>(std::min(packet_bytes_, tensor.part.bytes - begin))};
}

Inbound::Inbound(Plan plan, std::span<std::byte> destination, int from, int to, std::uint64_t message)
    : plan_{std::move(plan)},
      destination_{destination},
      from_{from},
      to_{to},
      message_{message},
      arrived_(bit_words(plan_.packets())),
      missing_packets_{plan_.packets()},
      missing_bytes_{plan_.bytes()} {
  expects(destination.size() == plan_.bytes(), "a message has the size of its destination");
  missing_.reserve(plan_.tensors());
  for (std::size_t t = 0; t < plan_.tensors(); ++t) {
    const std::size_t bytes = plan_.tensor(t).bytes;
    missing_.push_back({bytes, bytes, bytes});
  }
}

Arrival Inbound::take(const PacketHeader& header, std::span<const std::byte> data, const JobKey& key) {
  if (header.from != from_ || header.to != to_ || header.bytes != data.size()) return Arrival::misfit;
  if (header.tensor >= plan_.tensors() || header.packets != plan_.packets_of(header.tensor) ||
      header.packet >= header.packets)
    return Arrival::misfit;
  const std::size_t index = plan_.first_packet(header.tensor) + header.packet;
  const Plan::Packet packet = plan_.packet(index);
  if (packet.bytes != data.size()) return Arrival::misfit;
  if (!is_sealed(header, key, message_, data)) return Arrival::damaged;
  if (test_bit(arrived_, index)) return Arrival::duplicate;
  set_bit(arrived_, index);
  std::memcpy(destination_.data() + packet.offset, data.data(), data.size());
  Missing& missing = missing_[packet.tensor];
  missing.bytes -= data.size();
  if (!knows_important_ || test_bit(important_, index)) missing.important -= data.size();
  missing_bytes_ -= data.size();
  --missing_packets_;
  return Arrival::placed;
}

void Inbound::set_important(std::span<const std::uint64_t> important) {
  if (knows_important_) return;
  knows_important_ = true;
  important_.assign(important.begin(), important.end());
  for (std::size_t t = 0; t < plan_.tensors(); ++t) {
    Missing& missing = missing_[t];
    missing.important = missing.all_important = 0;
    for (std::size_t i = plan_.first_packet(t); i < plan_.first_packet(t) + plan_.packets_of(t); ++i) {
      if (!test_bit(important_, i)) continue;
      const std::size_t bytes = plan_.packet(i).bytes;
      missing.all_important += bytes;
      if (!test_bit(arrived_, i)) missing.important += bytes;
    }
  }
}

bool Inbound::satisfied() const {
  if (complete()) return true;
  if (!plan_.tolerates()) return false;
  for (std::size_t t = 0; t < plan_.tensors(); ++t) {
    const TensorPart& part = plan_.tensor(t);
    const auto most = [](double share, std::size_t bytes) { return share * static_cast<double>(bytes); };
    if (static_cast<double>(missing_[t].bytes) > most(part.loss, part.bytes)) return false;
    // The important packets have no further limit if one bound serves both classes.
    if (part.loss_important<part.loss&& static_cast<double>(missing_[t].important)> most(part.loss_important,
                                                                                         missing_[t].all_important))
      return false;
  }
  return true;
}

double Inbound::least_delivered() const {
  double least = 1.0;
  for (std::size_t t = 0; t < plan_.tensors(); ++t) {
    if (plan_.tensor(t).bytes > 0)
      least =
          std::min(least, 1.0 - static_cast<double>(missing_[t].bytes) / static_cast<double>(plan_.tensor(t).bytes));
  }
  return least;
}

void Inbound::fill_missing() {
  if (complete()) return;
  for (std::size_t word = 0; word < arrived_.size(); ++word) {
    for (std::uint64_t absent = ~arrived_[word]; absent != 0; absent &= absent - 1) {
      const std::size_t index = 64 * word + static_cast<std::size_t>(std::countr_zero(absent));
      if (index >= plan_.packets()) return;
      const Plan::Packet packet = plan_.packet(index);
      std::memset(destination_.data() + packet.offset, 0, packet.bytes);
    }
  }
}

Outbound::Outbound(Plan plan, std::span<const std::byte> data, int from, int to, std::uint64_t message, Bits important)
    : plan_{std::move(plan)},
      data_{data},
      from_{from},
      to_{to},
      message_{message},
      important_{std::move(important)},
      pass_(plan_.packets()) {
  expects(data.size() == plan_.bytes(), "a message has the size of its data");
  important_.resize(bit_words(plan_.packets()), important_.empty() && !plan_.tolerates() ? ~std::uint64_t{0} : 0);
  std::iota(pass_.begin(), pass_.end(), std::uint32_t{0});
}

std::span<const std::byte> Outbound::data_of(std::size_t packet) const {
  const Plan::Packet place = plan_.packet(packet);
  return data_.subspan(place.offset, place.bytes);
}

std::uint8_t Outbound::service_of(std::size_t packet) const {
  return type_of_service(plan_.tensor(plan_.packet(packet).tensor).layer_class, test_bit(important_, packet));
}

PacketHeader Outbound::take(const JobKey& key, std::uint32_t now_us) {
  const std::size_t index = pass_[next_++];
  const Plan::Packet packet = plan_.packet(index);
  PacketHeader header;
  header.message = static_cast<std::uint32_t>(message_);
  header.tensor = packet.tensor;
  header.packet = packet.number;
  header.bytes = packet.bytes;
  header.layer_class = plan_.tensor(packet.tensor).layer_class;
  header.flags = static_cast<std::uint8_t>((test_bit(important_, index) ? PacketHeader::kImportant : 0) |
                                           (passes_ > 1 ? PacketHeader::kRetransmitted : 0));
  header.packets = static_cast<std::uint32_t>(plan_.packets_of(packet.tensor));
  header.from = static_cast<std::uint16_t>(from_);
  header.to = static_cast<std::uint16_t>(to_);
  header.transmission = transmissions_++;
  header.sent_us = now_us;
  seal(header, key, message_, data_of(index));
  return header;
}

void Outbound::repeat_missing(std::span<const std::uint64_t> arrived) {
  pass_.clear();
  next_ = 0;
  ++passes_;
  for (std::size_t i = 0; i < plan_.packets(); ++i) {
    if (!test_bit(arrived, i)) pass_.push_back(static_cast<std::uint32_t>(i));
  }
}

double loss_of_hop(double loss, int hops) {
  return hops <= 1 ? loss : -std::expm1(std::log1p(-std::min(loss, 1.0)) / hops);
}

}  // namespace gradtool::udp
