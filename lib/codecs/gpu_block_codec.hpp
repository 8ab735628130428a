#pragma once

#include "kernels/cuda/block_kernels.hpp"
#include "lib/codecs/gpu_codec.hpp"

namespace gradtool {

/// The GPU side of BlockCodec<Format>, for .cu files.
template <class Format>
class GpuBlockCodec final : public BatchedGpuCodec {
 public:
  /// `host` is the codec's host side with the same parameters.
  GpuBlockCodec(std::string_view name, std::unique_ptr<Codec<Space::host>> host, Format format, std::size_t block,
                bool stochastic)
      : BatchedGpuCodec{name, std::move(host)}, format_{format}, block_{block}, stochastic_{stochastic} {}

 private:
  [[nodiscard]] std::size_t payload_bytes(std::size_t n) const override { return layout(n).bytes(); }
  void encode_units(Queue<Space::cuda> queue, std::span<const cuda::Unit> units,
                    const EncodeContext& context) const override {
    cuda::encode_blocks(queue, format_, layout(0), units, stochastic_, context.key);
  }
  void decode_units(Queue<Space::cuda> queue, std::span<const cuda::Unit> units, float weight) const override {
    cuda::decode_add_blocks(queue, format_, layout(0), units, weight);
  }
  void decode_all(Queue<Space::cuda> queue, const cuda::Payloads& batch, float weight, Floats out) const override {
    cuda::decode_add_blocks(queue, format_, layout(out.size()), batch, weight, out.data());
  }
  [[nodiscard]] format::BlockLayout layout(std::size_t n) const { return format::block_layout<Format>(n, block_); }

  Format format_;
  std::size_t block_;
  bool stochastic_;
};

/// The GPU side of the registered codec `name`, whose host side is made of the same parameters; `params` has
/// "rounding".
template <class Format>
[[nodiscard]] std::unique_ptr<Codec<Space::cuda>> make_gpu_block_codec(std::string_view name, const Params& params,
                                                                       std::size_t block, Format format = {}) {
  return std::make_unique<GpuBlockCodec<Format>>(name, find_codec(name).make_host(params, {}), format, block,
                                                 params.is("rounding", "stochastic"));
}

}  // namespace gradtool
