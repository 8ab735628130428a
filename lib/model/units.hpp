#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lib/codecs/layout.hpp"
#include "lib/core/arena.hpp"
#include "lib/core/dtype.hpp"
#include "lib/io/gradient_file.hpp"

namespace gradtool {

/// The part of the gradients that is reduced in one piece.
struct Granularity {
  enum class Kind : std::uint8_t { tensor, bucket, model };
  /// PyTorch DDP's buckets of 25 MB: what most training runs reduce.
  Kind kind = Kind::bucket;
  std::uint64_t bucket_bytes = 25'000'000;  ///< for Kind::bucket, in the type in which gradients are reduced

  /// "tensor", "model" or "bucket:25MB"; the size needs its unit. Throws Fault::usage.
  [[nodiscard]] static Granularity parse(const std::string& text);
  [[nodiscard]] const std::string& text() const { return text_; }

 private:
  std::string text_ = "bucket:25MB";
};

/// A unit: tensors that lie one behind the other in one buffer.
struct Unit {
  struct Piece {
    std::size_t tensor = 0;  ///< position in the file
    std::size_t first = 0;   ///< where it starts in the unit
    std::size_t elements = 0;
  };
  std::vector<Piece> pieces;
  std::size_t elements = 0;
  Dtype dtype = Dtype::f32;  ///< in which the job reduces it when nothing compresses it
  [[nodiscard]] std::size_t bytes() const { return size_of(dtype) * elements; }
};

/// DDP's first bucket is this small, so that the first all-reduce starts early in the backward pass.
constexpr std::uint64_t kFirstBucketBytes = 1U << 20;

/// Cuts the tensors (positions in the file) into units. Buckets are filled as PyTorch DDP fills them once it has seen
/// the order of the backward pass (compute_bucket_assignment_by_size in its reducer.cpp): from the last tensor to the
/// first, and a bucket closes as soon as it has reached its size. So it holds up to one tensor more than the size, and
/// a large tensor shares a bucket with the small ones before it. The first bucket's size is kFirstBucketBytes, or the
/// one asked for where that is smaller.
///
/// `reduced_in`: the type of all gradients on their way; empty: that in which the file has each tensor. Tensors of
/// different types share no bucket, as in DDP, where each type has a first bucket of its own; the model as one unit is
/// reduced in the widest type.
[[nodiscard]] std::vector<Unit> make_units(const std::vector<TensorInfo>& tensors,
                                           const std::vector<std::size_t>& chosen, const Granularity& granularity,
                                           std::optional<Dtype> reduced_in = Dtype::f32);

/// Units that follow each other: [first, last) of a list.
struct UnitRange {
  std::size_t first = 0, last = 0;
  [[nodiscard]] std::size_t size() const { return last - first; }
  [[nodiscard]] std::span<const Unit> of(const std::vector<Unit>& units) const {
    return std::span{units}.subspan(first, size());
  }
  /// Its part of all elements.
  [[nodiscard]] double share_of(const std::vector<Unit>& units) const;
};
/// Cuts the units into as few ranges as possible, from the first unit to the last, of `most_elements` elements at most
/// or one unit that has more. One range where `most_elements` is 0; none where there is no unit.
[[nodiscard]] std::vector<UnitRange> make_unit_ranges(const std::vector<Unit>& units, std::size_t most_elements);

/// The share of the model's elements that come before each tensor, in forward order.
[[nodiscard]] std::vector<double> depths_of(const std::vector<TensorInfo>& tensors);
/// The layout that codecs are told about a unit. `depths`: depths_of(tensors), made once for all units.
[[nodiscard]] Layout layout_of(const Unit& unit, const std::vector<TensorInfo>& tensors,
                               const std::vector<double>& depths);

/// Allocates the floats that a loader reads into. For a GPU they are page-locked, so that the driver copies them to the
/// GPU without a copy of its own.
using FloatAllocator = std::function<std::shared_ptr<float>(std::size_t elements)>;
[[nodiscard]] std::shared_ptr<float> pageable_floats(std::size_t elements);
/// Page-locked memory, for every GPU. Only in builds with CUDA.
[[nodiscard]] std::shared_ptr<float> pinned_floats(std::size_t elements);

/// Holds one unit of one step for every rank: memory is ranks x largest unit, whatever the file's size.
class StepLoader {
 public:
  static constexpr int kAllRanks = -1;

  /// The side inputs that are read beside the gradients, where the file has it for every tensor of a unit.
  struct Extras {
    bool weight = false;
    bool second_moment = false;
  };
  /// `ranks` <= workers of the file: rank r replays worker r. The reader must outlive the loader. Memory is taken when
  /// a rank is first loaded, on the thread that does.
  StepLoader(const GradientSource& reader, int ranks, std::size_t largest_unit, Extras extras,
             FloatAllocator allocate = pageable_floats);

  /// From now on the gradients of `rank` are read into `memory`, not into memory of the loader. It must be as large as
  /// every unit that is loaded, and stay while units are.
  void lend(int rank, std::span<float> memory);

  /// Reads the unit at step position `step`, for the rank `only`, or for all ranks. `with_mean`: computes their mean,
  /// for which the gradients of ranks that are not asked for come through in small parts.
  void load(const Unit& unit, std::size_t step, int only = kAllRanks, bool with_mean = false);

  /// The values that load() read; valid until the next load, and as long as nobody writes to lent memory.
  [[nodiscard]] std::span<const float> gradient(int rank) const;
  /// Empty where not asked for, or where the file lacks it for a tensor of the unit.
  [[nodiscard]] std::span<const float> weight() const { return weight_.span(); }
  [[nodiscard]] std::span<const float> second_moment(int rank) const;
  /// The exact mean over all ranks in float64, added in rank order. Empty unless load() was asked for it.
  [[nodiscard]] std::span<const double> mean() const { return mean_; }

 private:
  /// Memory for `most` elements, allocated when it is first needed; `used` of them are the loaded unit's.
  struct Buffer {
    std::shared_ptr<float> memory = {};
    std::size_t most = 0;
    std::size_t used = 0;
    [[nodiscard]] std::span<const float> span() const { return {memory.get(), used}; }
  };
  /// The loaded unit's elements of `buffer`, to be read into; none of them unless `wanted`.
  std::span<float> resize(Buffer& buffer, bool wanted = true);
  /// Computes the mean where every rank's gradient is held: block by block, so that the sums stay in the first cache
  /// while ranks are added to them.
  void find_mean();
  /// Reads what is held of a unit's gradient, or all of it in parts, and adds it to the mean.
  void add_to_mean(const Unit& unit, std::size_t step, std::size_t rank, bool held);

  const GradientSource& reader_;
  Extras extras_;
  FloatAllocator allocate_;
  std::size_t largest_;
  std::size_t elements_ = 0;
  std::optional<Arena<Space::host>> mean_arena_;
  std::span<double> mean_memory_;  ///< for the largest unit, from when a mean is first asked for
  std::span<double> mean_;
  std::vector<float> part_;  ///< of a gradient that is not held
  std::vector<Buffer> gradients_;
  Buffer weight_;
  std::vector<Buffer> second_moments_;
};

}  // namespace gradtool
