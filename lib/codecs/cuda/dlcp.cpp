#include "kernels/cuda/dlcp.hpp"

#include "lib/codecs/cuda/device_table.hpp"
#include "lib/codecs/cuda/twin.hpp"
#include "lib/codecs/cuda_factories.hpp"
#include "lib/codecs/dlcp_channel.hpp"
#include "lib/codecs/dlcp_packets.hpp"
#include "lib/codecs/dlcp_transport.hpp"
#include "lib/codecs/payload.hpp"

namespace gradtool {
namespace {

using DeviceBytes = View<std::byte, Space::cuda>;

class CudaDlcp final : public CudaTwin {
 public:
  CudaDlcp(const Params& params, const Layout& layout)
      : CudaTwin{"dlcp", params, layout},
        packets_{layout, static_cast<std::size_t>(params.integer("packet")) / 4},
        elements_{layout.elements},
        options_{channel_options(params), params.real("bound"), static_cast<float>(params.real("decay"))},
        tensors_{rows_of(packets_)} {}

  [[nodiscard]] Footprint plan(std::size_t n) const override {
    expects(n == elements_, "codec dlcp works on the units it was made for");
    tensors_.make();
    const std::size_t p = packets_.count();
    return {.payload_bytes = packets_.most_payload_bytes(),
            .scratch_bytes = cuda::dlcp_scratch_bytes(p, packets_.tensors().size()),
            .exact = false};
  }

  void encode(Queue<Space::cuda> queue, View<const float, Space::cuda> gradient, const EncodeContext& context,
              DeviceBytes payload, DeviceBytes scratch) const override {
    send(queue, gradient, context, payload, scratch, {});
  }

  void decode_add(Queue<Space::cuda> queue, View<const std::byte, Space::cuda> payload, float weight,
                  View<float, Space::cuda> out, DeviceBytes scratch) const override {
    const std::size_t p = packets_.count();
    expect_room("dlcp", payload.size(), sizeof(law::ChannelHeader) + law::bitmap_bytes(p) + packets_.bytes(),
                packets_.most_payload_bytes());
    cuda::dlcp_decode_add(queue, packets(), payload, weight, out.data(), scratch);
  }

  [[nodiscard]] std::unique_ptr<Encoder<Space::cuda>> make_encoder(std::size_t n, int ranks,
                                                                   Queue<Space::cuda> queue) const override;

  void send(Queue<Space::cuda> queue, View<const float, Space::cuda> gradient, const EncodeContext& context,
            DeviceBytes payload, DeviceBytes scratch, const cuda::DlcpMemory& memory) const {
    cuda::dlcp_encode(queue, packets(), options_, gradient.data(), context.key,
                      static_cast<std::uint32_t>(context.iteration), memory, payload.data(), scratch);
  }

 private:
  [[nodiscard]] cuda::DlcpPackets packets() const {
    return {tensors_.get(), tensors_.size(), packets_.elements_each(), packets_.count(), packets_.bytes()};
  }
  static std::vector<cuda::DlcpTensor> rows_of(const Packets& packets) {
    std::vector<cuda::DlcpTensor> rows;
    for (const auto& tensor : packets.tensors()) {
      rows.push_back({tensor.first, tensor.elements, tensor.packets, tensor.before, tensor.offset, tensor.layer_class,
                      tensor.back ? 1U : 0U});
    }
    return rows;
  }

  Packets packets_;
  std::size_t elements_;
  cuda::DlcpOptions options_;
  DeviceTable<cuda::DlcpTensor> tensors_;
};

/// Knows each tensor's usual packet, and what has arrived so far.
class CudaDlcpEncoder final : public Encoder<Space::cuda> {
 public:
  CudaDlcpEncoder(const CudaDlcp& codec, std::size_t tensors, Queue<Space::cuda> queue)
      : codec_{codec}, running_{sizeof(law::RunningMedian) * tensors}, delivery_{sizeof(cuda::DlcpDelivery)} {
    CudaDlcpEncoder::reset(queue);
  }

  void encode(Queue<Space::cuda> queue, View<const float, Space::cuda> gradient,
              const SideInputs<Space::cuda>& /*side*/, const EncodeContext& context, DeviceBytes payload,
              DeviceBytes scratch) override {
    codec_.send(queue, gradient, context, payload, scratch,
                {running_.as<law::RunningMedian>().data(), delivery_.as<cuda::DlcpDelivery>().data()});
  }
  void reset(Queue<Space::cuda> queue) override {
    cuda::fill(queue, running_.bytes(), 0);
    cuda::fill(queue, delivery_.bytes(), 0);
  }
  /// Waits for the GPU.
  [[nodiscard]] std::vector<Tally> tallies() const override {
    cuda::DlcpDelivery d{};
    cuda::synchronize_device();
    cuda::copy({}, HostView<std::byte>{reinterpret_cast<std::byte*>(&d), sizeof d}, delivery_.bytes());
    cuda::synchronize({});
    return tallies_of(d);
  }

 private:
  const CudaDlcp& codec_;
  cuda::DeviceBuffer running_, delivery_;
};

std::unique_ptr<Encoder<Space::cuda>> CudaDlcp::make_encoder(std::size_t /*n*/, int /*ranks*/,
                                                             Queue<Space::cuda> queue) const {
  return std::make_unique<CudaDlcpEncoder>(*this, packets_.tensors().size(), queue);
}

}  // namespace

std::unique_ptr<Codec<Space::cuda>> make_cuda_dlcp(const Params& params, const Layout& layout) {
  return std::make_unique<CudaDlcp>(params, layout);
}

}  // namespace gradtool
