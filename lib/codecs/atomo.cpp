#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "kernels/host/singular.hpp"
#include "kernels/law/hd.hpp"
#include "kernels/law/philox.hpp"
#include "lib/codecs/atomo_parts.hpp"
#include "lib/codecs/cuda_factories.hpp"
#include "lib/codecs/payload.hpp"
#include "lib/codecs/registry.hpp"
#include "lib/core/arena.hpp"
#include "lib/core/task_pool.hpp"

namespace gradtool {
namespace {

using Part = AtomoTensor;

GT_SIMD_CLONES void add_times(const float* v, std::size_t count, float factor, float* out) {
  for (std::size_t k = 0; k < count; ++k) out[k] += factor * v[k];
}

/// Matrices that are decomposed at the same time, each in a scratch of its own.
constexpr std::size_t kLanes = 4;

class Atomo final : public Codec<Space::host>, AtomoParts {
 public:
  Atomo(const Params& params, const Layout& layout)
      : AtomoParts{params, layout}, budget_{static_cast<double>(params.integer("s"))} {
    std::size_t longest = 0;
    for (std::size_t p = 0; p < parts.size(); ++p) {
      const Part& part = parts[p];
      if (!part.factored()) continue;
      longest = std::max(longest, std::max(part.rows, part.columns));
      most_ = std::max(most_, part.order());
      scratch_ = std::max(scratch_, host::SingularVectors{part.order()}.scratch_bytes());
      factored_.push_back(p);
      vectors_.emplace_back(part.order());
    }
    lane_ = padded(scratch_) + padded(8 * most_) + padded(8 * longest);
  }

  [[nodiscard]] Footprint plan(std::size_t n) const override {
    expects(n == elements, "codec atomo works on the layout that it was made for");
    return {.payload_bytes = header() + 4 * most_floats,
            .scratch_bytes = std::min(kLanes, factored_.size()) * lane_,
            .exact = factored_.empty()};
  }

  void encode(Queue<Space::host> queue, HostView<const float> gradient, const EncodeContext& context,
              HostView<std::byte> payload, HostView<std::byte> scratch) const override {
    if (elements == 0) return;
    auto* counts = section<std::uint32_t>(payload, 8);
    auto* values = section<float>(payload, header());
    for (const Part& part : parts) {
      if (!part.factored()) std::memcpy(values + part.slot, gradient.data() + part.first, 4 * part.elements);
    }
    const std::size_t lanes = std::min(kLanes, factored_.size());
    std::atomic<std::size_t> next{0};
    if (lanes > 0) {
      parallel_parts(queue, lanes, lanes, 1, [&](std::size_t lane, std::size_t, std::size_t) {
        for (std::size_t f = next++; f < factored_.size(); f = next++) {
          const Part& part = parts[factored_[f]];
          counts[part.count] = factorise(part, vectors_[f], gradient.data(), context.key, values + part.slot,
                                         scratch.part(lane * lane_, lane_));
        }
      });
    }
    std::size_t at = 0;  // the slots move together, each not beyond where it was
    for (const Part& part : parts) {
      const std::size_t floats = part.factored() ? counts[part.count] * part.triplet() : part.elements;
      std::memmove(values + at, values + part.slot, 4 * floats);
      at += floats;
    }
    const std::uint64_t bytes = header() + 4 * at;
    std::memcpy(payload.data(), &bytes, sizeof bytes);
  }

  void decode_add(Queue<Space::host> queue, HostView<const std::byte> payload, float weight, HostView<float> out,
                  HostView<std::byte> /*scratch*/) const override {
    expects(out.size() == elements, "codec atomo works on the layout that it was made for");
    check(payload);
    if (elements == 0) return;
    const auto* counts = section<std::uint32_t>(payload, 8);
    const auto* values = section<float>(payload, header());
    for (const Part& part : parts) {
      float* to = out.data() + part.first;
      if (!part.factored()) {
        for (std::size_t i = 0; i < part.elements; ++i) to[i] += weight * values[i];
        values += part.elements;
        continue;
      }
      const std::size_t count = counts[part.count];
      parallel_for(queue, part.rows, 1, std::max<std::size_t>(1, 32768 / part.columns),
                   [&](std::size_t first, std::size_t last) {
                     for (; first < last; ++first) add_row(part, values, count, weight, first, to);
                   });
      values += count * part.triplet();
    }
  }

  /// The estimate is unbiased, not close: its error may exceed the gradient.
  [[nodiscard]] ErrorBound bound(std::size_t /*n*/) const override {
    if (factored_.empty()) return {.nmse = 0.0, .of_largest = 0.0};
    return {};
  }
  [[nodiscard]] std::size_t values_sent(std::size_t /*n*/) const override { return most_floats; }
  [[nodiscard]] std::size_t values_in(HostView<const std::byte> payload, std::size_t n) const override {
    return n == 0 ? 0 : (payload.size() - header()) / 4;
  }

 private:
  static constexpr std::size_t padded(std::size_t bytes) { return Arena<Space::host>::padded_size(bytes); }
  /// Writes the triplets that are kept: p_j decides on each alone (section 3), weight sigma_j / p_j. Returns how many.
  std::uint32_t factorise(const Part& part, const host::SingularVectors& singular, const float* gradient,
                          const law::DrawKey& key, float* out, HostView<std::byte> scratch) const {
    const host::PaddedMatrix matrix{gradient + part.first, part.rows, part.columns, part.elements};
    const std::size_t order = part.order();
    auto* probability = reinterpret_cast<double*>(scratch.data() + padded(scratch_));
    auto* other = reinterpret_cast<double*>(scratch.data() + padded(scratch_) + padded(8 * most_));
    const auto [values, vectors] = singular.decompose(matrix, scratch.first(scratch_));
    if (values == nullptr) {  // not finite: one triplet that makes all of it so
      std::fill_n(out, part.triplet(), 1.0F);
      out[0] = std::numeric_limits<float>::quiet_NaN();
      return 1;
    }
    host::atomic_probabilities({values, order}, budget_, {probability, order});
    std::uint32_t kept = 0;
    for (std::size_t j = 0; j < order; ++j) {
      const std::size_t draw = part.draw + j;
      const float u = law::uniform(law::draw4(key, draw / 4).bits[draw % 4]);
      if (!(static_cast<double>(u) < probability[j])) continue;
      const double* mine = vectors + j * order;
      host::other_side(matrix, mine, other);
      const std::size_t length = part.rows + part.columns - order;
      double square = 0.0;
      for (std::size_t i = 0; i < length; ++i) square += other[i] * other[i];
      if (!(square > 0.0)) continue;
      const double sigma = std::sqrt(square);
      *out++ = static_cast<float>(sigma / probability[j]);
      const bool wide = part.rows <= part.columns;
      for (std::size_t i = 0; i < part.rows; ++i) *out++ = static_cast<float>(wide ? mine[i] : other[i] / sigma);
      for (std::size_t k = 0; k < part.columns; ++k) *out++ = static_cast<float>(wide ? other[k] / sigma : mine[k]);
      ++kept;
    }
    return kept;
  }

  /// Row i of a part += weight * sum of its triplets.
  static void add_row(const Part& part, const float* triplet, std::size_t count, float weight, std::size_t i,
                      float* out) {
    const std::size_t first = i * part.columns;
    if (first >= part.elements) return;
    const std::size_t length = std::min(part.columns, part.elements - first);
    for (std::size_t t = 0; t < count; ++t, triplet += part.triplet()) {
      const float factor = weight * (triplet[0] * triplet[1 + i]);
      const float* v = triplet + 1 + part.rows;
      add_times(v, length, factor, out + first);
    }
  }

  void check(HostView<const std::byte> payload) const {
    std::size_t expected = header();
    if (payload.size() >= expected) {
      for (const Part& part : parts) {
        if (!part.factored()) {
          expected += 4 * part.elements;
          continue;
        }
        const std::size_t count = section<std::uint32_t>(payload, 8)[part.count];
        if (count > part.order()) {
          throw Error{Fault::data,
                      fmt::format("atomo payload: {} triplets of a matrix of rank {} at most", count, part.order())};
        }
        expected += 4 * count * part.triplet();
      }
    }
    expect_length("atomo", payload.size(), expected);
    std::uint64_t stated = expected;
    if (expected > 0) std::memcpy(&stated, payload.data(), sizeof stated);
    expect_length("atomo", stated, expected);
  }

  double budget_;  ///< s
  std::vector<std::size_t> factored_;
  std::vector<host::SingularVectors> vectors_;  ///< of the factored parts
  std::size_t scratch_ = 0, most_ = 0, lane_ = 0;
};

constexpr ParamInfo kParams[] = {
    {.name = "s",
     .kind = ParamInfo::Kind::integer,
     .default_value = "3",
     .min = 1,
     .max = 1e4,
     .meaning = "singular triplets that are sent of a matrix, on average"},
    {.name = "vectors",
     .kind = ParamInfo::Kind::choice,
     .default_value = "dense",
     .choices = "dense|square",
     .meaning = "tensors of one dimension: as they are, or folded to an almost square matrix"}};

}  // namespace

extern constinit const CodecDescriptor atomo_codec{
    .name = "atomo",
    .summary = "a few singular triplets of each matrix, drawn so that the mean is the gradient",
    .reference = "Wang et al., ATOMO, NeurIPS 2018, arXiv 1806.04090",
    .description =
        "A tensor of two or more dimensions is a matrix, first dimension by all others, with singular values sigma_j. "
        "Triplet j is kept with probability p_j = min(1, c sigma_j), c such that the p_j sum to s, each by a draw of "
        "its "
        "own, and travels as (sigma_j/p_j, u_j, v_j): unbiased, without error feedback. We decided, where the paper "
        "leaves it open: no folding of convolutions to squarer matrices; tensors that s triplets would not shrink, and "
        "by default those of one dimension, travel as they are (vectors=square folds these); vectors of the shorter "
        "side come from the Gram matrix in float64, the other side from the gradient itself, so that the sum over all "
        "triplets is the gradient to rounding. A matrix with a value that is not finite decodes to NaN. It pays where "
        "a few singular values dominate; the decomposition costs more than any other codec's arithmetic, and payloads "
        "are gathered. On a GPU the Gram matrix is cuBLAS's and the vectors are cuSOLVER's, which rounds in its own "
        "way (hence run_to_run): factors differ by some 10^-7 of the largest, and a triplet whose draw lies within "
        "10^-10 of its probability may be kept by one and not by the other.",
    .params = kParams,
    .aggregation = Aggregation::gather,
    .unbiased = true,
    .by_layout = true,
    .determinism = Determinism::run_to_run,
    .payload = "64 + 32 F + 32 (sum over F matrices of about s (rows + columns + 1) + other elements) bits",
    .make_host = [](const Params& p, const Layout& layout) -> std::unique_ptr<Codec<Space::host>> {
      return std::make_unique<Atomo>(p, layout);
    },
    .make_cuda = GT_MAKE_CUDA(make_cuda_atomo),
};

}  // namespace gradtool
