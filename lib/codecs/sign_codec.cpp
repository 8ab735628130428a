#include "lib/codecs/sign_codec.hpp"

#include "kernels/bitpack.hpp"
#include "kernels/float_bits.hpp"
#include "kernels/sums.hpp"
#include "lib/codecs/payload.hpp"

namespace gradtool {
namespace {

/// Adds `value` to each element of out, or -value where its bit is set.
GT_SIMD_CLONES void add_signs(const std::uint32_t* words, std::size_t count, float value, float* out) {
  const std::uint32_t pattern = format::bits_of(value);
  for (; count >= 32; count -= 32, out += 32) {
    const std::uint32_t word = *words++;
    for (std::uint32_t j = 0; j < 32; ++j) out[j] += format::float_of(pattern ^ (word >> j & 1U) << 31);
  }
  for (std::uint32_t j = 0; j < count; ++j) out[j] += format::float_of(pattern ^ (*words >> j & 1U) << 31);
}

}  // namespace

SignCodec::SignCodec(std::string_view name, const Layout& layout, bool scaled)
    : name_{name}, scaled_{scaled}, pieces_{layout, [](std::size_t count) { return format::packed_words(count, 1); }} {}

Footprint SignCodec::plan(std::size_t n) const {
  expects(n == pieces_.elements(), "a codec of signs works on the layout that it was made for");
  return {.payload_bytes = payload_bytes(), .scratch_bytes = scaled_ ? sizeof(double) * pieces_.pieces().size() : 0};
}

void SignCodec::encode(Queue<Space::host> queue, HostView<const float> gradient, const EncodeContext& /*context*/,
                       HostView<std::byte> payload, HostView<std::byte> scratch) const {
  auto* sums = section<double>(scratch);
  auto* signs = section<std::uint32_t>(payload, 4 * means());
  pieces_.each(queue, [&](std::size_t i, const TensorPiece& piece) {
    const float* x = gradient.data() + piece.first;
    host::write_negatives(x, piece.count, signs + piece.word);
    if (scaled_) sums[i] = host::magnitudes_of(x, piece.count);
  });
  auto* mean = section<float>(payload);
  for (std::size_t t = 0; t < means(); ++t) {
    const TensorRange& tensor = pieces_.tensors()[t];
    format::GroupedSum sum;
    for (std::size_t i = tensor.first; i < tensor.last; ++i) sum.add(sums[i]);
    mean[t] = format::stored_mean(sum.value(), tensor.elements);
  }
}

void SignCodec::decode_add(Queue<Space::host> queue, HostView<const std::byte> payload, float weight,
                           HostView<float> out, HostView<std::byte> /*scratch*/) const {
  expect_length(name_, payload.size(), payload_bytes());
  const auto* mean = section<float>(payload);
  const auto* signs = section<std::uint32_t>(payload, 4 * means());
  pieces_.each(queue, [&](std::size_t, const TensorPiece& piece) {
    const float value = scaled_ ? weight * mean[piece.tensor] : weight;
    add_signs(signs + piece.word, piece.count, value, out.data() + piece.first);
  });
}

/// The sum of (|x| - mean)^2 is at most that of x^2, and the mean is at most the largest magnitude.
ErrorBound SignCodec::bound(std::size_t /*n*/) const {
  if (!scaled_) return {};
  return {.nmse = 1.0 + 1e-6, .of_largest = 1.0 + 1e-6};
}

}  // namespace gradtool
