#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <numeric>

#include "apps/microbench/device_timer.hpp"
#include "apps/microbench/microbench.hpp"
#include "kernels/cuda/runtime.hpp"
#include "lib/core/error.hpp"

namespace gradtool {
namespace {

/// He et al. 2016, table 1, as torchvision numbers its parameters: convolutions, scale and shift of every batch norm.
std::vector<std::size_t> resnet50() {
  std::vector<std::size_t> sizes;
  const auto convolution = [&](std::size_t in, std::size_t out, std::size_t kernel) {
    for (const std::size_t n : {in * out * kernel * kernel, out, out}) sizes.push_back(n);
  };
  convolution(3, 64, 7);
  std::size_t in = 64;
  constexpr std::size_t kBlocks[] = {3, 4, 6, 3};
  for (std::size_t stage = 0; stage < 4; ++stage) {
    const std::size_t planes = std::size_t{64} << stage;
    for (std::size_t block = 0; block < kBlocks[stage]; ++block) {
      convolution(in, planes, 1);
      convolution(planes, planes, 3);
      convolution(planes, 4 * planes, 1);
      if (block == 0) convolution(in, 4 * planes, 1);
      in = 4 * planes;
    }
  }
  for (const std::size_t n : {std::size_t{2048} * 1000, std::size_t{1000}}) sizes.push_back(n);
  return sizes;
}

using Floats = View<float, Space::cuda>;
using ConstFloats = View<const float, Space::cuda>;
using Bytes = View<std::byte, Space::cuda>;

/// One codec with the tensors and their payloads, and the same elements as one tensor. Two inputs take turns.
class Tensors {
 public:
  explicit Tensors(const CodecSpec& spec) : sizes_{resnet50()}, codec_{spec.descriptor->gpu.codec(spec.params, {})} {
    total_ = std::accumulate(sizes_.begin(), sizes_.end(), std::size_t{0});
    const Footprint whole = codec_->plan(total_);
    fused_ = cuda::DeviceBuffer{whole.payload_bytes};
    std::size_t scratch = whole.scratch_bytes;
    std::size_t payload = 0;
    std::vector<std::size_t> payload_at;
    std::vector<std::size_t> at;
    for (const std::size_t n : sizes_) {
      const Footprint plan = codec_->plan(n);
      scratch = std::max(scratch, plan.scratch_bytes);
      at.push_back(elements_);
      payload_at.push_back(payload);
      elements_ += padded(4 * n) / 4;
      payload += padded(plan.payload_bytes);
    }
    scratch_ = cuda::DeviceBuffer{scratch};
    payload_ = cuda::DeviceBuffer{payload};
    out_ = cuda::DeviceBuffer{4 * elements_};
    cuda::fill(queue(), out_.bytes(), 0);
    const Feed feed = synthetic_feed(elements_, 0);
    for (std::size_t turn = 0; turn < 2; ++turn) {
      inputs_[turn] = cuda::DeviceBuffer{4 * elements_};
      cuda::copy(queue(), inputs_[turn].bytes(), as_bytes(HostView<const float>{feed.gradient.data(), elements_}));
      cuda::synchronize(queue());
    }
    for (std::size_t i = 0; i < sizes_.size(); ++i) {
      for (std::size_t turn = 0; turn < 2; ++turn)
        gradients_[turn].push_back(inputs_[turn].as<const float>().part(at[i], sizes_[i]));
      to_.push_back(payload_.bytes().part(payload_at[i], codec_->plan(sizes_[i]).payload_bytes));
      from_.emplace_back(to_.back());
      sums_.push_back(out_.as<float>().part(at[i], sizes_[i]));
    }
    for (auto work : {&Tensors::encode_fused, &Tensors::encode_batched}) (this->*work)();  // something to decode
  }

  void encode_fused() {
    codec_->encode(queue(), inputs_[turn()].as<const float>().first(total_), {}, fused_.bytes(), scratch_.bytes());
  }
  void encode_one_by_one() {
    const auto& gradients = gradients_[turn()];
    for (std::size_t i = 0; i < sizes_.size(); ++i) codec_->encode(queue(), gradients[i], {}, to_[i], scratch_.bytes());
  }
  void encode_batched() { codec_->encode_each(queue(), gradients_[turn()], {}, to_, scratch_.bytes()); }
  void decode_fused() {
    codec_->decode_add(queue(), fused_.bytes(), 1.0F, out_.as<float>().first(total_), scratch_.bytes());
  }
  void decode_one_by_one() {
    for (std::size_t i = 0; i < sizes_.size(); ++i)
      codec_->decode_add(queue(), from_[i], 1.0F, sums_[i], scratch_.bytes());
  }
  void decode_batched() { codec_->decode_add_each(queue(), from_, 1.0F, sums_, scratch_.bytes()); }

  DeviceTimer::Times time(void (Tensors::*work)()) {
    return timer_.time([this, work] { (this->*work)(); });
  }
  /// Bytes of all tensors.
  [[nodiscard]] double raw() const { return 4.0 * static_cast<double>(total_); }

 private:
  static std::size_t padded(std::size_t bytes) { return Arena<Space::cuda>::padded_size(bytes); }
  [[nodiscard]] Queue<Space::cuda> queue() const { return stream_.queue(); }
  std::size_t turn() { return turns_++ % 2; }

  std::vector<std::size_t> sizes_;
  std::unique_ptr<Codec<Space::cuda>> codec_;
  cuda::Stream stream_;
  DeviceTimer timer_{stream_.queue()};
  std::size_t total_ = 0, elements_ = 0;  ///< elements_: each tensor padded to 256 bytes
  std::size_t turns_ = 0;
  cuda::DeviceBuffer inputs_[2], payload_, fused_, scratch_, out_;
  std::vector<ConstFloats> gradients_[2];
  std::vector<Bytes> to_;
  std::vector<View<const std::byte, Space::cuda>> from_;
  std::vector<Floats> sums_;
};

}  // namespace

void register_cuda_tensors(const std::vector<CodecSpec>& specs) {
  cuda::require_device(0, "gradtool_microbench --device=cuda");
  // The codec that is measured; one at a time has buffers.
  struct Current {
    std::string name;
    std::unique_ptr<Tensors> tensors;
  };
  auto current = std::make_shared<Current>();
  for (const auto& spec : specs) {
    const CodecDescriptor& codec = *spec.descriptor;
    if (codec.gpu.codec == nullptr || codec.by_layout || spec.name() == "noop") continue;
    const auto add = [&](const char* form, void (Tensors::*work)(), void (Tensors::*fused)()) {
      const std::string name = fmt::format("resnet50/{}/{}", full_name(spec), form);
      register_on_device(name, [current, spec, work, fused](benchmark::State& state) {
        if (current->name != full_name(spec)) {
          current->tensors = nullptr;
          current->tensors = std::make_unique<Tensors>(spec);
          current->name = full_name(spec);
        }
        Tensors& tensors = *current->tensors;
        const double at_once = tensors.time(fused).seconds;
        const DeviceTimer::Times times = tensors.time(work);
        report(state, times, tensors.raw(), 0.0, 0.0);
        state.counters["times_fused"] = times.seconds / at_once;
      });
    };
    add("fused/encode", &Tensors::encode_fused, &Tensors::encode_fused);
    add("batched/encode", &Tensors::encode_batched, &Tensors::encode_fused);
    add("one_by_one/encode", &Tensors::encode_one_by_one, &Tensors::encode_fused);
    add("fused/decode", &Tensors::decode_fused, &Tensors::decode_fused);
    add("batched/decode", &Tensors::decode_batched, &Tensors::decode_fused);
    add("one_by_one/decode", &Tensors::decode_one_by_one, &Tensors::decode_fused);
  }
}

}  // namespace gradtool
