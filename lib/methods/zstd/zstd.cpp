// The header declares the functions that work in the caller's memory only under this macro; the shared library exports
// them all the same.
#define ZSTD_STATIC_LINKING_ONLY
#include <zstd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <numeric>

#include "kernels/float_bits.hpp"
#include "lib/codecs/payload.hpp"
#include "lib/codecs/registry.hpp"
#include "lib/core/scratch.hpp"
#include "lib/core/task_pool.hpp"
#include "lib/core/throw_error.hpp"

namespace gradtool {
namespace {

/// Elements of a frame: the unit of parallel work, whatever the number of threads.
constexpr std::size_t kBlock = 65536;
constexpr std::size_t kMostParts = 16;  ///< frames that are in work at the same time

/// planes[b * count + i] := byte b of element i, so that the exponents of all elements lie together, and so do the low
/// bytes of the mantissas.
GT_SIMD_CLONES void split_bytes(const unsigned char* x, std::size_t count, unsigned char* planes) {
  for (std::size_t i = 0; i < count; ++i) planes[i] = x[4 * i];
  for (std::size_t i = 0; i < count; ++i) planes[count + i] = x[4 * i + 1];
  for (std::size_t i = 0; i < count; ++i) planes[2 * count + i] = x[4 * i + 2];
  for (std::size_t i = 0; i < count; ++i) planes[3 * count + i] = x[4 * i + 3];
}

/// out += weight * the elements whose bytes split_bytes has sorted into `planes`.
GT_SIMD_CLONES void add_planes(const unsigned char* planes, std::size_t count, float weight, float* out) {
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint32_t bits = static_cast<std::uint32_t>(planes[i]) |
                               static_cast<std::uint32_t>(planes[count + i]) << 8 |
                               static_cast<std::uint32_t>(planes[2 * count + i]) << 16 |
                               static_cast<std::uint32_t>(planes[3 * count + i]) << 24;
    out[i] += weight * std::bit_cast<float>(bits);
  }
}

/// Blocks whose bytes are sorted by their place in the number, each compressed to a zstd frame (RFC 8878).
class Zstd final : public Codec<Space::host> {
 public:
  explicit Zstd(const Params& params) : level_{static_cast<int>(params.integer("level"))} {}

  [[nodiscard]] Footprint plan(std::size_t n) const override {
    return {.payload_bytes = header_bytes(n) + (blocks(n) * ZSTD_compressBound(4 * kBlock) + 3) / 4 * 4,
            .scratch_bytes = planned<Workspace>(*this, n),
            .exact = false};
  }

  void encode(Queue<Space::host> queue, HostView<const float> gradient, const EncodeContext& /*context*/,
              HostView<std::byte> payload, HostView<std::byte> scratch) const override {
    const std::size_t n = gradient.size();
    auto* sizes = section<std::uint32_t>(payload, 8);
    const Workspace work{*this, n, Scratch<Space::host>{scratch}};
    for_blocks(queue, n, [&](std::size_t part, std::size_t block, std::size_t first, std::size_t count) {
      const auto& [planes, memory] = work.parts[part];
      split_bytes(reinterpret_cast<const unsigned char*>(gradient.data() + first), count, planes.data());
      ZSTD_CCtx* context = ZSTD_initStaticCCtx(memory.data(), memory.size());
      const std::size_t bytes = context == nullptr
                                    ? 0
                                    : ZSTD_compressCCtx(context, work.frames.data() + block * frame_bytes(),
                                                        frame_bytes(), planes.data(), 4 * count, level_);
      if (context == nullptr || ZSTD_isError(bytes) != 0)
        throw_error(Fault::backend, "zstd: {}",
                    context == nullptr ? "its memory is too small" : ZSTD_getErrorName(bytes));
      sizes[block] = static_cast<std::uint32_t>(bytes);
    });
    std::size_t end = header_bytes(n);
    for (std::size_t block = 0; block < blocks(n); end += sizes[block++])
      std::memcpy(payload.data() + end, work.frames.data() + block * frame_bytes(), sizes[block]);
    const std::uint64_t total = (end + 3) / 4 * 4;
    std::memset(payload.data() + end, 0, total - end);
    std::memcpy(payload.data(), &total, sizeof total);
  }

  void decode_add(Queue<Space::host> queue, HostView<const std::byte> payload, float weight, HostView<float> out,
                  HostView<std::byte> scratch) const override {
    const std::size_t n = out.size();
    std::uint64_t stated = 0;
    if (payload.size() < header_bytes(n)) fail("it is shorter than its header");
    std::memcpy(&stated, payload.data(), sizeof stated);
    const auto* sizes = section<std::uint32_t>(payload, 8);
    const std::uint64_t total = std::accumulate(sizes, sizes + blocks(n), std::uint64_t{header_bytes(n)});
    if (stated != payload.size() || (total + 3) / 4 * 4 != stated) fail("its sizes do not add up to its length");
    const Workspace work{*this, n, Scratch<Space::host>{scratch}};
    for_blocks(queue, n, [&](std::size_t part, std::size_t block, std::size_t first, std::size_t count) {
      const auto& [planes, memory] = work.parts[part];
      ZSTD_DCtx* context = ZSTD_initStaticDCtx(memory.data(), memory.size());
      expects(context != nullptr, "zstd: its memory is too small");
      const std::size_t offset = std::accumulate(sizes, sizes + block, header_bytes(n));
      if (ZSTD_decompressDCtx(context, planes.data(), 4 * count, payload.data() + offset, sizes[block]) != 4 * count)
        fail("a frame does not decompress to its block");
      add_planes(planes.data(), count, weight, out.data() + first);
    });
  }

  [[nodiscard]] ErrorBound bound(std::size_t /*n*/) const override { return {.nmse = 0.0, .of_largest = 0.0}; }

 private:
  [[noreturn]] static void fail(std::string_view what) { throw_error(Fault::data, "zstd payload: {}", what); }

  static std::size_t blocks(std::size_t n) { return (n + kBlock - 1) / kBlock; }
  static std::size_t header_bytes(std::size_t n) { return 8 + 4 * blocks(n); }
  /// Bytes that a frame may take, in the scratch where frames are written side by side.
  static std::size_t frame_bytes() { return ZSTD_compressBound(4 * kBlock); }

  /// Bytes of a compressor or a decompressor for the frames of n elements.
  [[nodiscard]] std::size_t context_bytes(std::size_t n) const {
    const std::size_t last = 4 * (n - (blocks(n) == 0 ? 0 : blocks(n) - 1) * kBlock);
    std::size_t context = ZSTD_estimateDCtxSize();
    for (const std::size_t bytes : {std::max<std::size_t>(last, 1), n > kBlock ? 4 * kBlock : std::size_t{1}})
      context = std::max(context, ZSTD_estimateCCtxSize_usingCParams(ZSTD_getCParams(level_, bytes, 0)));
    return context;
  }

  /// Scratch of encode and decode_add.
  struct Workspace {
    Workspace(const Zstd& codec, std::size_t n, Scratch<Space::host> scratch) {
      for (Part& part : parts) {
        part.planes = scratch.take<unsigned char>(4 * kBlock);
        part.context = scratch.take_bytes(codec.context_bytes(n));
      }
      frames = scratch.take_bytes(blocks(n) * frame_bytes());
    }
    struct Part {
      HostView<unsigned char> planes;  ///< the sorted bytes of a block
      HostView<std::byte> context;     ///< the library's compressor or decompressor
    };
    std::array<Part, kMostParts> parts;
    HostView<std::byte> frames;
    std::size_t bytes = 0;
  };

  /// body(part, block, first element, elements).
  template <class Body>
  static void for_blocks(Queue<Space::host> queue, std::size_t n, const Body& body) {
    const std::size_t parts = std::min(kMostParts, part_count(queue, blocks(n), 1));
    parallel_parts(queue, blocks(n), parts, 1, [&](std::size_t part, std::size_t block, std::size_t last) {
      for (; block < last; ++block) body(part, block, block * kBlock, std::min(kBlock, n - block * kBlock));
    });
  }

  int level_;
};

constexpr ParamInfo kParams[] = {
    integer_param("level", "1", {-7, 19}, "compression level of the library; negative levels are faster")
        .searched("-5|1|6")};

}  // namespace

extern constinit const CodecDescriptor zstd_codec{
    .name = "zstd",
    .summary = "lossless: sends the byte-shuffled gradient compressed by zstd",
    .reference = "Collet and Kucherawy, RFC 8878; a general-purpose compressor as a point of reference",
    .params = kParams,
    .unbiased = true,
    .determinism = Determinism::run_to_run,
    .payload = "64 + 32 ceil(n/65536) bits and the frames",
    .make_host = make_method_codec<Space::host, Zstd>,
};

}  // namespace gradtool
