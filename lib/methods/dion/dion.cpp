// Dion: its parameters and description, and what its reducer does beside PowerSGD's steps on the CPU.
#include "lib/codecs/registry.hpp"
#include "lib/methods/dion/format.hpp"
#include "lib/methods/dion/reducer.hpp"

namespace gradtool {
namespace {

class HostDionSteps : public HostLowRankSteps {
 public:
  using HostLowRankSteps::HostLowRankSteps;

  void normalise(Queue<Space::host> queue, HostView<float> q, double keep, bool scaled, HostView<double> lengths,
                 HostView<float> lost) const {
    for_each_matrix(queue, [&](const LowRankMatrix& matrix) {
      double* own = lengths.data() + matrix.column_first;
      for (std::size_t j = 0; j < matrix.rank; ++j)
        own[j] = length_of(q.part(matrix.q_first + j * matrix.columns, matrix.columns));
      for (std::size_t j = 0; j < matrix.rank; ++j) {
        const double length = format::dion_taken(own, matrix.rank, j);
        const double factor = length == 0.0 ? 0.0 : format::dion_length(matrix, scaled) / length;
        const std::size_t first = matrix.q_first + j * matrix.columns;
        for (std::size_t k = first; k < first + matrix.columns; ++k) {
          const auto value = static_cast<double>(q[k]);
          lost[k] = static_cast<float>(value * keep);
          q[k] = static_cast<float>(value * factor);
        }
      }
    });
  }

  void divide(Queue<Space::host> queue, HostView<const double> lengths, bool scaled, HostView<float> t) const {
    for_each_matrix(queue, [&](const LowRankMatrix& matrix) {
      for (std::size_t j = 0; j < matrix.rank; ++j) {
        const double length = format::dion_taken(lengths.data() + matrix.column_first, matrix.rank, j);
        const double factor = length == 0.0 ? 0.0 : 1.0 / (length * format::dion_length(matrix, scaled));
        const auto column = t.part(matrix.p_first + j * matrix.rows, matrix.rows);
        for (float& value : column.span()) value = static_cast<float>(static_cast<double>(value) * factor);
      }
    });
  }

 private:
  static double length_of(HostView<const float> column) {
    double squares = 0.0;
    for (const float x : column.span()) squares += static_cast<double>(x) * static_cast<double>(x);
    return std::sqrt(squares);
  }
};

constexpr ParamInfo kParams[] = {
    real_param("rank_fraction", "0.25", {0.0, 1.0},
               "columns of the factors P and Q, r, as a share of a matrix's shorter side, rounded down; at least one")
        .searched("0.03125|0.0625|0.125|0.25|0.5"),
    integer_param("rank", "256", {1, 256}, "the most columns that factors have; with rank_fraction=1 their number"),
    real_param("mu", "0.95", {0.0, 0.9999}, "share of P R^T that stays in the momentum"),
    choice_param("scale", "shape", "shape|none",
                 "whether the update of a matrix is multiplied by sqrt(rows / columns)")};

}  // namespace

extern constinit const CodecDescriptor dion_codec{
    .name = "dion",
    .summary = "sends low-rank factors of an orthonormal update of a momentum that every rank keeps for itself",
    .reference = "Ahn et al., Dion: distributed orthonormalized updates, arXiv 2504.05295",
    .params = kParams,
    .aggregation = Aggregation::own,
    .memory = true,
    .by_layout = true,
    .target = "the update after one more product with the mean momentum",
    .momentum = "mu",
    .determinism = Determinism::run_to_run,
    .payload = "32 (sum over matrices of r (rows + columns) + other elements) bits",
    .passes =
        [](const Params&) {
          return MemoryPasses{
              .again = ReadAgain::unit, .why = "the second product needs the sum over ranks of the first", .kept = 1};
        },
    .make_host_reducer = make_method_reducer<Space::host, DionReducer<Space::host, HostDionSteps>>,
};

}  // namespace gradtool
