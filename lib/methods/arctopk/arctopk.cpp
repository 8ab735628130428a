// ARC-Top-K: its parameters and description, and what its reducer does beside PowerSGD's first product on the CPU.
#include <numeric>

#include "lib/codecs/registry.hpp"
#include "lib/methods/arctopk/reducer.hpp"

namespace gradtool {
namespace {

class HostArcSteps : public HostLowRankSteps {
 public:
  HostArcSteps(const LowRankPlan& plan, const std::vector<KeptRows>& kept, Queue<Space::host> queue)
      : HostLowRankSteps{plan, queue}, plan_{plan}, kept_{kept} {}

  struct Choice {
    Choice(const HostArcSteps& steps, Scratch<Space::host>& scratch)
        : scores{scratch.take<std::uint32_t>(steps.rows())},
          order{scratch.take<std::uint32_t>(steps.rows())},
          rows{scratch.take<std::uint32_t>(steps.rows_kept())} {}
    HostView<std::uint32_t> scores, order;  ///< of the rows of all matrices
    HostView<std::uint32_t> rows;           ///< chosen, of all matrices
  };

  void choose(const Choice& choice, Queue<Space::host> queue, HostView<const float> p) const {
    for_each_matrix(queue, [&](const LowRankMatrix& matrix) {
      const KeptRows& kept = kept_of(matrix);
      std::uint32_t* scores = choice.scores.data() + kept.score_first;
      std::uint32_t* order = choice.order.data() + kept.score_first;
      for (std::size_t row = 0; row < matrix.rows; ++row) scores[row] = format::row_score(matrix, p.data(), row);
      std::iota(order, order + matrix.rows, 0u);
      std::nth_element(order, order + kept.count - 1, order + matrix.rows, [&](std::uint32_t a, std::uint32_t b) {
        return scores[a] != scores[b] ? scores[a] > scores[b] : a < b;
      });
      std::sort(order, order + kept.count);
      std::copy_n(order, kept.count, choice.rows.data() + kept.first);
    });
  }

  void gather(const Choice& choice, Queue<Space::host> queue, HostView<const float> m, HostView<float> message) const {
    for_each_row(choice, queue, [&](const LowRankMatrix& matrix, std::size_t row, std::size_t place) {
      std::copy_n(m.data() + matrix.first + row * matrix.columns, matrix.columns, message.data() + place);
    });
  }

  void place(const Choice& choice, Queue<Space::host> queue, HostView<const float> message, float share,
             HostView<float> out, HostView<float> residual) const {
    for_each_matrix(queue, [&](const LowRankMatrix& matrix) {
      std::fill_n(out.data() + matrix.first, matrix.rows * matrix.columns, 0.0F);
    });
    for_each_row(choice, queue, [&](const LowRankMatrix& matrix, std::size_t row, std::size_t place) {
      const std::size_t first = matrix.first + row * matrix.columns;
      for (std::size_t k = 0; k < matrix.columns; ++k) out[first + k] = message[place + k] * share;
      if (!residual.empty()) std::fill_n(residual.data() + first, matrix.columns, 0.0F);
    });
  }

 private:
  [[nodiscard]] std::size_t rows() const {
    return kept_.empty() ? 0 : kept_.back().score_first + plan_.matrices.back().rows;
  }
  [[nodiscard]] std::size_t rows_kept() const { return kept_.empty() ? 0 : kept_.back().first + kept_.back().count; }
  [[nodiscard]] const KeptRows& kept_of(const LowRankMatrix& matrix) const {
    return kept_[static_cast<std::size_t>(&matrix - plan_.matrices.data())];
  }

  /// body(matrix, row, where the row begins in the second message) for the chosen rows, in parallel.
  template <class Body>
  void for_each_row(const Choice& choice, Queue<Space::host> queue, const Body& body) const {
    for_each_matrix(queue, [&](const LowRankMatrix& matrix) {
      const KeptRows& kept = kept_of(matrix);
      for (std::size_t i = 0; i < kept.count; ++i)
        body(matrix, choice.rows[kept.first + i], kept.message_first + i * matrix.columns);
    });
  }

  const LowRankPlan& plan_;
  const std::vector<KeptRows>& kept_;
};

constexpr ParamInfo kParams[] = {
    {.name = "ratio",
     .default_value = "0.2",
     .min = 0.0,
     .max = 1.0,
     .search = "0.02|0.05|0.1|0.2|0.4",
     .meaning = "share of the rows of a matrix that is sent, rounded up; at least one is"},
    {.name = "rank",
     .kind = ParamInfo::Kind::integer,
     .default_value = "4",
     .min = 1,
     .max = 256,
     .meaning = "columns of the random projection that rows are chosen by, r"},
    {.name = "start_iteration",
     .kind = ParamInfo::Kind::integer,
     .default_value = "0",
     .min = 0,
     .max = 1e9,
     .meaning = "gradients of earlier training iterations are sent as they are; 0 because a replay does not train"}};

}  // namespace

extern constinit const CodecDescriptor arctopk_codec{
    .name = "arctopk",
    .summary = "the same rows on all ranks, chosen by a shared random projection, summed by the all-reduce",
    .reference = "ARC-Top-K, arXiv 2510.26709",
    .params = kParams,
    .aggregation = Aggregation::own,
    .error_feedback = true,
    .by_layout = true,
    .determinism = Determinism::run_to_run,
    .payload = "32 (sum over matrices of r rows + k columns, + other elements) bits, k = ceil(ratio rows)",
    .passes = [](const Params&) { return MemoryPasses{.again = ReadAgain::never, .why = "", .scatters = false}; },
    .make_host = nullptr,
    .make_host_reducer = [](const ReducerSetup<Space::host>& setup) -> std::unique_ptr<Reducer<Space::host>> {
      return std::make_unique<ArcTopKReducer<Space::host, HostArcSteps>>(setup);
    },
};

}  // namespace gradtool
