
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "kernels/bit_stream.hpp"
#include "kernels/chunk_select.hpp"
#include "lib/codecs/payload.hpp"
#include "lib/codecs/registry.hpp"
#include "lib/codecs/tensor_chunks.hpp"
#include "lib/core/throw_error.hpp"
#include "lib/methods/sparseloco/format.hpp"
#include "lib/methods/sparseloco/reducer.hpp"

namespace gradtool {
namespace {

using format::kLocoCodeBits;
using format::kLocoCodes;
using format::kLocoPositionBits;
using format::LocoBins;
using format::LocoRecord;
using format::LocoSums;

/// numbers := beta held + gradient, which replace `held`.
GT_SIMD_CLONES void carry(const float* gradient, float beta, float* held, float* numbers, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    const float sum = format::loco_carry(held[i], gradient[i], beta);
    held[i] = sum;
    numbers[i] = sum;
  }
}

/// Packs codes of `bits` bits and fills the last word with zeros.
template <class Code>
void pack(const Code* codes, std::size_t count, std::uint32_t bits, std::uint32_t* words) {
  auto* out = reinterpret_cast<std::byte*>(words);
  host::BitWriter stream{out};
  for (std::size_t i = 0; i < count; ++i) stream.put(codes[i], bits);
  const std::size_t used = stream.finish();
  std::memset(out + used, 0, 4 * format::packed_words(count, bits) - used);
}

class SparseLoco final : public Codec<Space::host> {
 public:
  SparseLoco(const Params& params, const Layout& layout)
      : beta_{static_cast<float>(params.real("beta"))},
        sigma_{params.is("bins", "sigma")},
        k_{static_cast<std::size_t>(params.integer("k"))},
        tensors_{layout.tensors.size()},
        chunks_{layout, k_, 0, LocoRecord::words} {}

  [[nodiscard]] Footprint plan(std::size_t n) const override {
    expects(n == chunks_.elements(), "codec sparseloco: made for another layout");
    return {.payload_bytes = 4 * chunks_.words()};
  }

  /// The first step, from an empty memory.
  void encode(Queue<Space::host> queue, HostView<const float> gradient, const EncodeContext& /*context*/,
              HostView<std::byte> payload, HostView<std::byte> /*scratch*/) const override {
    step(queue, gradient, nullptr, payload);
  }

  /// One step of one rank; `held` is null for an empty memory that is not kept.
  void step(Queue<Space::host> queue, HostView<const float> gradient, float* held, HostView<std::byte> payload) const {
    chunks_.each(queue, [&](const TensorChunk& chunk) {
      encode_chunk(chunk, gradient.data(), held, section<std::uint32_t>(payload, 4 * chunk.word));
    });
  }

  void decode_add(Queue<Space::host> queue, HostView<const std::byte> payload, float weight, HostView<float> out,
                  HostView<std::byte> /*scratch*/) const override {
    expect_length("sparseloco", payload.size(), 4 * chunks_.words());
    add(queue, payload, weight, nullptr, out);
  }

  /// out += weight * decoded, where each tensor is also multiplied by its factor, unless `factors` is null.
  void add(Queue<Space::host> queue, HostView<const std::byte> payload, float weight, const float* factors,
           HostView<float> out) const {
    chunks_.each(queue, [&](const TensorChunk& chunk) {
      const auto* record = section<std::uint32_t>(payload, 4 * chunk.word);
      const float factor = factors == nullptr ? weight : weight * factors[chunk.tensor];
      std::array<float, kLocoCodes> values;
      for (std::uint32_t code = 0; code < kLocoCodes; ++code) values[code] = factor * LocoRecord::value(record, code);
      each_sent(chunk, record,
                [&](std::uint32_t position, std::uint32_t code) { out[chunk.element(position)] += values[code]; });
    });
  }

  /// For each tensor of each rank the factor that clips its norm to the median over ranks, the lower one of two.
  void clip_factors(Queue<Space::host> queue, std::span<const HostView<const std::byte>> payloads,
                    HostView<double> energies, HostView<float> factors) const {
    const std::size_t ranks = payloads.size();
    parallel_parts(queue, ranks, ranks, 1, [&](std::size_t, std::size_t first, std::size_t last) {
      for (std::size_t r = first; r < last; ++r) {
        double* energy = energies.data() + r * tensors_;
        std::fill_n(energy, tensors_, 0.0);
        for (const TensorChunk& chunk : chunks_.chunks()) {
          const auto* record = section<std::uint32_t>(payloads[r], 4 * chunk.word);
          std::array<std::uint32_t, kLocoCodes> members{};
          each_sent(chunk, record, [&](std::uint32_t /*position*/, std::uint32_t code) { ++members[code]; });
          energy[chunk.tensor] += format::loco_energy(record, members.data());
        }
      }
    });
    for (std::size_t t = 0; t < tensors_; ++t) {
      const double limit = format::loco_median(energies.data(), tensors_, t, ranks);
      for (std::size_t r = 0; r < ranks; ++r)
        factors[r * tensors_ + t] = format::loco_shrink(energies[r * tensors_ + t], limit);
    }
  }

  [[nodiscard]] std::size_t tensors() const { return tensors_; }

  /// A bin's mean leaves less energy than its numbers have. Bins of one sign leave at most 1 - 1/k of what the k
  /// numbers have, because (sum |x|)^2 is no less than sum x^2, and the numbers have at least k/4096 of a chunk's
  /// energy. Bins over six deviations may mix signs. Rounding to bfloat16 is off by 2^-9.
  [[nodiscard]] ErrorBound bound(std::size_t /*n*/) const override {
    if (sigma_) return {.nmse = 1.0 + 0x1p-16, .of_largest = 2.0 + 0x1p-8};
    return {.nmse = 1.0 - 0x1.fp-13, .of_largest = 1.0 + 0x1p-8};
  }
  [[nodiscard]] std::size_t values_sent(std::size_t /*n*/) const override { return chunks_.sent(); }
  [[nodiscard]] std::unique_ptr<Encoder<Space::host>> make_encoder(std::size_t n, int /*ranks*/,
                                                                   Queue<Space::host> queue) const override {
    return std::make_unique<SparseLocoEncoder<Space::host, SparseLoco>>(*this, n, queue);
  }

 private:
  void encode_chunk(const TensorChunk& chunk, const float* gradient, float* held, std::uint32_t* record) const {
    alignas(64) std::array<float, TensorChunk::kMost> numbers;
    alignas(64) std::array<float, TensorChunk::kSide> empty;
    for (std::uint32_t row = 0; row < chunk.rows; ++row) {
      const std::size_t at = chunk.first + row * chunk.stride;
      if (held == nullptr) std::fill_n(empty.data(), chunk.columns, 0.0F);
      carry(gradient + at, beta_, held != nullptr ? held + at : empty.data(), numbers.data() + row * chunk.columns,
            chunk.columns);
    }
    std::array<std::uint16_t, TensorChunk::kMost> positions;
    host::largest_of_chunk(numbers.data(), chunk.size(), chunk.kept, positions.data());

    std::array<float, TensorChunk::kMost> sent;
    std::array<std::uint8_t, TensorChunk::kMost> codes;
    for (std::uint32_t i = 0; i < chunk.kept; ++i) sent[i] = numbers[positions[i]];
    const LocoBins bins = LocoBins::of(sent.data(), chunk.kept, sigma_);
    LocoSums sums;
    for (std::uint32_t i = 0; i < chunk.kept; ++i) {
      codes[i] = static_cast<std::uint8_t>(bins.code(sent[i]));
      sums.add(codes[i], sent[i]);
    }
    record[0] = sums.entry(0) | static_cast<std::uint32_t>(sums.entry(1)) << 16;
    record[1] = sums.entry(2) | static_cast<std::uint32_t>(sums.entry(3)) << 16;
    pack(positions.data(), chunk.kept, kLocoPositionBits, record + LocoRecord::kPositions);
    pack(codes.data(), chunk.kept, kLocoCodeBits, record + LocoRecord::codes(chunk.kept));
    if (held == nullptr) return;

    std::array<float, kLocoCodes> values;
    bool finite = true;
    for (std::uint32_t code = 0; code < kLocoCodes; ++code) {
      values[code] = LocoRecord::value(record, code);
      finite = finite && std::isfinite(values[code]);
    }
    for (std::uint32_t i = 0; i < chunk.kept && finite; ++i) held[chunk.element(positions[i])] -= values[codes[i]];
    for (std::uint32_t row = 0; row < chunk.rows && !finite; ++row)
      std::fill_n(held + chunk.first + row * chunk.stride, chunk.columns, 0.0F);
  }

  /// Calls visit(position, code) for what a chunk's record holds.
  template <class Visit>
  static void each_sent(const TensorChunk& chunk, const std::uint32_t* record, const Visit& visit) {
    const auto stream = [&](std::size_t word, std::uint32_t bits) {
      return host::BitReader{reinterpret_cast<const std::byte*>(record + word),
                             4 * format::packed_words(chunk.kept, bits)};
    };
    auto positions = stream(LocoRecord::kPositions, kLocoPositionBits);
    auto codes = stream(LocoRecord::codes(chunk.kept), kLocoCodeBits);
    std::uint64_t next = 0;  // the least position that may follow
    for (std::uint32_t i = 0; i < chunk.kept; ++i) {
      const std::uint64_t position = positions.take(kLocoPositionBits);
      if (position < next || position >= chunk.size())
        throw_error(Fault::data, "sparseloco payload: position {} of chunk of {}", position, chunk.size());
      next = position + 1;
      visit(static_cast<std::uint32_t>(position), static_cast<std::uint32_t>(codes.take(kLocoCodeBits)));
    }
  }

  float beta_;
  bool sigma_;
  std::size_t k_;
  std::size_t tensors_;
  TensorChunks chunks_;
};

constexpr ParamInfo kParams[] = {
    integer_param("k", "64", {1, 4096},
                  "values that are sent of a chunk of 4096; of a smaller one as large a share, rounded up")
        .searched("16|64|256"),
    real_param("beta", "0.95", {0.0, 1.0}, "decay of the error feedback: e = beta e + g; 1 is plain error feedback"),
    choice_param("bins", "sigma", "sigma|magnitude",
                 "how the values of a chunk are cut into four: as templar does, or large and small of either sign"),
    choice_param("clip", "off", "off|median",
                 "median: what a rank sends of a tensor has at most the median over ranks of its norm")};

}  // namespace

extern constinit const CodecDescriptor sparseloco_codec{
    .name = "sparseloco",
    .summary = "sends the largest 64 of every chunk of 4096 elements in 14 bits each, with decaying error feedback",
    .reference =
        "Sarfi et al., SparseLoCo, 2025, arXiv 2508.15706; Lidin et al., Covenant-72B, 2026, arXiv 2603.08163; templar",
    .params = kParams,
    .aggregation = Aggregation::own,
    .memory = true,
    .delays = true,
    .by_layout = true,
    .payload = "64 + 14 k bits for each chunk of 4096 elements, k values; positions and codes padded to 32",
    .passes = [](const Params&) { return MemoryPasses{.kept = 1, .scatters = true}; },
    .make_host = make_method_codec<Space::host, SparseLoco>,
    .make_host_reducer = make_sparseloco_reducer<Space::host, SparseLoco>,
};

}  // namespace gradtool
