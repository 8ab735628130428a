#include <algorithm>
#include <array>
#include <memory>
#include <string>
#include <vector>

#include "apps/microbench/device_timer.hpp"
#include "apps/microbench/microbench.hpp"
#include "kernels/cuda/runtime.hpp"
#include "lib/bench/copy_rate.hpp"
#include "lib/core/error.hpp"

namespace gradtool {
namespace {

using DeviceBytes = View<std::byte, Space::cuda>;

/// Inputs and the output are shared by all codecs.
struct Gradients {
  explicit Gradients(std::size_t elements) : n{elements}, out{4 * elements} {
    for (std::size_t t = 0; t < inputs.size(); ++t) {
      const Feed feed = feed_of(t);
      fill_with(feed.gradient, inputs[t]);
    }
    cuda::fill(stream.queue(), out.bytes(), 0);
    cuda::synchronize(stream.queue());
  }
  /// Synthetic values of a few million elements, over and over: more would take the host longer than the GPU.
  [[nodiscard]] Feed feed_of(std::size_t t) const {
    return synthetic_feed(std::min<std::size_t>(n, 4U << 20), static_cast<std::uint32_t>(t));
  }
  void fill_with(const std::vector<float>& values, cuda::DeviceBuffer& buffer) const {
    buffer = cuda::DeviceBuffer{4 * n};
    for (std::size_t first = 0; first < n; first += values.size()) {
      const std::size_t count = std::min(values.size(), n - first);
      cuda::copy(stream.queue(), buffer.bytes().part(4 * first, 4 * count),
                 as_bytes(HostView<const float>{values.data(), count}));
      cuda::synchronize(stream.queue());
    }
  }

  std::size_t n;
  cuda::Stream stream;
  DeviceTimer timer{stream.queue()};
  std::array<cuda::DeviceBuffer, 2> inputs;
  cuda::DeviceBuffer out;
};

/// One codec with its buffers, shared by its encode and its decode benchmark. Methods with a memory have made some
/// steps when they are measured.
struct DeviceSetup {
  DeviceSetup(const CodecSpec& spec, Gradients& all)
      : gradients{all},
        codec{spec.descriptor->gpu.codec(spec.params, Layout::flat(all.n))},
        encoder{codec->make_encoder(all.n, 1, queue())},
        plan{codec->plan(all.n)},
        payload{plan.payload_bytes},
        scratch{plan.scratch_bytes} {
    for (std::size_t t = 0; encoder && spec.descriptor->needs_second_moment && t < second_moments.size(); ++t)
      gradients.fill_with(gradients.feed_of(t).second_moment, second_moments[t]);
    for (int i = 0; i < (encoder ? 8 : 1); ++i) encode();
    bytes();
  }
  void encode() {
    const std::size_t t = turn % gradients.inputs.size();
    const EncodeContext context{.key = {.step = static_cast<std::uint32_t>(turn)}};
    const auto gradient = gradients.inputs[t].as<const float>();
    ++turn;
    if (encoder == nullptr) return codec->encode(queue(), gradient, context, payload.bytes(), scratch.bytes());
    const SideInputs<Space::cuda> side{.second_moment = second_moments[t].as<const float>()};
    encoder->encode(queue(), gradient, side, context, payload.bytes(), scratch.bytes());
  }
  /// The payload of the last encode.
  void decode() {
    codec->decode_add(queue(), payload.bytes().first(size), 1.0F, gradients.out.as<float>(), scratch.bytes());
  }
  /// Size of the last payload. Waits for it.
  std::size_t bytes() {
    size = plan.payload_bytes;
    if (plan.exact) return size;
    std::uint64_t stated = 0;
    cuda::copy(queue(), as_writable_bytes(HostView<std::uint64_t>{&stated, 1}), payload.bytes().first(8));
    cuda::synchronize(queue());
    return size = static_cast<std::size_t>(stated);
  }
  [[nodiscard]] Queue<Space::cuda> queue() const { return gradients.stream.queue(); }

  Gradients& gradients;
  std::unique_ptr<Codec<Space::cuda>> codec;
  std::unique_ptr<Encoder<Space::cuda>> encoder;
  Footprint plan;
  cuda::DeviceBuffer payload, scratch;
  std::array<cuda::DeviceBuffer, 2> second_moments;
  std::size_t turn = 0, size = 0;
};

/// The codec that is measured: one at a time has buffers.
class Current {
 public:
  DeviceSetup& of(const CodecSpec& spec, Gradients& gradients) {
    const std::string name = spec.name() + spec.params_text();
    if (setup_ == nullptr || name != name_) {
      setup_ = nullptr;
      setup_ = std::make_unique<DeviceSetup>(spec, gradients);
      name_ = name;
    }
    return *setup_;
  }

 private:
  std::unique_ptr<DeviceSetup> setup_;
  std::string name_;
};

/// `traffic`: bytes of memory that an execution moves at least, 0: not known.
void measure(benchmark::State& state, DeviceSetup& setup, double traffic, double copy_rate,
             const std::function<void()>& work) {
  const double raw = 4.0 * static_cast<double>(setup.gradients.n);
  report(state, setup.gradients.timer.time(work), raw, traffic, copy_rate);
  state.counters["payload_ratio"] = raw / static_cast<double>(std::max<std::size_t>(setup.bytes(), 1));
}

}  // namespace

double register_cuda(const std::vector<CodecSpec>& specs, std::size_t elements) {
  cuda::require_device(0, "gradtool_microbench --device=cuda");
  const double copy_rate = measure_device_copy_rate(0, 4 * elements);
  auto gradients = std::make_shared<Gradients>(elements);
  auto current = std::make_shared<Current>();
  for (const auto& spec : specs) {
    if (spec.descriptor->gpu.codec == nullptr || spec.name() == "noop") continue;
    const auto get = [current, gradients, spec]() -> DeviceSetup& { return current->of(spec, *gradients); };
    const std::string name = "cuda/" + full_name(spec);
    register_on_device(name + "/encode", [get, spec, elements, copy_rate](benchmark::State& state) {
      DeviceSetup& s = get();
      const double traffic = encode_floor(spec, elements, static_cast<double>(s.bytes()));
      measure(state, s, traffic, copy_rate, [&] { s.encode(); });
    });
    register_on_device(name + "/decode", [get, spec, elements, copy_rate](benchmark::State& state) {
      DeviceSetup& s = get();
      const double traffic = decode_floor(spec, elements, static_cast<double>(s.bytes()));
      measure(state, s, traffic, copy_rate, [&] { s.decode(); });
    });
  }
  return copy_rate;
}

void register_device_copy(std::size_t elements) {
  register_on_device("cuda/copy/again", [elements](benchmark::State& state) {
    const double bytes = 4.0 * static_cast<double>(elements);
    const double rate = measure_device_copy_rate(0, 4 * elements);
    report(state, {.seconds = bytes / rate}, bytes, 2.0 * bytes, rate);
  });
}

}  // namespace gradtool
