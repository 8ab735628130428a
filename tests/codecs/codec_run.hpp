#pragma once

#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "lib/codecs/registry.hpp"
#include "lib/core/arena.hpp"
#include "lib/core/task_pool.hpp"

namespace gradtool::test {

/// A codec with buffers for n elements, poisoned before every use, so that a byte it forgot to write shows.
class CodecRun {
 public:
  CodecRun(const std::string& spec, std::size_t n, int threads = 1) : CodecRun{spec, Layout::flat(n), threads} {}
  CodecRun(const std::string& spec, const Layout& layout, int threads = 1)
      : spec_{parse_codec(spec)},
        codec_{spec_.descriptor->make_host(spec_.params, layout)},
        footprint_{codec_->plan(layout.elements)},
        n_{layout.elements},
        pool_{threads},
        queue_{threads > 1 ? &pool_ : nullptr},
        arena_{Arena<Space::host>::padded_size(footprint_.payload_bytes) +
               Arena<Space::host>::padded_size(footprint_.scratch_bytes)},
        payload_{arena_.take_bytes(footprint_.payload_bytes)},
        scratch_{arena_.take_bytes(footprint_.scratch_bytes)} {}

  /// The payload's bytes, as long as they are.
  std::vector<std::byte> encode(std::span<const float> x, const EncodeContext& context = {}, int poison = 0xA5) {
    std::memset(payload_.data(), poison, payload_.size());
    std::memset(scratch_.data(), poison, scratch_.size());
    codec_->encode(queue_, {x.data(), x.size()}, context, payload_, scratch_);
    std::size_t bytes = footprint_.payload_bytes;
    if (!footprint_.exact) {
      std::uint64_t stated = 0;
      std::memcpy(&stated, payload_.data(), sizeof stated);
      bytes = stated;
    }
    return {payload_.data(), payload_.data() + std::min(bytes, payload_.size())};
  }

  void decode_add(std::span<const std::byte> payload, float weight, std::span<float> out) {
    // An own allocation of exactly this size, so that AddressSanitizer sees a read past its end.
    Arena<Space::host> exact{payload.size()};
    auto view = exact.take_bytes(payload.size());
    if (!payload.empty()) std::memcpy(view.data(), payload.data(), payload.size());
    std::memset(scratch_.data(), 0x5A, scratch_.size());
    codec_->decode_add(queue_, view, weight, {out.data(), out.size()}, scratch_);
  }

  std::vector<float> decode(std::span<const std::byte> payload) {
    std::vector<float> out(n_, 0.0F);
    decode_add(payload, 1.0F, out);
    return out;
  }

  [[nodiscard]] const Codec<Space::host>& codec() const { return *codec_; }
  [[nodiscard]] const CodecSpec& spec() const { return spec_; }
  [[nodiscard]] const Footprint& footprint() const { return footprint_; }
  [[nodiscard]] Queue<Space::host> queue() const { return queue_; }
  [[nodiscard]] HostView<std::byte> payload() const { return payload_; }
  [[nodiscard]] HostView<std::byte> scratch() const { return scratch_; }

 private:
  CodecSpec spec_;
  std::unique_ptr<Codec<Space::host>> codec_;
  Footprint footprint_;
  std::size_t n_;
  TaskPool pool_;
  Queue<Space::host> queue_;
  Arena<Space::host> arena_;
  HostView<std::byte> payload_, scratch_;
};

/// A unit of several tensors of several kinds, for codecs that look at shapes.
inline Layout several_tensors() {
  Layout layout;
  const auto add = [&](std::vector<std::int64_t> shape, std::string kind, std::size_t elements) {
    layout.tensors.push_back({.name = kind + std::to_string(layout.tensors.size()),
                              .shape = std::move(shape),
                              .kind = std::move(kind),
                              .first = layout.elements,
                              .elements = elements});
    layout.elements += elements;
  };
  add({9, 8, 3, 3}, "conv", 648);
  add({9}, "norm", 9);
  add({9}, "bias", 9);
  add({33, 65}, "linear", 2145);
  add({1}, "bias", 1);
  add({40, 300}, "embedding", 12'000);  // more than one piece of a parallel loop
  return layout;
}

/// The specifications that suites run over: every registered codec with its defaults, and variants that take other
/// paths.
inline std::vector<std::string> specs_to_test() {
  std::vector<std::string> specs;
  const std::vector<std::string> variants{
      "dlcp:model=iid,loss=0.2,packet=64,bound=0.1",
      "dlcp:model=gilbert,bad=0.2,packet=128,bound=1",
      "dlcp:model=none,packet=8192",
      "dlcp:drain=0.5,queue=2,packet=256,bound=0",
      "atomo:vectors=square",
      "atomo:vectors=square,s=12",
      "fp16:scale_log2=10",
      "topk:ratio=0.3",
      "topk:ratio=0.2,index=u32",
      "topk:ratio=1",
      "topk:ratio=0.01,index=bitmap",
      "topk:ratio=0.001,index=elias",
      "fp8:format=e5m2,block=32",
      "fp8:rounding=stochastic",
      "mx:format=e5m2",
      "mx:format=e3m2",
      "mx:format=e2m3,rounding=stochastic",
      "mx:format=e2m1",
      "mx:format=int8",
      "mx:format=int8,rounding=stochastic",
      "qsgd:bits=2,bucket=64",
      "qsgd:bits=3,bucket=96",
      "qsgd:bits=8",
      "qsgd:bits=4,norm=l2",
      "qsgd:bits=5,bucket=1024",
      "qsgd:code=elias",
      "qsgd:bits=2,bucket=1024,norm=l2,code=elias",
      "qsgd:bits=8,bucket=32768,code=elias",
      "fft:theta=0,bits=32",
      "fft:theta=0.9,bits=8",
      "fft:theta=1",
      "fft:theta=0.5,rounding=nearest,chunk=1024",
      "fft:chunk=256,bits=13",
      "fft:schedule=drop,drop_at=5,theta_end=0.3",
      "fft:schedule=sqrt_lr",
      "fft:range=1",
      "vgc:alpha=0.5",
      "vgc:alpha=0.5,dropped=keep,largest=all",
      "vgc:alpha=0.5,tau=0.002",
      "int8:block=96,rounding=stochastic",
      "int8:block=4128",
      "strom:tau=0.002",
      "strom:tau=0.004,index=words",
      "strom:tau=0.004,index=elias",
      "strom:tau=0.004,index=u32",
      "strom:tau=0.004,index=bitmap",
      "strom:tau=0.004,form=dense",
      "terngrad:clip=off,pack=base3",
      "qgz:bits=8,block=96",
      "dgc:ratio=0.1,nesterov=on",
      "dgc:ratio=0.05,over=scale,clip=0.01,index=bitmap",
      "dgc:warmup=8",
      "onebit:means=tensor",
      "fft:range=calibrated,calibrate=2",
      "fft:range=calibrated,calibrate=1,mantissa=5",
      "randomk:ratio=0.3,scale=on",
      "randomk:ratio=0.8",
      "randomk:ratio=1",
      "zstd:level=5",
      "zstd:level=-3",
      "zfp:rate=2.25",
      "zfp:rate=17.3",
      "zfp:mode=accuracy",
      "zfp:mode=accuracy,tolerance=1e-7",
      "zfp:mode=accuracy,tolerance=1",
      "fft:select=chunk,chunk=1000",
      "fft:precision=fp16,chunk=32768",
      "adacomp:other=50",
      "adacomp:s=1,other=77",
      "dct:ratio=0.3,index=elias",
      "dct:ratio=1",
      "sidco:ratio=0.1,fit=gamma",
      "sidco:ratio=0.001,fit=pareto,index=elias",
      "sidco:ratio=0.2,stages=1",
  };
  const auto registered = [](std::string_view name) {
    for (const auto* codec : codecs()) {
      if (codec->name == name) return true;
    }
    return false;
  };
  for (const auto* codec : codecs()) {
    if (has_codec(*codec)) specs.emplace_back(codec->name);
  }
  for (const auto& variant : variants) {
    if (registered(variant.substr(0, variant.find(':')))) specs.push_back(variant);
  }
  return specs;
}

/// Readable test names: letters, digits and underscores.
inline std::string test_name(std::string spec) {
  for (auto& c : spec) {
    if (std::isalnum(static_cast<unsigned char>(c)) == 0) c = '_';
  }
  return spec;
}

}  // namespace gradtool::test
