// Every codec that has a CUDA version, against its host version.
#include <cmath>
#include <thread>

#include "lib/core/allocation_watch.hpp"
#include "tests/codecs/codec_run.hpp"
#include "tests/codecs/grouped_scales.hpp"
#include "tests/codecs/inputs.hpp"
#include "tests/codecs/not_finite.hpp"
#include "tests/codecs/same_bits.hpp"
#include "tests/gpu/cuda_run.hpp"

namespace gradtool::test {
namespace {

const std::vector<std::size_t> kSizes{0, 1, 3, 4, 7, 31, 32, 33, 127, 129, 511, 513, 1025, 8193, 65536, 65537, 100'003};
const EncodeContext kContext{
    .key = {.seed = 42, .step = 3, .rank = 1, .tensor = 9}, .iteration = 3, .learning_rate_ratio = 0.5};

class GpuCodec : public NeedsGpu<testing::TestWithParam<std::string>> {};

/// Equal bits where the codec declares equal bytes on all backends; else within the rounding of two FFT libraries.
void expect_decoded(bool same_bytes, const std::vector<float>& is, const std::vector<float>& should,
                    const std::string& what) {
  if (same_bytes) return expect_same(is, should, what);
  ASSERT_EQ(is.size(), should.size());
  float largest = 0.0F;
  for (const float value : should) largest = std::max(largest, std::abs(value));
  for (std::size_t i = 0; i < is.size(); ++i)
    ASSERT_NEAR(is[i], should[i], 2e-5F * largest) << what << " element " << i;
}

TEST_P(GpuCodec, WritesTheHostsPayload) {
  for (const std::size_t n : kSizes) {
    CodecRun host{GetParam(), n};
    CudaRun gpu{GetParam(), n};
    const auto x = gradient_like(n);
    const auto expected = host.encode(x, kContext);
    const auto payload = gpu.encode(x, kContext);
    EXPECT_EQ(gpu.footprint().payload_bytes, host.footprint().payload_bytes) << "n " << n;
    EXPECT_EQ(gpu.footprint().exact, host.footprint().exact) << "n " << n;
    ASSERT_EQ(payload.size(), expected.size()) << "n " << n;
    if (gpu.same_bytes()) ASSERT_EQ(payload, expected) << "n " << n;
    // Whatever the transform's last bits: the host takes it, and it decodes to what the codec promises.
    const auto y = host.decode(payload);
    const ErrorBound bound = gpu.codec().bound(n);
    if (std::isfinite(bound.nmse)) EXPECT_LE(nmse(x, y), bound.nmse) << "n " << n;
    EXPECT_LE(nmse(host.decode(expected), y), gpu.same_bytes() ? 0.0 : 1e-3) << "n " << n;
  }
}

TEST_P(GpuCodec, DecodesAsTheHost) {
  for (const std::size_t n : kSizes) {
    CodecRun host{GetParam(), n};
    CudaRun gpu{GetParam(), n};
    const auto payload = host.encode(gradient_like(n), kContext);
    std::vector<float> expected = gradient_like(n, 7);
    std::vector<float> out = expected;
    host.decode_add(payload, -0.3F, expected);
    gpu.decode_add(payload, -0.3F, out);
    expect_decoded(gpu.same_bytes(), out, expected, "n " + std::to_string(n));
  }
}

TEST_P(GpuCodec, TakesAnyAlignmentOfTheGradient) {
  for (const std::size_t n : {std::size_t{1025}, std::size_t{65536}}) {
    CudaRun gpu{GetParam(), n};
    const auto x = gradient_like(n);
    const auto payload = gpu.encode(x, kContext);
    std::vector<float> expected(n, 1.0F);
    gpu.decode_add(payload, 0.5F, expected);
    for (const std::size_t shift : {4, 8, 12}) {
      EXPECT_EQ(gpu.encode(x, kContext, 0xA5, shift), payload) << "shift " << shift;
      std::vector<float> out(n, 1.0F);
      gpu.decode_add(payload, 0.5F, out, shift);
      expect_same(out, expected, "shift " + std::to_string(shift));
    }
  }
}

/// Tensors begin anywhere, and their statistics are their own.
TEST_P(GpuCodec, TakesUnitsOfSeveralTensors) {
  const Layout layout = several_tensors();
  CodecRun host{GetParam(), layout};
  CudaRun gpu{GetParam(), layout};
  for (const float value : {0.0F, NAN}) {
    auto x = gradient_like(layout.elements);
    std::fill(x.begin() + 640, x.begin() + 660, value);  // the end of one tensor and all of the next
    const auto expected = host.encode(x, kContext);
    const auto payload = gpu.encode(x, kContext);
    if (gpu.same_bytes()) EXPECT_EQ(payload, expected) << value;
    std::vector<float> out = gradient_like(layout.elements, 7);
    std::vector<float> sum = out;
    host.decode_add(expected, 0.7F, sum);
    for (const std::size_t shift : {0, 4}) {
      auto result = out;
      gpu.decode_add(expected, 0.7F, result, shift);
      if (!std::isnan(value)) expect_decoded(gpu.same_bytes(), result, sum, "shift " + std::to_string(shift));
      if (gpu.same_bytes()) expect_same(result, sum, "shift " + std::to_string(shift));
    }
  }
}

TEST_P(GpuCodec, WritesEveryByteAndReadsNoneItDidNotWrite) {
  for (const std::size_t n : kSizes) {
    CudaRun gpu{GetParam(), n};
    const auto x = gradient_like(n);
    EXPECT_EQ(gpu.encode(x, kContext, 0xA5), gpu.encode(x, kContext, 0x00)) << "n " << n;
  }
}

TEST_P(GpuCodec, DecodingAllAtOnceIsDecodingOneByOne) {
  const std::size_t n = 70'001;
  CudaRun gpu{GetParam(), n};
  std::vector<float> expected(n, 0.0F);
  std::vector<Guarded> payloads;
  std::vector<View<const std::byte, Space::cuda>> views;
  for (std::uint32_t rank = 0; rank < 20; ++rank) {  // more than a codec may sum in one batch
    EncodeContext context = kContext;
    context.key.rank = rank;
    const auto payload = gpu.encode(gradient_like(n, rank), context);
    gpu.decode_add(payload, 0.05F, expected);
    views.emplace_back(payloads.emplace_back(gpu.queue(), std::span<const std::byte>{payload}).bytes());
  }
  const std::vector<float> zeros(n, 0.0F);
  const Guarded out{gpu.queue(), bytes_of(zeros)};
  gpu.codec().decode_add_all(gpu.queue(), views, 0.05F, out.as<float>(), gpu.scratch().bytes());
  const auto sum = out.download_floats();
  for (std::size_t i = 0; i < n; ++i) ASSERT_NEAR(sum[i], expected[i], 1e-7F) << i;
}

TEST_P(GpuCodec, DegenerateAndNonFiniteInputsAreTheHosts) {
  const std::size_t n = 3000;
  CodecRun host{GetParam(), n};
  CudaRun gpu{GetParam(), n};
  const float other_nan = format::float_of(0xffa12345U);  // not the one that arithmetic on x86 or on a GPU makes
  for (const float value : {0.0F, -0.0F, 0.25F, 1e-40F, 3e38F, INFINITY, -INFINITY, NAN, other_nan}) {
    for (const bool everywhere : {false, true}) {
      auto x = everywhere ? std::vector<float>(n, value) : gradient_like(n);
      x[1000] = value;
      const auto payload = gpu.encode(x, kContext);
      if (gpu.same_bytes()) EXPECT_EQ(payload, host.encode(x, kContext)) << value;
      const auto y = gpu.decode(payload);
      const bool finite = std::all_of(y.begin(), y.end(), [](float v) { return std::isfinite(v); });
      const bool seen = everywhere || !has_trait(GetParam(), "draws");
      if (!std::isfinite(value) && seen && gpu.codec().values_sent(n) > 0) EXPECT_FALSE(finite) << value;
      if (std::abs(value) <= 1.0F) EXPECT_TRUE(finite) << value;
    }
  }
}

/// A NaN has other bits wherever arithmetic made it, and none of them may reach a payload.
TEST_P(GpuCodec, DegenerateNaNsDoNotReachPayloads) {
  for (const Layout& layout : {Layout::flat(1100), several_tensors()}) {
    const std::size_t n = layout.elements;
    CodecRun host{GetParam(), layout};
    CudaRun gpu{GetParam(), layout};
    if (!gpu.same_bytes()) return;
    for (const auto& [what, x] : not_finite_gradients(n)) {
      if (n > 2000 && what != "infinities of both signs" && what != "everything") continue;  // each NaN takes a while
      const auto expected = host.encode(x, kContext);
      EXPECT_EQ(gpu.encode(x, kContext), expected) << what << ", " << n << " elements";
      // Sums with infinities, and a NaN that was there before.
      auto sum = gradient_like(n, 7);
      sum[n / 3] = sum[9] = INFINITY;
      sum[n / 2] = format::float_of(0xffa12345U);
      auto out = sum;
      host.decode_add(expected, -0.3F, sum);
      gpu.decode_add(expected, -0.3F, out);
      expect_same(out, sum, what);
    }
  }
}

TEST_P(GpuCodec, DamagedPayloadsStayInBounds) {
  const std::size_t n = 1025;
  CodecRun host{GetParam(), n};
  CudaRun gpu{GetParam(), n};
  const auto payload = host.encode(gradient_like(n), kContext);
  std::vector<float> out(n, 0.0F);
  for (std::size_t flip = 0; flip < payload.size() * 8; flip += 1 + flip / 97) {
    auto damaged = payload;
    damaged[flip / 8] ^= static_cast<std::byte>(1U << flip % 8);
    gpu.decode_add(damaged, 1.0F, out);  // guards and CUDA's own checks fail the test
  }
  // Other codes, counts and sizes that a header could state.
  for (std::size_t word = 0; word < 8 && 4 * word + 4 <= payload.size(); ++word) {
    for (std::uint32_t number = 0; number < 4; ++number) {
      auto damaged = payload;
      std::memcpy(damaged.data() + 4 * word, &number, sizeof number);
      gpu.decode_add(damaged, 1.0F, out);
    }
  }
  gpu.decode_add(std::vector<std::byte>(payload.size(), std::byte{0xFF}), 1.0F, out);
  gpu.decode_add(std::vector<std::byte>(payload.size(), std::byte{0x00}), 1.0F, out);

  auto longer = payload;
  longer.resize(gpu.footprint().payload_bytes + 4);
  const auto refused = [&](std::span<const std::byte> bytes) {
    try {
      gpu.decode_add(bytes, 1.0F, out);
      return false;
    } catch (const Error& error) {
      return error.fault() == Fault::data;
    }
  };
  EXPECT_TRUE(refused(longer));
  if (payload.empty()) return;
  EXPECT_TRUE(refused({payload.data(), 3}));
  for (const std::size_t missing : {1, 4, 7}) {
    // The GPU must find a view that ends too early if only the payload says how long it is; CudaRun watches.
    const bool is = refused({payload.data(), payload.size() - missing});
    if (gpu.footprint().exact) EXPECT_TRUE(is) << missing << " bytes too few";
  }
}

/// Error feedback decodes before anything has waited for the size, so the view has all the room that the payload had.
TEST_P(GpuCodec, ReadsThePayloadsOwnSizeOnTheGpu) {
  for (const std::size_t n : {std::size_t{3}, std::size_t{513}, std::size_t{8193}}) {
    CodecRun host{GetParam(), n};
    CudaRun gpu{GetParam(), n};
    if (gpu.footprint().exact) continue;
    const auto payload = host.encode(gradient_like(n), kContext);
    std::vector<float> expected = gradient_like(n, 7);
    std::vector<float> out = expected;
    gpu.decode_add(payload, -1.0F, expected);
    auto room = payload;
    room.resize(gpu.footprint().payload_bytes, std::byte{0xC7});
    gpu.decode_add(room, -1.0F, out);
    expect_same(out, expected, "n " + std::to_string(n));
  }
}

/// More tensors than a launch takes, empty and longer ones among them, at any alignment of a float: the payloads and
/// sums of each alone. Scratch has room for several.
TEST_P(GpuCodec, ManyTensorsAtOnceAreEachAlone) {
  const std::size_t tensors = 150;
  const CodecSpec spec = parse_codec(GetParam());
  if (spec.descriptor->by_layout) return;  // one object serves one layout, in which there may be many tensors
  const auto codec = spec.descriptor->gpu.codec(spec.params, {});
  const cuda::Stream stream;
  std::vector<std::size_t> sizes;
  for (std::size_t i = 0; i < tensors; ++i) sizes.push_back(i % 11 == 3 ? 0 : i % 7 == 0 ? 200 + 30 * i : 1 + i % 40);
  sizes[2] = 70'001;
  sizes[5] = 20'000;
  std::size_t scratch_bytes = 0;
  std::vector<Guarded> inputs, payloads, sums;
  std::vector<View<const float, Space::cuda>> gradients;
  std::vector<View<std::byte, Space::cuda>> to;
  std::vector<View<const std::byte, Space::cuda>> from;
  std::vector<View<float, Space::cuda>> outs;
  for (std::size_t i = 0; i < tensors; ++i) {
    const Footprint plan = codec->plan(sizes[i]);
    scratch_bytes = std::max(scratch_bytes, plan.scratch_bytes);
    const auto x = gradient_like(sizes[i], static_cast<std::uint32_t>(i));
    const std::size_t shift = 4 * (i % 4);
    gradients.emplace_back(inputs.emplace_back(stream.queue(), bytes_of(x), shift).as<float>());
    to.push_back(payloads.emplace_back(stream.queue(), plan.payload_bytes).bytes());
    from.emplace_back(to.back());
    outs.push_back(sums.emplace_back(stream.queue(), bytes_of(x), shift).as<float>());
  }
  const Guarded scratch{stream.queue(), 2 * scratch_bytes};
  codec->encode_each(stream.queue(), gradients, kContext, to, scratch.bytes());
  codec->decode_add_each(stream.queue(), from, -0.5F, outs, scratch.bytes());
  for (std::size_t i = 0; i < tensors; i += i < 8 ? 1 : 13) {
    CudaRun alone{GetParam(), sizes[i]};
    EncodeContext context = kContext;
    context.key.tensor += static_cast<std::uint32_t>(i);
    auto out = gradient_like(sizes[i], static_cast<std::uint32_t>(i));
    const auto payload = alone.encode(out, context);
    auto is = payloads[i].download();
    is.resize(payload.size());
    ASSERT_EQ(is, payload) << "tensor " << i << " of " << sizes[i];
    alone.decode_add(payload, -0.5F, out);
    expect_same(sums[i].download_floats(), out, "tensor " + std::to_string(i));
  }
}

/// One codec object, two threads with a stream and buffers each, no waiting in between.
TEST_P(GpuCodec, ServesTwoStreamsAtOnce) {
  const std::size_t n = cuda::emulated() ? 30'007 : 300'007;
  const int rounds = cuda::emulated() ? 3 : 20;
  CudaRun reference{GetParam(), n};
  const auto worker = [&](std::uint32_t seed, std::vector<std::byte>& payload, std::vector<float>& sum) {
    const cuda::Stream stream;
    const auto x = gradient_like(n, seed);
    const std::vector<float> zeros(n, 0.0F);
    static_cast<void>(reference.codec().plan(n));
    const Guarded gradient{stream.queue(), bytes_of(x)};
    const Guarded out{stream.queue(), bytes_of(zeros)};
    const Guarded wire{stream.queue(), reference.footprint().payload_bytes};
    const Guarded scratch{stream.queue(), reference.footprint().scratch_bytes};
    std::size_t bytes = reference.footprint().payload_bytes;
    for (int round = 0; round < rounds; ++round) {
      reference.codec().encode(stream.queue(), gradient.as<float>(), kContext, wire.bytes(), scratch.bytes());
      if (!reference.footprint().exact && round == 0) {
        const auto written = wire.download();
        if (written.size() >= 8) std::memcpy(&bytes, written.data(), 8);
      }
      reference.codec().decode_add(stream.queue(), wire.bytes().first(bytes), 1.0F, out.as<float>(), scratch.bytes());
    }
    sum = out.download_floats();
    payload = wire.download();
    payload.resize(bytes);
  };
  std::vector<std::byte> payloads[2];
  std::vector<float> sums[2];
  std::thread other{[&] { worker(2, payloads[1], sums[1]); }};
  worker(1, payloads[0], sums[0]);
  other.join();
  for (std::uint32_t i = 0; i < 2; ++i) {
    const auto payload = reference.encode(gradient_like(n, i + 1), kContext);
    EXPECT_EQ(payloads[i], payload) << "thread " << i;
    std::vector<float> expected(n, 0.0F);
    for (int round = 0; round < rounds; ++round) reference.decode_add(payload, 1.0F, expected);
    expect_same(sums[i], expected, "thread " + std::to_string(i));
  }
}

/// A collective takes a payload from another stream, ordered by an event and nothing else.
TEST_P(GpuCodec, DecodesAPayloadOfAnotherStream) {
  const std::size_t n = cuda::emulated() ? 30'007 : 300'007;
  CudaRun sender{GetParam(), n};
  CudaRun receiver{GetParam(), n};
  const auto x = gradient_like(n);
  const auto payload = sender.encode(x, kContext);
  const auto expected = receiver.decode(payload);
  const Guarded gradient{sender.queue(), bytes_of(x)};
  const std::vector<float> zeros(n, 0.0F);
  const Guarded out{receiver.queue(), bytes_of(zeros)};
  const cuda::Event written;
  sender.payload().poison(0xEE);
  sender.codec().encode(sender.queue(), gradient.as<float>(), kContext, sender.payload().bytes(),
                        sender.scratch().bytes());
  written.record(sender.queue());
  written.hold(receiver.queue());
  receiver.codec().decode_add(receiver.queue(), sender.payload().bytes().first(payload.size()), 1.0F, out.as<float>(),
                              receiver.scratch().bytes());
  expect_same(out.download_floats(), expected, "from another stream");
}

/// Behind work that keeps the stream busy for a while, encode and decode_add return before it is done.
TEST_P(GpuCodec, NeitherWaitsNorAllocates) {
  const std::size_t n = 100'003;
  CudaRun gpu{GetParam(), n};
  const auto x = gradient_like(n);
  const Guarded gradient{gpu.queue(), bytes_of(x)};
  const Guarded out{gpu.queue(), bytes_of(x)};
  const auto payload = gpu.encode(x, kContext);
  static_cast<void>(gpu.decode(payload));  // kernels are loaded when they first run
  const cuda::DeviceBuffer large{std::size_t{1} << (cuda::emulated() ? 10 : 28)};  // an emulated stream is lazy anyway
  bool waited = true;
  for (int attempt = 0; attempt < 3 && waited; ++attempt) {
    for (int i = 0; i < 200; ++i) cuda::fill(gpu.queue(), large.bytes(), static_cast<std::uint8_t>(i));
    const AllocationWatch watch;
    gpu.codec().encode(gpu.queue(), gradient.as<float>(), kContext, gpu.payload().bytes(), gpu.scratch().bytes());
    gpu.codec().decode_add(gpu.queue(), gpu.payload().bytes().first(payload.size()), 1.0F, out.as<float>(),
                           gpu.scratch().bytes());
    waited = cuda::idle(gpu.queue());
    if (gpu.same_bytes()) EXPECT_EQ(watch.on_this_thread(), 0U);  // cuFFT's own bookkeeping is not ours
    cuda::synchronize(gpu.queue());
  }
  if (GetParam().starts_with("atomo:")) return;  // cuSOLVER may wait for the stream itself
  EXPECT_FALSE(waited) << "encode or decode_add waited for the GPU";
}

class GpuConversions : public NeedsGpu<testing::TestWithParam<std::string>> {};

/// Numbers of every size, which a GPU may convert by instructions of its own: normal and subnormal ones, those halfway
/// between two codes, infinities and, where they have codes, NaNs. Blocks of 32 have numbers of similar size.
TEST_P(GpuConversions, OfNumbersOfEverySizeAreTheHosts) {
  const bool takes_nan = GetParam().starts_with("fp16");
  std::vector<float> x;
  for (std::uint32_t high = 0; high < 0x800U; ++high) {
    for (std::uint32_t low = 0; low < 32; ++low) {
      // Bit 19 is half of the last bit of fp8's E4M3, and bit 12 that of fp16, whose last bit is set in every other
      // one.
      const std::uint32_t rest = low % 4 < 2 ? 0U : low / 4 % 2 * 0x2000U | 0x1000U;
      const float value = format::float_of(low % 2 << 31 | high << 20 | low / 4 << 17 | rest);
      x.push_back(takes_nan || std::isfinite(value) ? value : 1.0F);
    }
  }
  CodecRun host{GetParam(), x.size()};
  CudaRun gpu{GetParam(), x.size()};
  EXPECT_EQ(gpu.encode(x, kContext), host.encode(x, kContext));
}
INSTANTIATE_TEST_SUITE_P(Floats, GpuConversions,
                         testing::Values("fp16", "fp16:scale_log2=10", "fp8:block=32", "fp8:format=e5m2,block=32",
                                         "mx:format=e4m3", "mx:format=e5m2"),
                         [](const auto& info) { return test_name(info.param); });

class GpuGroupedScales : public NeedsGpu<testing::TestWithParam<GroupedScale>> {};

TEST_P(GpuGroupedScales, AreTheHosts) {
  CudaRun gpu{GetParam().spec, GetParam().gradient.size()};
  EXPECT_EQ(shown_scale(gpu.encode(GetParam().gradient), GetParam()), GetParam().expected);
}
INSTANTIATE_TEST_SUITE_P(Methods, GpuGroupedScales, testing::ValuesIn(grouped_scales()),
                         [](const auto& info) { return test_name(info.param.spec); });

std::vector<std::string> cuda_specs() {
  std::vector<std::string> specs;
  for (const auto& spec : specs_to_test()) {
    const CodecSpec parsed = parse_codec(spec);
    if (parsed.descriptor->gpu.codec == nullptr) continue;
    try {  // some parameters are for the host only
      static_cast<void>(parsed.descriptor->gpu.codec(parsed.params, {}));
    } catch (const Error& error) {
      if (error.fault() == Fault::unavailable) continue;
      throw;
    }
    specs.push_back(spec);
  }
  for (const char* spec : {"qsgd:bits=6,bucket=32", "qsgd:bits=7,bucket=8224", "qsgd:bits=4,bucket=65536,norm=l2"})
    specs.emplace_back(spec);
  return specs;
}
INSTANTIATE_TEST_SUITE_P(Registry, GpuCodec, testing::ValuesIn(cuda_specs()),
                         [](const auto& info) { return test_name(info.param); });

}  // namespace
}  // namespace gradtool::test
