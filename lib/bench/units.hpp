#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lib/codecs/layout.hpp"
#include "lib/io/gradient_file.hpp"

namespace gradtool {

/// What is reduced in one piece.
struct Granularity {
  enum class Kind : std::uint8_t { tensor, bucket, model };
  Kind kind = Kind::tensor;
  std::uint64_t bucket_bytes = 0;  ///< fp32 bytes; for Kind::bucket

  /// "tensor", "model" or "bucket:25MB". Throws Fault::usage.
  [[nodiscard]] static Granularity parse(const std::string& text);
  [[nodiscard]] const std::string& text() const { return text_; }

 private:
  std::string text_ = "tensor";
};

/// A unit: tensors that lie one behind the other in one buffer.
struct Unit {
  struct Piece {
    std::size_t tensor = 0;  ///< position in the file
    std::size_t first = 0;   ///< where it starts in the unit
    std::size_t elements = 0;
  };
  std::vector<Piece> pieces;
  std::size_t elements = 0;
};

/// Cuts the tensors (positions in the file) into units. Buckets are filled in reverse forward order, as gradients
/// become ready in the backward pass and as PyTorch DDP fills them; a tensor larger than a bucket has one of its own.
[[nodiscard]] std::vector<Unit> make_units(const std::vector<TensorInfo>& tensors,
                                           const std::vector<std::size_t>& chosen, const Granularity& granularity);

/// What codecs are told about a unit.
[[nodiscard]] Layout layout_of(const Unit& unit, const std::vector<TensorInfo>& tensors);

}  // namespace gradtool
