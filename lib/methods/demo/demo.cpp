
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "kernels/chunk_select.hpp"
#include "kernels/sums.hpp"
#include "lib/codecs/payload.hpp"
#include "lib/codecs/registry.hpp"
#include "lib/codecs/tensor_chunks.hpp"
#include "lib/core/scratch.hpp"
#include "lib/core/throw_error.hpp"
#include "lib/methods/demo/cosine.hpp"
#include "lib/methods/demo/format.hpp"
#include "lib/methods/demo/reducer.hpp"

namespace gradtool {
namespace {

/// A number for each coefficient of a chunk.
template <class T>
struct alignas(64) OfChunk : std::array<T, TensorChunk::kMost> {};

/// held := beta held + c, and c := the same.
GT_SIMD_CLONES void carry(float beta, float* held, float* c, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    const float sum = format::demo_carry(held[i], c[i], beta);
    held[i] = sum;
    c[i] = sum;
  }
}

class Demo final : public Codec<Space::host> {
 public:
  Demo(const Params& params, const Layout& layout)
      : options_{params},
        tensors_{layout.tensors.size()},
        chunks_{layout, options_.k, 0, [](std::size_t) { return std::size_t{0}; }},
        bases_{chunks_},
        sections_{tensors_, chunks_.sent(), options_.signs} {}

  [[nodiscard]] Footprint plan(std::size_t n) const override {
    expects(n == chunks_.elements(), "codec demo: made for another layout");
    return {.payload_bytes = sections_.bytes, .scratch_bytes = planned<Workspace>(*this)};
  }

  /// The first step, from an empty momentum.
  void encode(Queue<Space::host> queue, HostView<const float> gradient, const EncodeContext& /*context*/,
              HostView<std::byte> payload, HostView<std::byte> scratch) const override {
    step(queue, gradient, nullptr, payload, scratch);
  }

  /// One step of one rank; `state` is null for an empty momentum that is not kept.
  void step(Queue<Space::host> queue, HostView<const float> gradient, DemoState<Space::host>* state,
            HostView<std::byte> payload, HostView<std::byte> scratch) const {
    const Workspace work{*this, Scratch<Space::host>{scratch}};
    auto* positions = section<std::uint16_t>(payload, sections_.positions);
    host::for_pieces(queue, chunks_.chunks().size(), chunks_.elements(), [&](std::size_t index) {
      const TensorChunk& chunk = chunks_.chunks()[index];
      OfChunk<float> c;
      host::cosine_forward(chunk, bases_, gradient.data(), c.data());
      if (state != nullptr) {
        carry(options_.beta, state->momentum.data() + chunk.before, c.data(), chunk.size());
      } else {
        for (std::size_t i = 0; i < chunk.size(); ++i) c[i] = format::one_nan(c[i]);
      }
      host::largest_of_chunk(c.data(), chunk.size(), chunk.kept, positions + chunk.sent);
      double sum = 0.0;
      for (std::size_t i = chunk.sent; i < chunk.sent + chunk.kept; ++i) {
        const float value = c[positions[i]];
        sum += std::abs(static_cast<double>(value));
        if (options_.signs)
          work.signs[i] = format::bits_of(value) >> 31;
        else
          section<float>(payload, sections_.values)[i] = value;
      }
      if (options_.signs) work.sums[index] = sum;
      if (state != nullptr) take_out(chunk, c.data(), positions, std::isfinite(sum), *state);
    });
    std::memset(positions + chunks_.sent(), 0, sections_.bytes - sections_.positions - 2 * chunks_.sent());
    if (options_.signs) write_signs(work, payload);
  }

  void decode_add(Queue<Space::host> queue, HostView<const std::byte> payload, float weight, HostView<float> out,
                  HostView<std::byte> /*scratch*/) const override {
    expect_length("demo", payload.size(), sections_.bytes);
    chunks_.each(queue, [&](const TensorChunk& chunk) {
      OfChunk<float> c;
      std::fill_n(c.data(), chunk.size(), 0.0F);
      each_sent(chunk, payload, [&](std::size_t position, float value) { c[position] = value; });
      each_inverse(chunk, c.data(), [&](std::size_t i, float value) { out[i] += weight * value; });
    });
  }

  /// result := the coefficients' mean over ranks, transformed back.
  void combine(Queue<Space::host> queue, std::span<const HostView<const std::byte>> payloads, HostView<float> result,
               HostView<std::byte> /*scratch*/) const {
    const auto ranks = static_cast<std::uint32_t>(payloads.size());
    chunks_.each(queue, [&](const TensorChunk& chunk) {
      OfChunk<float> c;
      OfChunk<std::uint32_t> senders;
      std::fill_n(c.data(), chunk.size(), 0.0F);
      std::fill_n(senders.data(), chunk.size(), 0U);
      for (const auto& payload : payloads) {
        each_sent(chunk, payload, [&](std::size_t position, float value) {
          c[position] += value;
          ++senders[position];
        });
      }
      for (std::size_t i = 0; i < chunk.size(); ++i)
        c[i] = format::demo_mean(c[i], options_.senders ? senders[i] : ranks);
      each_inverse(chunk, c.data(), [&](std::size_t i, float value) {
        result[i] = options_.sign_of_result ? format::demo_sign(value) : value;
      });
    });
  }

  /// out := the momentum as it was before what was sent was taken out.
  void restore(Queue<Space::host> queue, const DemoState<Space::host>& state, HostView<float> /*room*/,
               HostView<float> out) const {
    chunks_.each(queue, [&](const TensorChunk& chunk) {
      OfChunk<float> c;
      std::copy_n(state.momentum.data() + chunk.before, chunk.size(), c.data());
      for (std::size_t i = chunk.sent; i < chunk.sent + chunk.kept; ++i) c[state.positions[i]] = state.values[i];
      each_inverse(chunk, c.data(), [&](std::size_t i, float value) { out[i] = value; });
    });
  }

  /// Coefficients of a payload.
  [[nodiscard]] std::size_t sent() const { return chunks_.sent(); }

  /// The transform keeps energy, and the coefficients that are sent have at least their share of it. A sign times the
  /// mean magnitude leaves no more energy than its coefficients have.
  [[nodiscard]] ErrorBound bound(std::size_t /*n*/) const override {
    if (options_.signs) return {.nmse = 1.0 + 1e-5};
    return {.nmse = 1.0 - static_cast<double>(options_.k) / TensorChunk::kMost + 1e-5};
  }
  [[nodiscard]] std::size_t values_sent(std::size_t /*n*/) const override { return chunks_.sent(); }
  [[nodiscard]] std::unique_ptr<Encoder<Space::host>> make_encoder(std::size_t n, int /*ranks*/,
                                                                   Queue<Space::host> queue) const override {
    return std::make_unique<DemoEncoder<Space::host, Demo>>(*this, n, queue);
  }

 private:
  /// Scratch that signs need besides: one in each number, up to whole words, and the sum of magnitudes of each chunk.
  struct Workspace {
    Workspace(const Demo& codec, Scratch<Space::host> pieces)
        : signs{pieces.take<std::uint32_t>(codec.options_.signs ? 32 * mark_words(codec.chunks_.sent()) : 0)},
          sums{pieces.take<double>(codec.options_.signs ? codec.chunks_.chunks().size() : 0)} {}
    HostView<std::uint32_t> signs;
    HostView<double> sums;
  };

  /// Takes what was sent of a chunk out of the momentum, true values and not what signs decode to, and notes it. A
  /// chunk that is not finite is forgotten.
  static void take_out(const TensorChunk& chunk, const float* c, const std::uint16_t* positions, bool finite,
                       const DemoState<Space::host>& state) {
    float* momentum = state.momentum.data() + chunk.before;
    for (std::size_t i = chunk.sent; i < chunk.sent + chunk.kept; ++i) {
      state.positions[i] = positions[i];
      state.values[i] = c[positions[i]];
      momentum[positions[i]] = 0.0F;
    }
    if (!finite) std::fill_n(momentum, chunk.size(), 0.0F);
  }

  /// The mean magnitude of each tensor's coefficients, whose sum adds chunks as a GroupedSum, and the signs.
  void write_signs(const Workspace& work, HostView<std::byte> payload) const {
    auto* scales = section<float>(payload);
    const auto& chunks = chunks_.chunks();
    for (std::size_t t = 0, index = 0; t < tensors_ && chunks_.sent() > 0; ++t) {
      format::GroupedSum sum;
      std::uint64_t count = 0;
      for (; index < chunks.size() && chunks[index].tensor == t; ++index) {
        sum.add(work.sums[index]);
        count += chunks[index].kept;
      }
      scales[t] = format::stored_mean(sum.value(), count);
    }
    auto* words = section<std::uint32_t>(payload, sections_.values);
    std::fill(work.signs.data() + chunks_.sent(), work.signs.data() + work.signs.size(), 0U);
    for (std::size_t w = 0; w < mark_words(chunks_.sent()); ++w) words[w] = host::word_of(work.signs.data() + 32 * w);
  }

  /// Calls visit(position, value) for the coefficients of a chunk in a payload.
  template <class Visit>
  void each_sent(const TensorChunk& chunk, HostView<const std::byte> payload, const Visit& visit) const {
    const auto* positions = section<std::uint16_t>(payload, sections_.positions);
    const auto* values = section<float>(payload, sections_.values);
    const auto* signs = section<std::uint32_t>(payload, sections_.values);
    const float scale = options_.signs ? section<float>(payload)[chunk.tensor] : 0.0F;
    std::size_t next = 0;  // the least position that may follow
    for (std::size_t i = chunk.sent; i < chunk.sent + chunk.kept; ++i) {
      const std::size_t position = positions[i];
      if (position < next || position >= chunk.size())
        throw_error(Fault::data, "demo payload: position {} in a chunk of {}", position, chunk.size());
      next = position + 1;
      visit(position, !options_.signs ? values[i] : (signs[i / 32] >> i % 32 & 1U) != 0 ? -scale : scale);
    }
  }

  /// Calls visit(i, value) for every element i of the unit that a chunk's coefficients stand for.
  template <class Visit>
  void each_inverse(const TensorChunk& chunk, const float* c, const Visit& visit) const {
    OfChunk<float> block;
    host::cosine_inverse(chunk, bases_, c, block.data());
    for (std::size_t row = 0; row < chunk.rows; ++row) {
      const std::size_t at = chunk.first + row * chunk.stride;
      for (std::size_t column = 0; column < chunk.columns; ++column)
        visit(at + column, block[row * CosineBases::kSide + column]);
    }
  }

  DemoOptions options_;
  std::size_t tensors_;
  TensorChunks chunks_;
  CosineBases bases_;
  format::DemoSections sections_;
};

constexpr ParamInfo kParams[] = {
    integer_param("k", "32", {1, 4096},
                  "coefficients that are sent of a chunk of 4096; of a smaller one as large a share, rounded up")
        .searched("4|32|256"),
    real_param("beta", "0.999", {0.0, 1.0}, "decay of the momentum: m = beta m + g"),
    choice_param("values", "f32", "f32|sign",
                 "coefficients as float32, or their signs and the mean magnitude of each tensor"),
    choice_param("average", "senders", "senders|all",
                 "a coefficient is averaged over the ranks that sent it, as in DeMo, or over all"),
    choice_param("sign", "off", "off|on",
                 "on: the result is +1, 0 or -1, as DeMo's update; it has no meaningful NMSE")};

}  // namespace

extern constinit const CodecDescriptor demo_codec{
    .name = "demo",
    .summary = "sends the largest cosine coefficients of chunks of a momentum that every rank keeps for itself",
    .reference = "Peng, Quesnelle, Kingma, DeMo: Decoupled Momentum Optimization, 2024, arXiv 2411.19870; bloc97/DeMo",
    .params = kParams,
    .aggregation = Aggregation::own,
    .memory = true,
    .by_layout = true,
    .target = "the mean of the momenta",
    .momentum = "beta",
    .payload = "48 k bits for each chunk of 4096 elements, k coefficients; values=sign: 17 k, and 32 T for T tensors",
    .make_host = make_method_codec<Space::host, Demo>,
    .make_host_reducer = make_method_reducer<Space::host, DemoReducer<Space::host, Demo>>,
};

}  // namespace gradtool
