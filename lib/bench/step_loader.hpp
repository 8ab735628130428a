#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "lib/bench/units.hpp"
#include "lib/io/gradient_file.hpp"

namespace gradtool {

/// Memory for so many floats that a loader reads into. On a GPU it is page-locked, so that the copy to the GPU needs no
/// second one on the way.
using TakeFloats = std::function<std::shared_ptr<float>(std::size_t elements)>;
[[nodiscard]] std::shared_ptr<float> plain_floats(std::size_t elements);
/// Page-locked memory, for every GPU. Only in builds with CUDA.
[[nodiscard]] std::shared_ptr<float> pinned_floats(std::size_t elements);

/// Holds one unit of one step for every rank: memory is ranks x largest unit, whatever the file's size.
class StepLoader {
 public:
  /// What is read beside the gradients, where the file has it for every tensor of a unit.
  struct Extras {
    bool weight = false;
    bool second_moment = false;
  };
  /// `ranks` <= workers of the file: rank r replays worker r. The reader must outlive the loader. Memory is taken when
  /// a rank is first loaded, on the thread that does.
  StepLoader(const GradientReader& reader, int ranks, std::size_t largest_unit, Extras extras,
             TakeFloats take = plain_floats);

  /// Reads the unit at step position `step`, for all ranks, or for `only` when it is not negative.
  void load(const Unit& unit, std::size_t step, int only = -1);

  /// What load() read; valid until the next load.
  [[nodiscard]] std::span<const float> gradient(int rank) const;
  /// Empty where not asked for, or where the file lacks it for a tensor of the unit.
  [[nodiscard]] std::span<const float> weight() const { return weight_.span(); }
  [[nodiscard]] std::span<const float> second_moment(int rank) const;
  /// The exact mean over ranks in float64, added in rank order. Needs load() for all ranks. Valid until the next call.
  [[nodiscard]] std::span<const double> mean();

 private:
  /// Of the largest unit's size, once it is needed.
  struct Room {
    std::shared_ptr<float> memory;
    std::size_t used = 0;
    [[nodiscard]] std::span<const float> span() const { return {memory.get(), used}; }
  };
  std::span<float> make_room(Room& room, bool wanted = true);

  const GradientReader& reader_;
  Extras extras_;
  TakeFloats take_;
  std::size_t largest_;
  std::size_t elements_ = 0;
  std::vector<Room> gradients_;
  Room weight_;
  std::vector<Room> second_moments_;
  std::vector<double> mean_;
};

}  // namespace gradtool
