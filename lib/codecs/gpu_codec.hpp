#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/cuda/payloads.hpp"
#include "kernels/cuda/runtime.hpp"
#include "kernels/cuda/units.hpp"
#include "lib/codecs/payload.hpp"
#include "lib/codecs/registry.hpp"

namespace gradtool {

/// The GPU side of a codec. What a codec promises does not depend on where it runs, so its host side answers for both.
class GpuCodec : public Codec<Space::cuda> {
 public:
  using Bytes = View<std::byte, Space::cuda>;
  using ConstBytes = View<const std::byte, Space::cuda>;
  using Floats = View<float, Space::cuda>;
  using ConstFloats = View<const float, Space::cuda>;

  [[nodiscard]] ErrorBound bound(std::size_t n) const final { return host_->bound(n); }
  [[nodiscard]] std::size_t values_sent(std::size_t n) const final { return host_->values_sent(n); }
  /// Copies a payload that states its own size to the host, which waits for the GPU. The view may be longer than the
  /// payload, as that of decode_add.
  [[nodiscard]] std::size_t values_in(ConstBytes payload, std::size_t n) const final {
    if (this->plan(n).exact || payload.empty()) return values_sent(n);
    std::vector<std::byte> bytes(payload.size());
    cuda::synchronize_device();
    cuda::copy({}, HostView<std::byte>{bytes}, payload);
    cuda::synchronize({});
    std::uint64_t stated = 0;
    std::memcpy(&stated, bytes.data(), sizeof stated);
    expects(stated <= bytes.size(), "a payload that was just written lies in its view");
    return host_->values_in(HostView<const std::byte>{bytes.data(), static_cast<std::size_t>(stated)}, n);
  }

 protected:
  /// `name` is that of a registered codec, whose host side is made with the same parameters.
  GpuCodec(std::string_view name, const Params& params, const Layout& layout = {})
      : host_{find_codec(name).make_host(params, layout)} {}
  explicit GpuCodec(std::unique_ptr<Codec<Space::host>> host) : host_{std::move(host)} {}

 private:
  std::unique_ptr<Codec<Space::host>> host_;
};

/// A GPU codec whose kernels work on many tensors in one launch (docs/adr/0013-batches-of-tensors.md). A method says
/// how a batch is encoded and decoded; one tensor is a batch of one.
class BatchedGpuCodec : public GpuCodec {
 public:
  void encode(Queue<Space::cuda> queue, ConstFloats gradient, const EncodeContext& context, Bytes payload,
              Bytes /*scratch*/) const final {
    const cuda::Unit unit{gradient.data(), payload.data(), gradient.size()};
    encode_units(queue, {&unit, 1}, context);
  }
  void encode_each(Queue<Space::cuda> queue, std::span<const ConstFloats> gradients, const EncodeContext& context,
                   std::span<const Bytes> payloads, Bytes /*scratch*/) const final {
    EncodeContext own = context;
    each_batch(gradients.size(), [&](std::size_t first, std::span<cuda::Unit> units) {
      for (std::size_t i = 0; i < units.size(); ++i)
        units[i] = {gradients[first + i].data(), payloads[first + i].data(), gradients[first + i].size()};
      encode_units(queue, units, own);
      own.key.tensor += static_cast<std::uint32_t>(units.size());
    });
  }
  void decode_add(Queue<Space::cuda> queue, ConstBytes payload, float weight, Floats out,
                  Bytes /*scratch*/) const final {
    check_length(payload.size(), out.size());
    const cuda::Unit unit{payload.data(), out.data(), out.size()};
    decode_units(queue, {&unit, 1}, weight);
  }
  void decode_add_each(Queue<Space::cuda> queue, std::span<const ConstBytes> payloads, float weight,
                       std::span<const Floats> outs, Bytes /*scratch*/) const final {
    each_batch(payloads.size(), [&](std::size_t first, std::span<cuda::Unit> units) {
      for (std::size_t i = 0; i < units.size(); ++i) {
        check_length(payloads[first + i].size(), outs[first + i].size());
        units[i] = {payloads[first + i].data(), outs[first + i].data(), outs[first + i].size()};
      }
      decode_units(queue, units, weight);
    });
  }
  void decode_add_all(Queue<Space::cuda> queue, std::span<const ConstBytes> payloads, float weight, Floats out,
                      Bytes /*scratch*/) const final {
    for (const auto& payload : payloads) check_length(payload.size(), out.size());
    cuda::in_batches(payloads, [&](const cuda::Payloads& batch) { decode_all(queue, batch, weight, out); });
  }

  [[nodiscard]] Footprint plan(std::size_t n) const final { return {.payload_bytes = payload_bytes(n)}; }

 protected:
  BatchedGpuCodec(std::string_view name, const Params& params) : GpuCodec{name, params}, name_{name} {}
  BatchedGpuCodec(std::string_view name, std::unique_ptr<Codec<Space::host>> host)
      : GpuCodec{std::move(host)}, name_{name} {}

  /// The exact length of the payload of n elements.
  [[nodiscard]] virtual std::size_t payload_bytes(std::size_t n) const = 0;
  /// Encodes the units' gradients (`from`) into their payloads (`to`). Unit i draws as tensor context.key.tensor + i.
  virtual void encode_units(Queue<Space::cuda> queue, std::span<const cuda::Unit> units,
                            const EncodeContext& context) const = 0;
  /// to[i] += weight * decoded from[i] for every unit; the payloads have their lengths.
  virtual void decode_units(Queue<Space::cuda> queue, std::span<const cuda::Unit> units, float weight) const = 0;
  /// out[i] += weight * decoded for every payload of the batch. The default decodes them one after the other.
  virtual void decode_all(Queue<Space::cuda> queue, const cuda::Payloads& batch, float weight, Floats out) const {
    for (unsigned i = 0; i < batch.count; ++i) {
      const cuda::Unit unit{batch.at[i], out.data(), out.size()};
      decode_units(queue, {&unit, 1}, weight);
    }
  }

 private:
  void check_length(std::size_t bytes, std::size_t n) const { expect_length(name_, bytes, payload_bytes(n)); }

  /// body(first, units) for `count` tensors, as many at a time as one launch takes.
  template <class Body>
  static void each_batch(std::size_t count, const Body& body) {
    std::array<cuda::Unit, cuda::kMostUnits> units;
    for (std::size_t first = 0; first < count; first += units.size())
      body(first, std::span{units}.first(std::min(units.size(), count - first)));
  }

  std::string_view name_;
};

/// A part of a payload or scratch view as an array of T; `offset` keeps T's alignment.
template <class T>
[[nodiscard]] View<T, Space::cuda> elements(View<std::byte, Space::cuda> bytes, std::size_t offset, std::size_t count) {
  return {reinterpret_cast<T*>(bytes.data() + offset), count};
}
template <class T>
[[nodiscard]] View<const T, Space::cuda> elements(View<const std::byte, Space::cuda> bytes, std::size_t offset,
                                                  std::size_t count) {
  return {reinterpret_cast<const T*>(bytes.data() + offset), count};
}

}  // namespace gradtool
