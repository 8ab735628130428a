#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/float_bits.hpp"
#include "lib/core/arena.hpp"
#include "lib/core/scratch.hpp"
#include "lib/core/view.hpp"

/// Whole rows of matrices that ranks agree on: chosen by a key, carried one behind the other, and put back.
namespace gradtool {

/// A matrix in a vector, row after row, of whose rows some are chosen. Offsets count elements.
struct RowMatrix {
  std::size_t first = 0;  ///< element of the vector
  std::size_t rows = 0;
  std::size_t columns = 0;
  std::size_t count = 0;          ///< rows that are chosen, 1 to `rows`
  float keeps = 0.0F;             ///< share of a chosen row that RowSelection::fade leaves
  std::size_t key_first = 0;      ///< of its rows among those that have keys
  std::size_t chosen_first = 0;   ///< of its numbers of chosen rows
  std::size_t message_first = 0;  ///< of its chosen rows in the message
  std::size_t sum_first = 0;      ///< of its sums of chunks

  /// There is a choice. Where all rows are chosen none has a key.
  [[nodiscard]] GT_HD bool selects() const { return count < rows; }
};

/// The matrices of a vector, in the order of `first`.
struct RowPlan {
  /// `rows`, `columns` and `count` are at least one.
  void add(std::size_t first, std::size_t rows, std::size_t columns, std::size_t count, float keeps = 0.0F);

  std::vector<RowMatrix> matrices;
  std::size_t keys = 0;     ///< rows that have keys
  std::size_t chosen = 0;   ///< rows that are chosen
  std::size_t message = 0;  ///< elements of all chosen rows
  std::size_t sums = 0;     ///< chunks of rows that have keys, as RowSelection::magnitudes cuts them
};

/// ceil(ratio rows), and at least one.
[[nodiscard]] std::size_t share_of_rows(double ratio, std::size_t rows);

namespace format {

/// A score of at least zero as a key: the greater is chosen first, and a NaN before infinity. A key has 31 bits.
GT_HD inline std::uint32_t row_key(float score) {
  const std::uint32_t pattern = bits_of(score) & 0x7fffffffu;
  return pattern > 0x7f800000u ? 0x7fc00000u : pattern;
}

}  // namespace format

/// The work on rows. Views of a vector are as long as its matrices reach. Host work is done on return, GPU work is
/// enqueued; both give the same bits, for any number of threads. Takes memory on construction alone.
template <Space S>
class RowSelection {
 public:
  RowSelection(RowPlan plan, Queue<S> queue);

  [[nodiscard]] const RowPlan& plan() const { return plan_; }
  /// The plan's matrices on the GPU.
  [[nodiscard]] View<const RowMatrix, S> table() const requires(S == Space::cuda) { return table_; }

  struct Workspace {
    Workspace(const RowSelection& selection, Scratch<S>& scratch)
        : keys{scratch.template take<std::uint32_t>(selection.plan_.keys)},
          order{scratch.template take<std::uint32_t>(S == Space::host ? selection.plan_.keys : 0)},
          sums{scratch.template take<double>(S == Space::cuda ? selection.plan_.sums : 0)} {}
    View<std::uint32_t, S> keys;   ///< of all rows that have one; the caller writes them
    View<std::uint32_t, S> order;  ///< of rows, where they are sorted
    View<double, S> sums;          ///< of chunks, where several threads add up a row
  };

  /// out[i] := the sum of the magnitudes of row i of those that have keys: in float64 chunk by chunk of
  /// format::kSumChunk elements, in the order of kernels/sums.hpp, then the chunks in order; rounded to float32 once.
  void magnitudes(const Workspace& work, Queue<S> queue, View<const float, S> x, View<float, S> out) const;
  /// chosen := the rows with the largest keys, ascending in each matrix; of equal keys those of the lower rows.
  void choose(const Workspace& work, Queue<S> queue, View<std::uint32_t, S> chosen) const;
  /// message := the chosen rows of x.
  void gather(Queue<S> queue, View<const std::uint32_t, S> chosen, View<const float, S> x,
              View<float, S> message) const;
  /// The matrices of `out` := 0 but for the chosen rows, which become `message` times `share`.
  void place(Queue<S> queue, View<const std::uint32_t, S> chosen, View<const float, S> message, float share,
             View<float, S> out) const;
  /// The chosen rows of x := what the plan keeps of them; they become 0 where that is nothing, whatever they held.
  void fade(Queue<S> queue, View<const std::uint32_t, S> chosen, View<float, S> x) const;

 private:
  RowPlan plan_;
  Arena<S> arena_;
  View<RowMatrix, S> table_;   ///< in the arena, on a GPU alone
  std::size_t most_rows_ = 0;  ///< with keys, of a matrix
  std::size_t most_sums_ = 0;  ///< chunks, of a matrix
  std::size_t most_kept_ = 0;  ///< elements of chosen rows, of a matrix
  std::size_t largest_ = 0;    ///< elements of a matrix
};

}  // namespace gradtool
