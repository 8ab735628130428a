#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "lib/reduce/gradiveq_layers.hpp"

namespace gradtool::gradiveq {

/// What lies where in a message: the coefficients of layers that are compressed, and everything else as it is, in the
/// order of the gradient.
class Message {
 public:
  /// Of a gradient of n elements.
  Message(std::span<const Layer> layers, std::size_t n);

  /// Every range that any message sends as it is.
  [[nodiscard]] std::vector<law::TapRange> every_range() const;
  /// The ranges of a message without slices, for sampling steps, and how many floats they have.
  void leave_slices();
  /// Those of a compressed step: components[l] coefficients for a slice, and layers without any as they are. Allocates
  /// nothing.
  void compress(std::span<const std::uint64_t> components);

  [[nodiscard]] std::span<const law::TapRange> ranges() const { return ranges_; }
  [[nodiscard]] std::size_t floats() const { return floats_; }
  /// Where a layer's coefficients lie.
  [[nodiscard]] std::size_t coefficients_at(std::size_t layer) const { return coefficients_at_[layer]; }

 private:
  /// A stretch of the gradient: tensors that are never compressed, or one layer.
  struct Piece {
    std::size_t first = 0;
    std::size_t count = 0;
    const Layer* layer = nullptr;
    std::size_t index = 0;  ///< of the layer
  };
  void as_it_is(const Piece& piece);
  void rest_of(const Layer& layer);

  std::vector<Piece> pieces_;
  std::vector<law::TapRange> ranges_;
  std::vector<std::size_t> coefficients_at_;
  std::size_t floats_ = 0;
};

}  // namespace gradtool::gradiveq
