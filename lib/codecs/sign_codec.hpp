#pragma once

#include <string_view>

#include "lib/codecs/codec.hpp"
#include "lib/codecs/tensor_pieces.hpp"

namespace gradtool {

/// One bit for each element, set where it is negative, and, when `scaled`, the mean magnitude of each tensor. A decoded
/// element is ±mean, or ±1 without. Zero counts as positive.
///
/// Payload: float32 means of the tensors (none when not scaled), then words of signs; every tensor begins at a word.
class SignCodec final : public Codec<Space::host> {
 public:
  SignCodec(std::string_view name, const Layout& layout, bool scaled);

  [[nodiscard]] Footprint plan(std::size_t n) const override;
  void encode(Queue<Space::host> queue, HostView<const float> gradient, const EncodeContext& context,
              HostView<std::byte> payload, HostView<std::byte> scratch) const override;
  void decode_add(Queue<Space::host> queue, HostView<const std::byte> payload, float weight, HostView<float> out,
                  HostView<std::byte> scratch) const override;
  [[nodiscard]] ErrorBound bound(std::size_t n) const override;

  /// Float32 means at the start of a payload, and 32-bit words behind them.
  [[nodiscard]] std::size_t means() const { return scaled_ ? pieces_.tensors() : 0; }
  [[nodiscard]] std::size_t words() const { return pieces_.words(); }

 private:
  std::string_view name_;
  bool scaled_;
  TensorPieces pieces_;
};

}  // namespace gradtool
