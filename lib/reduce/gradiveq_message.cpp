#include "lib/reduce/gradiveq_message.hpp"

namespace gradtool::gradiveq {

Message::Message(std::span<const Layer> layers, std::size_t n) : coefficients_at_(layers.size(), 0) {
  std::size_t at = 0;
  for (std::size_t l = 0; l < layers.size(); ++l) {
    const Layer& layer = layers[l];
    if (layer.first > at) pieces_.push_back({.first = at, .count = layer.first - at});
    const std::size_t elements = layer.filters * layer.taps;
    pieces_.push_back({.first = layer.first, .count = elements, .layer = &layer, .index = l});
    at = layer.first + elements;
  }
  if (at < n) pieces_.push_back({.first = at, .count = n - at});
  ranges_.reserve(pieces_.size());
}

std::vector<law::TapRange> Message::every_range() const {
  std::vector<law::TapRange> ranges;
  for (const Piece& piece : pieces_) {
    ranges.push_back({.first = piece.first, .filters = piece.count});
    if (piece.layer != nullptr) ranges.push_back(piece.layer->rest_range(0));
  }
  return ranges;
}

void Message::leave_slices() {
  ranges_.clear();
  floats_ = 0;
  for (const Piece& piece : pieces_) {
    if (piece.layer == nullptr)
      as_it_is(piece);
    else
      rest_of(*piece.layer);
  }
}

void Message::compress(std::span<const std::uint64_t> components) {
  ranges_.clear();
  floats_ = 0;
  for (const Piece& piece : pieces_) {
    if (piece.layer == nullptr || components[piece.index] == 0) {
      as_it_is(piece);
      continue;
    }
    coefficients_at_[piece.index] = floats_;
    floats_ += piece.layer->slices * components[piece.index];
    rest_of(*piece.layer);
  }
}

void Message::as_it_is(const Piece& piece) {
  ranges_.push_back({.first = piece.first, .filters = piece.count, .at = floats_});
  floats_ += piece.count;
}

void Message::rest_of(const Layer& layer) {
  if (layer.rest() > 0) ranges_.push_back(layer.rest_range(floats_));
  floats_ += layer.rest();
}

}  // namespace gradtool::gradiveq
