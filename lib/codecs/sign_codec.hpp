#pragma once

#include <memory>
#include <string_view>

#include "lib/codecs/codec.hpp"
#include "lib/codecs/params.hpp"
#include "lib/codecs/tensor_pieces.hpp"

namespace gradtool {

/// Sends one bit for each element, set where it is below zero, and, when `scaled`, the mean magnitude of each tensor.
/// An element is decoded as ±mean of its tensor, or as ±1 when not scaled. Zero counts as positive.
///
/// Payload: float32 means of the tensors (none when not scaled), then words of signs; the signs of every tensor begin
/// at a word.
class SignCodec final : public Codec<Space::host> {
 public:
  SignCodec(std::string_view name, const Layout& layout, bool scaled);

  [[nodiscard]] Footprint plan(std::size_t n) const override;
  void encode(Queue<Space::host> queue, HostView<const float> gradient, const EncodeContext& context,
              HostView<std::byte> payload, HostView<std::byte> scratch) const override;
  void decode_add(Queue<Space::host> queue, HostView<const std::byte> payload, float weight, HostView<float> out,
                  HostView<std::byte> scratch) const override;
  [[nodiscard]] ErrorBound bound(std::size_t n) const override;

 private:
  /// Means at the start of a payload.
  [[nodiscard]] std::size_t means() const { return scaled_ ? pieces_.tensors().size() : 0; }
  [[nodiscard]] std::size_t payload_bytes() const { return 4 * (means() + pieces_.words()); }

  std::string_view name_;
  bool scaled_;
  TensorPieces pieces_;
};

/// The GPU side of SignCodec, for the registered codec `name`.
[[nodiscard]] std::unique_ptr<Codec<Space::cuda>> make_gpu_sign_codec(std::string_view name, const Params& params,
                                                                      const Layout& layout, bool scaled);

}  // namespace gradtool
