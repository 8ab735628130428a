
#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "kernels/draws.hpp"
#include "kernels/float_bits.hpp"
#include "lib/codecs/payload.hpp"
#include "lib/codecs/registry.hpp"
#include "lib/core/scratch.hpp"
#include "lib/core/task_pool.hpp"
#include "lib/core/throw_error.hpp"
#include "lib/methods/atomo/format.hpp"
#include "lib/methods/atomo/singular.hpp"

namespace gradtool {
namespace {

/// out += factor * v.
GT_SIMD_CLONES void add_times(const float* v, std::size_t count, float factor, float* out) {
  for (std::size_t k = 0; k < count; ++k) out[k] += factor * v[k];
}

constexpr std::size_t kMostLanes = 4;  ///< matrices that are decomposed at the same time

class Atomo final : public Codec<Space::host> {
 public:
  Atomo(const Params& params, const Layout& layout)
      : budget_{static_cast<double>(params.integer("s"))}, format_{params, layout} {
    for (const AtomoTensor& tensor : format_.tensors) {
      if (!tensor.factored()) continue;
      longest_ = std::max<std::size_t>(longest_, tensor.longer_side());
      most_order_ = std::max<std::size_t>(most_order_, tensor.order());
      factored_.push_back(&tensor);
      singular_.emplace_back(tensor.order());
      singular_bytes_ = std::max(singular_bytes_, singular_.back().scratch_bytes());
    }
  }

  [[nodiscard]] Footprint plan(std::size_t n) const override {
    expects(n == format_.elements, "codec atomo works on the layout that it was made for");
    return {
        .payload_bytes = format_.most_bytes(), .scratch_bytes = planned<Workspace>(*this), .exact = factored_.empty()};
  }

  void encode(Queue<Space::host> queue, HostView<const float> gradient, const EncodeContext& context,
              HostView<std::byte> payload, HostView<std::byte> scratch) const override {
    if (format_.elements == 0) return;
    auto* counts = section<std::uint32_t>(payload, 8);
    auto* values = section<float>(payload, format_.header_bytes());
    for (const AtomoTensor& tensor : format_.tensors) {
      if (!tensor.factored()) std::memcpy(values + tensor.slot, gradient.data() + tensor.first, 4 * tensor.elements);
    }
    const Workspace work{*this, Scratch<Space::host>{scratch}};
    std::atomic<std::size_t> next{0};
    if (work.lane_count > 0) {
      parallel_parts(queue, work.lane_count, work.lane_count, 1, [&](std::size_t lane, std::size_t, std::size_t) {
        for (std::size_t m = next++; m < factored_.size(); m = next++) {
          const AtomoTensor& tensor = *factored_[m];
          counts[m] =
              factorise(tensor, singular_[m], gradient.data(), context.key, values + tensor.slot, work.lanes[lane]);
        }
      });
    }
    std::size_t written = 0;  // floats; closes the gaps between the slots, each of which moves towards the front
    for (const AtomoTensor& tensor : format_.tensors) {
      const std::size_t floats = tensor.factored() ? counts[tensor.matrix] * tensor.triplet() : tensor.elements;
      std::memmove(values + written, values + tensor.slot, 4 * floats);
      written += floats;
    }
    const std::uint64_t bytes = format_.header_bytes() + 4 * written;
    std::memcpy(payload.data(), &bytes, sizeof bytes);
  }

  void decode_add(Queue<Space::host> queue, HostView<const std::byte> payload, float weight, HostView<float> out,
                  HostView<std::byte> /*scratch*/) const override {
    expects(out.size() == format_.elements, "codec atomo works on the layout that it was made for");
    check(payload);
    if (format_.elements == 0) return;
    const auto* counts = section<std::uint32_t>(payload, 8);
    const auto* values = section<float>(payload, format_.header_bytes());
    for (const AtomoTensor& tensor : format_.tensors) {
      float* to = out.data() + tensor.first;
      if (!tensor.factored()) {
        for (std::size_t i = 0; i < tensor.elements; ++i) to[i] += weight * values[i];
        values += tensor.elements;
        continue;
      }
      const std::size_t count = counts[tensor.matrix];
      parallel_for(queue, tensor.rows, 1, std::max<std::size_t>(1, 32768 / tensor.columns),
                   [&](std::size_t first, std::size_t last) {
                     for (; first < last; ++first) add_row(tensor, values, count, weight, first, to);
                   });
      values += count * tensor.triplet();
    }
  }

  /// The estimate is unbiased, not close: its error may exceed the gradient.
  [[nodiscard]] ErrorBound bound(std::size_t /*n*/) const override {
    if (factored_.empty()) return {.nmse = 0.0, .of_largest = 0.0};
    return {};
  }
  [[nodiscard]] std::size_t values_sent(std::size_t /*n*/) const override { return format_.most_floats; }
  [[nodiscard]] std::size_t values_in(HostView<const std::byte> payload, std::size_t n) const override {
    return n == 0 ? 0 : (payload.size() - format_.header_bytes()) / 4;
  }

 private:
  /// Scratch in which one matrix is decomposed.
  struct Lane {
    HostView<std::byte> singular;
    HostView<double> probabilities;
    HostView<double> longer;  ///< a singular vector of the longer side
  };
  struct Workspace {
    Workspace(const Atomo& codec, Scratch<Space::host> scratch)
        : lane_count{std::min(kMostLanes, codec.factored_.size())} {
      for (std::size_t lane = 0; lane < lane_count; ++lane) {
        lanes[lane].singular = scratch.take_bytes(codec.singular_bytes_);
        lanes[lane].probabilities = scratch.take<double>(codec.most_order_);
        lanes[lane].longer = scratch.take<double>(codec.longest_);
      }
    }
    std::size_t lane_count;
    std::array<Lane, kMostLanes> lanes;
  };

  /// Draws for each triplet j by itself whether it is kept, with probability p_j (section 3), writes those that are,
  /// with the weight sigma_j / p_j, and returns their number.
  std::uint32_t factorise(const AtomoTensor& tensor, const host::SingularVectors& singular, const float* gradient,
                          const format::DrawKey& key, float* out, const Lane& work) const {
    const host::PaddedMatrix matrix{gradient + tensor.first, tensor.rows, tensor.columns, tensor.elements};
    const std::size_t order = tensor.order();
    double* longer = work.longer.data();
    const auto not_a_number = [&tensor, first = out] {  // one triplet that decodes to NaN everywhere
      std::fill_n(first, tensor.triplet(), 1.0F);
      *first = std::numeric_limits<float>::quiet_NaN();
      return 1U;
    };
    auto triplets = singular.decompose(matrix, work.singular);
    const double* values = triplets.values();
    if (values == nullptr) return not_a_number();
    const double* probability = work.probabilities.data();
    format::atomic_probabilities(values, order, budget_, work.probabilities.data());
    std::uint32_t kept = 0;
    for (std::size_t j = 0; j < order; ++j) {
      const std::size_t draw = tensor.first_draw + j;
      const float u = format::uniform(format::draw4(key, draw / 4).bits[draw % 4]);
      if (!(static_cast<double>(u) < probability[j])) continue;
      const double* shorter = triplets.vector(j);
      if (shorter == nullptr) return not_a_number();
      host::other_side(matrix, shorter, longer);
      double square = 0.0;
      for (std::size_t i = 0; i < tensor.longer_side(); ++i) square += longer[i] * longer[i];
      if (!(square > 0.0)) continue;
      const double sigma = std::sqrt(square);
      *out++ = static_cast<float>(sigma / probability[j]);
      for (std::size_t i = 0; i < tensor.rows; ++i)
        *out++ = static_cast<float>(tensor.wide() ? shorter[i] : longer[i] / sigma);
      for (std::size_t k = 0; k < tensor.columns; ++k)
        *out++ = static_cast<float>(tensor.wide() ? longer[k] / sigma : shorter[k]);
      ++kept;
    }
    return kept;
  }

  /// Row i of a factored tensor += weight * the sum of its triplets.
  static void add_row(const AtomoTensor& tensor, const float* triplet, std::size_t count, float weight, std::size_t i,
                      float* out) {
    const std::size_t first = i * tensor.columns;
    if (first >= tensor.elements) return;
    const std::size_t length = std::min(tensor.columns, tensor.elements - first);
    for (std::size_t t = 0; t < count; ++t, triplet += tensor.triplet()) {
      const float factor = weight * (triplet[0] * triplet[1 + i]);
      const float* v = triplet + 1 + tensor.rows;
      add_times(v, length, factor, out + first);
    }
  }

  void check(HostView<const std::byte> payload) const {
    std::size_t expected = format_.header_bytes();
    if (payload.size() >= expected) {
      for (const AtomoTensor& tensor : format_.tensors) {
        if (!tensor.factored()) {
          expected += 4 * tensor.elements;
          continue;
        }
        const std::size_t count = section<std::uint32_t>(payload, 8)[tensor.matrix];
        if (count > tensor.order())
          throw_error(Fault::data, "atomo payload: {} triplets of a matrix of rank {} at most", count, tensor.order());
        expected += 4 * count * tensor.triplet();
      }
    }
    expect_length("atomo", payload.size(), expected);
    std::uint64_t stated = expected;
    if (expected > 0) std::memcpy(&stated, payload.data(), sizeof stated);
    expect_length("atomo", stated, expected);
  }

  double budget_;  ///< the paper's s: triplets of a matrix that are kept on average
  AtomoFormat format_;
  std::vector<const AtomoTensor*> factored_;                       ///< pointers into the format
  std::vector<host::SingularVectors> singular_;                    ///< of the factored tensors
  std::size_t singular_bytes_ = 0, most_order_ = 0, longest_ = 0;  ///< the most that any of them needs
};

constexpr ParamInfo kParams[] = {
    integer_param("s", "3", {1, 1e4}, "singular triplets of a matrix that are sent, on average").searched("1|2|3|6|12"),
    choice_param("vectors", "dense", "dense|square",
                 "whether tensors of one dimension are sent as they are or folded to an almost square matrix")};

}  // namespace

extern constinit const CodecDescriptor atomo_codec{
    .name = "atomo",
    .summary = "sends a few singular triplets of each matrix, drawn so that their mean is the gradient",
    .reference = "Wang et al., ATOMO, NeurIPS 2018, arXiv 1806.04090",
    .params = kParams,
    .unbiased = true,
    .by_layout = true,
    .determinism = Determinism::run_to_run,
    .payload = "64 + 32 F + 32 (sum over F matrices of about s (rows + columns + 1) + other elements) bits",
    .passes =
        [](const Params&) {
          return MemoryPasses{.again = ReadAgain::tensor,
                              .why = "the factors of one side are the products of a matrix with those of the other"};
        },
    .make_host = make_method_codec<Space::host, Atomo>,
};

}  // namespace gradtool
