#include "kernels/law/hd.hpp"
#include "lib/codecs/payload.hpp"
#include "lib/codecs/strom_forms.hpp"
#include "lib/core/task_pool.hpp"

namespace gradtool {
namespace {

using law::Strom;

constexpr std::size_t kCodesPerWord = Strom::kCodesPerWord;

GT_SIMD_CLONES void pack_codes(const float* x, std::size_t count, Strom law, std::uint32_t* words) {
  std::size_t at = 0;
  for (; at + kCodesPerWord <= count; at += kCodesPerWord) {
    std::uint32_t word = 0;
    for (std::uint32_t j = 0; j < kCodesPerWord; ++j) word |= law.code(x[at + j]) << 2 * j;
    *words++ = word;
  }
  if (at == count) return;
  *words = 0;
  for (std::uint32_t j = 0; at + j < count; ++j) *words |= law.code(x[at + j]) << 2 * j;
}

GT_SIMD_CLONES void add_codes(const std::uint32_t* words, std::size_t count, float tau, float* out) {
  for (std::size_t at = 0; at < count; at += kCodesPerWord, ++words) {
    const std::uint32_t word = *words;
    if (word == 0) continue;
    if (at + kCodesPerWord <= count) {
      for (std::uint32_t j = 0; j < kCodesPerWord; ++j) out[at + j] += Strom::value_of(word >> 2 * j & 3u, tau);
    } else {
      for (std::uint32_t j = 0; at + j < count; ++j) out[at + j] += Strom::value_of(word >> 2 * j & 3u, tau);
    }
  }
}

class DenseStrom final : public Codec<Space::host> {
 public:
  explicit DenseStrom(Strom law) : law_{law} {}

  [[nodiscard]] Footprint plan(std::size_t n) const override { return {.payload_bytes = bytes(n)}; }
  void encode(Queue<Space::host> queue, HostView<const float> gradient, const EncodeContext& /*context*/,
              HostView<std::byte> payload, HostView<std::byte> /*scratch*/) const override {
    auto* words = section<std::uint32_t>(payload);
    parallel_for(queue, gradient.size(), 64, 1 << 14, [&](std::size_t first, std::size_t last) {
      pack_codes(gradient.data() + first, last - first, law_, words + first / kCodesPerWord);
    });
  }
  void decode_add(Queue<Space::host> queue, HostView<const std::byte> payload, float weight, HostView<float> out,
                  HostView<std::byte> /*scratch*/) const override {
    expect_length("strom", payload.size(), bytes(out.size()));
    const auto* words = section<std::uint32_t>(payload);
    parallel_for(queue, out.size(), 64, 1 << 14, [&](std::size_t first, std::size_t last) {
      add_codes(words + first / kCodesPerWord, last - first, weight * law_.tau, out.data() + first);
    });
  }
  [[nodiscard]] ErrorBound bound(std::size_t /*n*/) const override { return {.nmse = 1.0 + 1e-6, .of_largest = 1.0}; }

 private:
  static std::size_t bytes(std::size_t n) { return 4 * ((n + kCodesPerWord - 1) / kCodesPerWord); }

  Strom law_;
};

}  // namespace

std::unique_ptr<Codec<Space::host>> make_dense_strom(law::Strom law) {
  return std::make_unique<DenseStrom>(law);
}

}  // namespace gradtool
