#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/law/dlcp.hpp"
#include "lib/codecs/layout.hpp"

namespace gradtool {

using law::PacketHeader;

/// How a unit is cut into packets: each tensor on its own, the last packet of one short.
class Packets {
 public:
  struct Tensor {
    std::size_t first = 0;  ///< element
    std::size_t elements = 0;
    std::size_t packets = 0;
    std::size_t before = 0;  ///< packets of the tensors before it
    std::size_t offset = 0;  ///< bytes of those, headers included
    std::uint8_t layer_class = 0;
    bool back = false;  ///< in the last third of the model
  };

  Packets(const Layout& layout, std::size_t elements_each) : each_{elements_each} {
    constexpr double kClasses = 7.0;  // eight queues of a switch, one of them for control
    for (const auto& shape : layout.tensors) {
      const std::size_t count = (shape.elements + each_ - 1) / each_;
      tensors_.push_back({shape.first, shape.elements, count, count_, bytes_,
                          static_cast<std::uint8_t>(shape.depth < 1.0 ? shape.depth * kClasses : kClasses - 1.0),
                          shape.depth >= 2.0 / 3.0});
      count_ += count;
      bytes_ += count * sizeof(PacketHeader) + 4 * shape.elements;
    }
  }

  [[nodiscard]] const std::vector<Tensor>& tensors() const { return tensors_; }
  [[nodiscard]] std::size_t count() const { return count_; }
  [[nodiscard]] std::size_t bytes() const { return bytes_; }  ///< of all packets, once
  /// Of a payload in which all of them are sent twice.
  [[nodiscard]] std::size_t most_payload_bytes() const {
    return sizeof(law::ChannelHeader) + law::bitmap_bytes(2 * count_) + 2 * bytes_;
  }
  [[nodiscard]] std::size_t elements_each() const { return each_; }
  [[nodiscard]] std::size_t elements_in(const Tensor& tensor, std::size_t packet) const {
    return packet + 1 < tensor.packets ? each_ : tensor.elements - packet * each_;
  }
  /// Where a packet lies among all of them.
  [[nodiscard]] std::size_t offset(const Tensor& tensor, std::size_t packet) const {
    return tensor.offset + packet * (sizeof(PacketHeader) + 4 * each_);
  }

 private:
  std::size_t each_;
  std::vector<Tensor> tensors_;
  std::size_t count_ = 0;
  std::size_t bytes_ = 0;
};

}  // namespace gradtool
