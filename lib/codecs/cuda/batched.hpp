#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>

#include "kernels/cuda/units.hpp"
#include "lib/codecs/cuda/twin.hpp"

namespace gradtool {

/// A codec whose kernels take many tensors in one launch: it says how for a batch, and one tensor is a batch of one.
class BatchedTwin : public CudaTwin {
 public:
  using Bytes = View<std::byte, Space::cuda>;
  using ConstBytes = View<const std::byte, Space::cuda>;
  using Floats = View<float, Space::cuda>;
  using ConstFloats = View<const float, Space::cuda>;

  void encode(Queue<Space::cuda> queue, ConstFloats gradient, const EncodeContext& context, Bytes payload,
              Bytes scratch) const final {
    const cuda::Unit unit{gradient.data(), payload.data(), gradient.size()};
    encode_units(queue, {&unit, 1}, context, scratch);
  }
  void encode_each(Queue<Space::cuda> queue, std::span<const ConstFloats> gradients, const EncodeContext& context,
                   std::span<const Bytes> payloads, Bytes scratch) const final {
    if (!batches()) return CudaTwin::encode_each(queue, gradients, context, payloads, scratch);
    EncodeContext own = context;
    std::array<cuda::Unit, cuda::kMostUnits> units;
    for (std::size_t first = 0; first < gradients.size(); first += units.size()) {
      const std::size_t count = std::min(units.size(), gradients.size() - first);
      for (std::size_t i = 0; i < count; ++i)
        units[i] = {gradients[first + i].data(), payloads[first + i].data(), gradients[first + i].size()};
      encode_units(queue, {units.data(), count}, own, scratch);
      own.key.tensor += static_cast<std::uint32_t>(count);
    }
  }
  void decode_add(Queue<Space::cuda> queue, ConstBytes payload, float weight, Floats out,
                  Bytes /*scratch*/) const final {
    check_length(payload.size(), out.size());
    const cuda::Unit unit{payload.data(), out.data(), out.size()};
    decode_units(queue, {&unit, 1}, weight);
  }
  void decode_add_each(Queue<Space::cuda> queue, std::span<const ConstBytes> payloads, float weight,
                       std::span<const Floats> outs, Bytes /*scratch*/) const final {
    std::array<cuda::Unit, cuda::kMostUnits> units;
    for (std::size_t first = 0; first < payloads.size(); first += units.size()) {
      const std::size_t count = std::min(units.size(), payloads.size() - first);
      for (std::size_t i = 0; i < count; ++i) {
        check_length(payloads[first + i].size(), outs[first + i].size());
        units[i] = {payloads[first + i].data(), outs[first + i].data(), outs[first + i].size()};
      }
      decode_units(queue, {units.data(), count}, weight);
    }
  }

 protected:
  using CudaTwin::CudaTwin;

  /// Encodes the units, with draws as of tensors context.key.tensor, tensor + 1, ... One unit unless batches().
  virtual void encode_units(Queue<Space::cuda> queue, std::span<const cuda::Unit> units, const EncodeContext& context,
                            Bytes scratch) const = 0;
  virtual void decode_units(Queue<Space::cuda> queue, std::span<const cuda::Unit> units, float weight) const = 0;
  /// Throws Fault::data for a payload that is not as long as n elements make it.
  virtual void check_length(std::size_t bytes, std::size_t n) const = 0;
  /// False where encoding takes scratch for each unit.
  [[nodiscard]] virtual bool batches() const { return true; }
};

}  // namespace gradtool
