#include "kernels/cuda/qsgd.hpp"

#include <fmt/format.h>

#include "kernels/cuda/qsgd_elias.hpp"
#include "kernels/law/qsgd.hpp"
#include "lib/codecs/cuda/batched.hpp"
#include "lib/codecs/cuda/twin.hpp"
#include "lib/codecs/cuda_factories.hpp"
#include "lib/codecs/payload.hpp"

namespace gradtool {
namespace {

class CudaQsgd final : public BatchedTwin {
 public:
  explicit CudaQsgd(const Params& params)
      : BatchedTwin{"qsgd", params},
        bucket_{static_cast<std::size_t>(params.integer("bucket"))},
        bits_{static_cast<std::uint32_t>(params.integer("bits"))},
        l2_{params.is("norm", "l2")} {}

  [[nodiscard]] Footprint plan(std::size_t n) const override { return {.payload_bytes = layout(n).bytes()}; }

  void decode_add_all(Queue<Space::cuda> queue, std::span<const View<const std::byte, Space::cuda>> payloads,
                      float weight, View<float, Space::cuda> out,
                      View<std::byte, Space::cuda> /*scratch*/) const override {
    for (const auto& payload : payloads) check_length(payload.size(), out.size());
    cuda::in_batches(payloads, [&](const cuda::Payloads& batch) {
      cuda::qsgd_decode_add(queue, layout(out.size()), batch, weight, out.data());
    });
  }

 private:
  void encode_units(Queue<Space::cuda> queue, std::span<const cuda::Unit> units, const EncodeContext& context,
                    Bytes /*scratch*/) const override {
    cuda::qsgd_encode(queue, layout(0), units, l2_, context.key);
  }
  void decode_units(Queue<Space::cuda> queue, std::span<const cuda::Unit> units, float weight) const override {
    cuda::qsgd_decode_add(queue, layout(0), units, weight);
  }
  void check_length(std::size_t bytes, std::size_t n) const override {
    expect_length("qsgd", bytes, layout(n).bytes());
  }
  [[nodiscard]] bool batches() const override { return !cuda::qsgd_by_pieces(layout(0)); }

  [[nodiscard]] law::QsgdLayout layout(std::size_t n) const { return {n, bucket_, bits_}; }

  std::size_t bucket_;
  std::uint32_t bits_;
  bool l2_;
};

/// With Elias codes of what is not zero.
class CudaQsgdElias final : public CudaTwin {
 public:
  explicit CudaQsgdElias(const Params& params)
      : CudaTwin{"qsgd", params},
        bucket_{static_cast<std::size_t>(params.integer("bucket"))},
        bits_{static_cast<std::uint32_t>(params.integer("bits"))},
        l2_{params.is("norm", "l2")} {}

  [[nodiscard]] Footprint plan(std::size_t n) const override {
    return {.payload_bytes = layout(n).most_bytes(),
            .scratch_bytes = cuda::qsgd_elias_scratch_bytes(layout(n)),
            .exact = false};
  }

  void encode(Queue<Space::cuda> queue, View<const float, Space::cuda> gradient, const EncodeContext& context,
              View<std::byte, Space::cuda> payload, View<std::byte, Space::cuda> scratch) const override {
    cuda::qsgd_elias_encode(queue, layout(gradient.size()), bits_, gradient.data(), l2_, context.key, payload.data(),
                            scratch);
  }

  void decode_add(Queue<Space::cuda> queue, View<const std::byte, Space::cuda> payload, float weight,
                  View<float, Space::cuda> out, View<std::byte, Space::cuda> scratch) const override {
    const law::QsgdStreams at = layout(out.size());
    if (payload.size() < at.streams_offset() || payload.size() > at.most_bytes()) {
      throw Error{Fault::data, fmt::format("qsgd payload: {} bytes, but this many elements make {} to {}",
                                           payload.size(), at.streams_offset(), at.most_bytes())};
    }
    cuda::qsgd_elias_decode_add(queue, at, payload, weight, out.data(), scratch);
  }

 private:
  [[nodiscard]] law::QsgdStreams layout(std::size_t n) const {
    return {n, bucket_, law::Qsgd::with_bits(bits_).levels};
  }

  std::size_t bucket_;
  std::uint32_t bits_;
  bool l2_;
};

}  // namespace

std::unique_ptr<Codec<Space::cuda>> make_cuda_qsgd(const Params& params, const Layout& /*layout*/) {
  if (params.is("code", "elias")) return std::make_unique<CudaQsgdElias>(params);
  return std::make_unique<CudaQsgd>(params);
}

}  // namespace gradtool
